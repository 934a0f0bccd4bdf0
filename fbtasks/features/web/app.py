"""The dashboard as a WSGI application: which function answers which path."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import BaseConverter, Map, Rule, ValidationError
from werkzeug.wrappers import Request, Response

from fbtasks import errors
from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.features.web.actions import many, one, things
from fbtasks.features.web.context import FILES, Context
from fbtasks.features.web.pages import failures, queues, sheets, system, tasks, workers
from fbtasks.features.web.pages import overview as front
from fbtasks.features.web.security import Authorize, Seal, harden
from fbtasks.features.web.showing import Arguments
from fbtasks.queue.operations.overview import Looks
from fbtasks.sheet import Sheet

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

T = TypeVar("T")
LARGEST_FORM: Final = 1 << 20
"""Bytes of the largest form that is read."""
logger = logging.getLogger(__name__)


class Key(BaseConverter):
    """A part of a path that may hold any text: ``a/b`` is ``a~2Fb``, which no proxy decodes or refuses."""

    def to_python(self, value: str) -> str:
        """Returns the text."""
        try:
            return unquote(value.replace("~", "%"), errors="strict")
        except UnicodeDecodeError as error:
            raise ValidationError from error

    def to_url(self, value: Any) -> str:
        """Returns the part of the path. A dot is escaped where it means something: ``.``, ``..``, ``x.json``."""
        found = quote(str(value).encode("utf-8", "surrogatepass"), safe=":@").replace("~", "~7E").replace("%", "~")
        return found.replace(".", "~2E") if found.startswith(".") or found.endswith(".json") else found


# The path, its name in templates, and what answers it. Those of actions ask by GET, and act by POST.
ROUTES: Final[Sequence[tuple[str, str, Callable[..., Response]]]] = (
    ("/", "overview", front.show),
    ("/overview", "front", front.show),
    ("/queues", "queues", queues.listing),
    ("/queues/<key:queue>", "queue", queues.show),
    ("/tasks", "tasks", tasks.listing),
    ("/tasks/<key:id>", "task", tasks.show),
    ("/workers", "workers", workers.listing),
    ("/workers/<int:id>", "worker", workers.show),
    ("/failures", "failures", failures.listing),
    ("/failures/<key:group>", "failure", failures.show),
    ("/audit", "audit", system.audit),
    ("/system", "system", system.show),
    ("/<key:sheet>", "sheet", sheets.listing),
    ("/<key:sheet>/<key:line>", "line", sheets.show),
)
ACTIONS: Final[Sequence[tuple[str, str, Callable[..., Response]]]] = (
    ("/bulk/<key:action>", "do_bulk", many.bulk),
    ("/tasks/<key:id>/<key:action>", "do_task", one.task),
    ("/queues/<key:queue>/<key:action>", "do_queue", things.queue),
    ("/workers/<int:id>/<key:action>", "do_worker", things.worker),
    ("/failures/<key:group>/<key:action>", "do_failure", many.failure),
    ("/<key:sheet>/<key:line>/<key:action>", "do_line", things.line),
)
HANDLERS: Final = {name: handler for _, name, handler in (*ROUTES, *ACTIONS)}
MAP: Final = Map(
    [
        *(Rule(path, endpoint=name, methods=["GET"]) for path, name, _ in ROUTES),
        *(Rule(path, endpoint=name, methods=["GET", "POST"]) for path, name, _ in ACTIONS),
        *(Rule(f"/{name}", endpoint=name, methods=["GET"]) for name in ("livez", "readyz")),
        Rule("/static/<name>", endpoint="static", methods=["GET"]),
    ],
    converters={"key": Key},
    merge_slashes=False,
    strict_slashes=False,
)
STATUS: Final[Mapping[type[FBTasksError], tuple[int, str]]] = {
    errors.TaskNotFound: (404, "Not found"),
    errors.StatementRefused: (403, "The database refuses this"),
    errors.DatabaseUnavailable: (503, "No database"),
    errors.SchemaError: (503, "No queue"),
    ConfigurationError: (400, "Wrong request"),
    FBTasksError: (409, "This cannot be done"),
}
"""The status and the title of an error: those of the first class that it is of."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the dashboard was made with."""

    authorize: Authorize
    read_only: bool
    links: Mapping[str, str]
    arguments: Arguments
    seal: Seal


class Dashboard:
    """The WSGI application."""

    def __init__(self, app: FBTasks, options: Options) -> None:
        self.app = app
        self.options = options
        self.looks = Looks(app.database)
        self._kept: dict[object, tuple[float, Any]] = {}
        self._lock = threading.Lock()

    def __call__(self, environ: Any, start_response: Any) -> Any:
        """Answers one request."""
        request = Request(environ)
        request.max_content_length = request.max_form_memory_size = LARGEST_FORM
        return harden(self._answer(request))(environ, start_response)

    def _answer(self, request: Request) -> Response:
        # Not bind_to_environ, which raises for some Host headers. No address here has the host.
        context = Context(self, request, MAP.bind("localhost", request.root_path))
        try:
            name, values = context.urls.match(context.path, request.method)
            if name == "static":
                return _static(request, values["name"])
            if name in ("livez", "readyz"):
                return self._alive(name)
            context.log_in()
            response = HANDLERS[name](context, **values)
        except HTTPException as error:
            found = error.get_response(request.environ)
            if found.status_code < 400:
                return found
            return context.problem(error.name, error.description or "", found.status_code, found.headers)
        except FBTasksError as error:
            status, title = next(found for kind, found in STATUS.items() if isinstance(error, kind))
            return context.problem(title, str(error), status)
        except Exception:
            logger.exception("The dashboard could not answer %s %s", request.method, request.path)
            return context.problem("Internal error", "The log of the dashboard has the traceback.", 500)
        if request.method in ("GET", "HEAD"):
            response.add_etag()
            response.make_conditional(request)
        return response

    def _alive(self, name: str) -> Response:
        """Answers probes: ``/livez`` while it runs, ``/readyz`` while the database answers."""
        try:
            if name == "readyz":
                self.app.database.use(lambda session: session.read("now"))
        except FBTasksError as error:
            logger.warning("Not ready: %s", error)
            return Response("not ready\n", 503)
        return Response("ok\n")

    def kept(self, key: object, seconds: float, make: Callable[[], T]) -> T:
        """Returns what *make* has returned within the last so many seconds: once for all who look."""
        with self._lock:
            until, value = self._kept.get(key, (0.0, None))
            if clock.monotonic() >= until:
                self._kept = {each: found for each, found in self._kept.items() if clock.monotonic() < found[0]}
                value = make()
                self._kept[key] = clock.monotonic() + seconds, value
            return value  # type: ignore[no-any-return]  # of that key

    @cached_property
    def sheets(self) -> Mapping[str, Sheet]:
        """The sheets of the features that the database has, by their names."""
        return {sheet.name: sheet for feature in self.app.database.features for sheet in feature.sheets()}


def _static(request: Request, name: str) -> Response:
    if name not in FILES:
        raise NotFound()
    data, kind = FILES[name]
    response = Response(data, content_type=f"{kind}; charset=utf-8")
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    response.add_etag()
    response.make_conditional(request)
    return response
