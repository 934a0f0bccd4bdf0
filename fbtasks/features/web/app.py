"""The dashboard as a WSGI application: routes, what each page is given, and answers as HTML or JSON."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from werkzeug.exceptions import Forbidden, HTTPException, NotFound
from werkzeug.routing import BaseConverter, Map, Rule
from werkzeug.wrappers import Request, Response

from fbtasks import errors
from fbtasks import timing as clock
from fbtasks.cli.output import as_dict, visible
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.features.web import charts
from fbtasks.features.web.actions import many, one, things
from fbtasks.features.web.pages import failures, queues, sheets, system, tasks, workers
from fbtasks.features.web.pages import overview as front
from fbtasks.features.web.query import Query
from fbtasks.features.web.security import Authorize, Seal, harden
from fbtasks.features.web.showing import Arguments
from fbtasks.queue.operations.overview import MOST, Looks
from fbtasks.sheet import Ref, Sheet, TaskRef
from fbtasks.states import State
from fbtasks.system.showing import kind_of, span
from fbtasks.version import VERSION

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.database.database import Database

T = TypeVar("T")
HERE: Final = Path(__file__).parent
LARGEST_FORM: Final = 1 << 20
"""Bytes of the largest form that is read."""
logger = logging.getLogger(__name__)


class Key(BaseConverter):
    """A part of a path that may hold any text: ``a/b`` is ``a~2Fb``, which no proxy decodes or refuses."""

    def to_python(self, value: str) -> str:
        """Returns the text."""
        return unquote(value.replace("~", "%"), errors="surrogatepass")

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
KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES: Final = {
    path.name: (path.read_bytes(), KINDS[path.suffix]) for path in (HERE / "static").iterdir() if path.suffix in KINDS
}
STATUS: Final[Mapping[type[FBTasksError], tuple[int, str]]] = {
    errors.TaskNotFound: (404, "Not found"),
    errors.StatementRefused: (403, "Not allowed"),
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
        context = Context(self, request)
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


class Context:
    """One request: who asks, and how the answer is written."""

    def __init__(self, dashboard: Dashboard, request: Request) -> None:
        self.dashboard = dashboard
        self.options = dashboard.options
        self.app = dashboard.app
        self.database: Database = dashboard.app.database
        self.request = request
        self.urls = MAP.bind_to_environ(request.environ)
        self.as_json = request.path.endswith(".json")
        self.path = request.path.removesuffix(".json")
        self.who = ""

    # Who may do what.

    def log_in(self) -> None:
        """Finds out who asks. Raises what is answered to those who may not look."""
        found = self._ask("look", None)
        if not found:
            raise Forbidden("You may not look at this dashboard.")
        self.who = found if isinstance(found, str) else self.request.remote_user or "unknown"

    def _ask(self, action: str, queue: str | None) -> bool | str:
        return self.options.authorize(self.request, action, queue)

    def may(self, action: str, queue: str | None = None) -> bool:
        """Whether the user may do *action* in *queue*."""
        return not self.options.read_only and bool(self._ask(action, queue))

    # Addresses.

    def url(self, name: str, /, **values: Any) -> str:
        """Returns the address of a page; what its path has no place for, and is not None, is in the query."""
        return self.urls.build(name, {key: value for key, value in values.items() if value is not None})

    def search(self, **wanted: Any) -> str:
        """Returns the address of the tasks that are *wanted*, as the fields of a :class:`Query`."""
        return self.url("tasks", q=str(Query(**wanted)))

    def link(self, name: str, text: str, /, **values: Any) -> Markup:
        """Returns a link to a page."""
        return Markup('<a href="{}">{}</a>').format(self.url(name, **values), visible(text))

    @property
    def menu(self) -> list[tuple[str, str]]:
        """The addresses and the titles of the pages; none before the user is known."""
        if not self.who:
            return []
        sheets: Mapping[str, Sheet] = {}
        with suppress(FBTasksError):  # it is the database that cannot be reached, which the page says
            sheets = self.dashboard.sheets
        return [
            *((self.url(name), name.capitalize()) for name in ("overview", "queues", "tasks", "workers", "failures")),
            *((self.url("sheet", sheet=sheet.name), sheet.title) for sheet in sheets.values()),
            *((self.url(name), name.capitalize()) for name in ("audit", "system")),
        ]

    def query(self, url: str) -> list[tuple[str, str]]:
        """Returns the names and the values in the query of an address, for the fields of a form."""
        return parse_qsl(urlsplit(url).query, keep_blank_values=True)

    def here(self, **changed: Any) -> str:
        """Returns the address of this page with other values in its query."""
        query = {**self.request.args.to_dict(), "said": None, "seal": None, **changed}
        found = "&".join(f"{key}={quote(str(value))}" for key, value in query.items() if value is not None)
        return f"{self.request.script_root}{quote(self.path, safe='/:@~')}" + (f"?{found}" if found else "")

    def json_url(self) -> str:
        """Returns the address of this page as JSON."""
        path = "/overview" if self.path == "/" else self.path
        query = self.request.query_string.decode("ascii", "replace")
        return f"{self.request.script_root}{quote(path, safe='/:@~')}.json" + (f"?{query}" if query else "")

    def static(self, name: str) -> str:
        """Returns the address of a file, which changes with what is in it."""
        return self.url("static", name=name, v=hashlib.sha256(FILES[name][0]).hexdigest()[:12])

    # Answers.

    def page(self, template: str, title: str, status: int = 200, **data: Any) -> Response:
        """Returns *data* as a page, or as JSON."""
        if self.as_json:
            return Response(json.dumps(plain(data), indent=1), status, content_type="application/json")
        text = ENVIRONMENT.get_template(template).render(c=self, title=title, **data)
        return Response(text, status, content_type="text/html; charset=utf-8")

    def problem(self, title: str, text: str, status: int, headers: Any = None) -> Response:
        """Returns the page of an error."""
        response = self.page("problem.html", title, status, problem=text)
        if headers is not None and "WWW-Authenticate" in headers:
            response.headers["WWW-Authenticate"] = headers["WWW-Authenticate"]
        return response

    def redirect(self, where: str, said: str) -> Response:
        """Sends the browser to *where*, which shows the sentence *said*."""
        said = visible(said)[:500]
        query = f"said={quote(said)}&seal={self.options.seal.sign('said', said)}"
        return Response(status=303, headers={"Location": f"{where}{'&' if '?' in where else '?'}{query}"})

    @property
    def said(self) -> str:
        """The sentence that :meth:`redirect` has sent along."""
        text, seal = self.request.args.get("said", ""), self.request.args.get("seal", "")
        return text if text and self.options.seal.holds(seal, "said", text) else ""

    @property
    def token(self) -> str:
        """What a form carries: see :class:`Seal`."""
        return self.options.seal.token(self.who)

    # Values.

    @cached_property
    def now(self) -> datetime:
        """The moment of the request."""
        return datetime.now(UTC)

    def time(self, moment: datetime | None, *, exact: bool = False) -> Markup:
        """Returns a moment, which ``live.js`` shows in the zone of the browser; *exact*: with its date and ms."""
        if moment is None:
            return Markup("")
        whole = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        is_near = abs(self.now - moment) < timedelta(hours=20)
        shown = whole if exact else whole[11:19] if is_near else whole[:16]
        iso = f"{whole.replace(' ', 'T')}Z"
        return Markup('<time datetime="{}" title="{} UTC">{}</time>').format(iso, whole, shown)

    def age(self, moment: datetime | None) -> str:
        """Returns how long ago that was, or in how long it will be."""
        if moment is None:
            return ""
        seconds = (self.now - moment).total_seconds()
        return f"in {span(-seconds)}" if seconds < -1 else span(max(seconds, 0.0))

    def cell(self, value: object) -> Any:
        """Returns a value of a cell as text or markup."""
        match value:
            case None:
                return ""
            case Markup():
                return value
            case bool():
                return "yes" if value else "no"
            case State():
                return state(value)
            case int():
                return f"{value:,}"
            case float():
                return f"{value:,.6g}"
            case datetime():
                return self.time(value)
            case timedelta():
                return span(value.total_seconds())
            case TaskRef():
                return self.link("task", value.text or str(value.id), id=value.id)
            case Ref():
                return self.link("line", value.text or value.key, sheet=value.sheet, line=value.key)
            case list() | tuple():
                return Markup(", ").join(_escaped(self.cell(each)) for each in value)
            case _:
                return visible(str(value))


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the titles of the columns of a table, in their order."""
    return list(dict.fromkeys(title for row in rows for title in row))


def _escaped(value: Any) -> Markup:
    return value if isinstance(value, Markup) else Markup("{}").format(value)


def state(value: State) -> Markup:
    """Returns the name of a state, with its colour."""
    name = value.name.lower()
    return Markup('<span class="state {}">{}</span>').format(name, name)


def _bounded(number: int) -> str:
    """Returns a count of :func:`look`."""
    return f"{MOST:,}+" if number > MOST else f"{number:,}"


def plain(value: Any) -> Any:
    """Returns *value* as JSON has it: records as objects, times in ISO 8601, seconds, and names of states."""
    match value:
        case State():
            return value.name.lower()
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case TaskRef():
            return value.id
        case Ref():
            return value.key
        case Mapping():
            return {str(key): plain(each) for key, each in value.items()}
        case tuple() if hasattr(value, "_asdict"):
            return plain(value._asdict())
        case list() | tuple():
            return [plain(each) for each in value]
        case _:
            return plain(as_dict(value)) if is_dataclass(value) else str(value)


def _shown(value: object) -> object:
    r"""Makes what would turn, hide or break text visible: ``\u202e``. Called with each value that a template shows."""
    return visible(value) if type(value) is str else "" if value is None else value


def _static(request: Request, name: str) -> Response:
    if name not in FILES:
        raise NotFound()
    data, kind = FILES[name]
    response = Response(data, content_type=f"{kind}; charset=utf-8")
    response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
    response.add_etag()
    response.make_conditional(request)
    return response


ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.globals.update(charts=charts, columns_of=columns_of, State=State, VERSION=VERSION)
ENVIRONMENT.filters.update(
    span=lambda seconds: "" if seconds is None else span(seconds), bounded=_bounded, state=state, kind=kind_of
)
