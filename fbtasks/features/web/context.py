"""What a page is made with: who asks, addresses, values as text, and the answer as HTML or JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from werkzeug.exceptions import Forbidden
from werkzeug.routing import MapAdapter
from werkzeug.wrappers import Request, Response

from fbtasks import timing as clock
from fbtasks.cli.output import as_dict, visible
from fbtasks.errors import FBTasksError
from fbtasks.features.web import charts, store
from fbtasks.features.web.query import REASONS, STATES, Query
from fbtasks.queue import results
from fbtasks.sheet import MOST, Ref, Sheet, Spark, TaskRef
from fbtasks.states import State
from fbtasks.system.showing import kind_of, span
from fbtasks.version import VERSION

if TYPE_CHECKING:
    from fbtasks.database.database import Database
    from fbtasks.features.web.app import Dashboard

HERE: Final = Path(__file__).parent
KINDS: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES: Final = {
    path.name: (path.read_bytes(), KINDS[path.suffix]) for path in (HERE / "static").iterdir() if path.suffix in KINDS
}
"""The files that browsers are given, with their types."""
KNOWN: Final = 100
"""Queues, names and workers each that are offered to those who search."""
_STATES: Final = {each.name.lower(): each for each in State}


class Context:
    """One request: who asks, and how the answer is written."""

    def __init__(self, dashboard: Dashboard, request: Request, urls: MapAdapter) -> None:
        self.dashboard = dashboard
        self.options = dashboard.options
        self.app = dashboard.app
        self.database: Database = dashboard.app.database
        self.request = request
        self.urls = urls
        self.as_json = request.path.endswith(".json")
        self.path = request.path.removesuffix(".json")
        self.who = ""
        self.query = Query()
        """The search that the page shows."""
        self.names: Collection[str] = ()
        """Names of tasks that another one may be for."""

    # Who may do what.

    def log_in(self) -> None:
        """Finds out who asks. Raises what is answered to those who may not look."""
        found = self._ask("look", None)
        if not found:
            raise Forbidden("You may not look at this dashboard.")
        self.who = found if isinstance(found, str) else self.request.remote_user or "unknown"

    def _ask(self, action: str, queue: str | None) -> bool | str | None:
        found = self.options.authorize(self.request, action, queue)
        if not isinstance(found, bool | str | None):  # a coroutine or an anonymous user is true as well
            raise TypeError(f"authorize has returned {found!r:.80}: it must be a user's name, True or False.")
        return found

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

    @cached_property
    def app_path(self) -> str:
        """The app as ``-A`` of commands names it: asked once, since one that none has is looked for in all modules."""
        return self.app.path

    @cached_property
    def known(self) -> Mapping[str, Sequence[str]]:
        """What tasks may be looked for by, as far as that is known without asking the database."""
        look = self.dashboard.looks.last
        return {
            "state": [*STATES],
            "queue": [row.queue for row in look.queues][:KNOWN] if look else [],
            "name": sorted(self.names)[:KNOWN],
            "worker": sorted({row.name for row in look.workers})[:KNOWN] if look else [],
            "why": [*REASONS],
            "since": ["1h", "24h", "7d"],
        }

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
            *((self.url("sheet", sheet=sheet.name), sheet.title) for sheet in sheets.values() if sheet.title),
            *((self.url(name), name.capitalize()) for name in ("audit", "system")),
        ]

    def here(self, **changed: Any) -> str:
        """Returns the address of this page with other values in its query."""
        query = {**self.request.args.to_dict(), "said": None, "seal": None, **changed}
        found = urlencode({key: value for key, value in query.items() if value is not None})
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
        """Returns *data* as a page, or as JSON: what readers may see of it."""
        data = self.options.arguments.shown(data)
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
        """The moment of the request, by the database's clock."""
        ahead = self.dashboard.kept("ahead", 60.0, lambda: self.database.use(store.ahead))
        return clock.utcnow() + timedelta(seconds=ahead)

    @cached_property
    def counted_since(self) -> Markup:
        """When the counters of a look begin."""
        return self.time(results.counted_since(self.dashboard.looks.get().time, timedelta(hours=1)), minute=True)

    def time(self, moment: datetime | None, *, exact: bool = False, minute: bool = False) -> Markup:
        """Returns a moment, which ``live.js`` shows in the zone of the browser.

        *exact*: with its date and milliseconds. *minute*: hour and minute alone.
        """
        if moment is None:
            return Markup("")
        moment = moment.astimezone(UTC)
        whole = f"{moment:%Y-%m-%d %H:%M:%S}.{moment.microsecond // 1000:03d}"
        is_near = abs(self.now - moment) < timedelta(hours=20)
        shown = whole if exact else whole[11:16] if minute else whole[11:19] if is_near else whole[:16]
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
            case str() if value in _STATES:
                return state(_STATES[value])
            case Markup():
                return value
            case str() if "\n" in value:
                return Markup("<pre>{}</pre>").format(visible(value))
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
            case Spark():
                return Markup(ENVIRONMENT.get_template("spark.html").render(spark=value))  # noqa: S704  # it escapes
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


ENVIRONMENT: Final = Environment(
    loader=FileSystemLoader(HERE / "templates"),
    autoescape=True,
    finalize=_shown,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
ENVIRONMENT.globals.update(charts=charts, columns_of=columns_of, Query=Query, VERSION=VERSION)
ENVIRONMENT.tests["figure"] = lambda value: type(value) in (int, float)  # neither a state nor yes and no
ENVIRONMENT.tests["link"] = lambda value: isinstance(value, Ref | TaskRef)
ENVIRONMENT.filters.update(
    span=lambda seconds: "" if seconds is None else span(seconds), bounded=_bounded, state=state, kind=kind_of
)
