"""A dashboard: what the queue holds and has done, for people."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import iscoroutinefunction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fbtasks.errors import ConfigurationError
from fbtasks.feature import Duty, Every, Feature, Worker
from fbtasks.system import checks

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.features.web.security import Authorize


class Web(Feature):
    """A dashboard, and what workers write down for it."""

    name = "web"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"TAKEN_BACK"})

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Writes down what becomes of tasks, unless the app has that off, and forgets what is old."""
        from fbtasks.features.web.duty import LOOK, SELDOM, UPKEEP, Depths, Statistics, Upkeep

        is_on = self.app.settings.statistics
        if is_on:
            yield Statistics(worker)
            yield Every("counting what waits", LOOK, Depths(), at_start=False)
        yield Every("joining and forgetting counters", UPKEEP if is_on else SELDOM, Upkeep(), at_start=False)


@contextmanager
def needs_extra() -> Iterator[None]:
    """For the block, which imports what the extra ``web`` brings. Raises :class:`ConfigurationError` without that."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "markupsafe", "waitress", "werkzeug"):
            raise
        raise ConfigurationError(
            f"the dashboard needs {error.name}, which is not installed: pip install jinja2 waitress werkzeug"
        ) from error


def dashboard(
    app: FBTasks,
    *,
    authorize: Authorize,
    read_only: bool = False,
    links: Mapping[str, str] | None = None,
    redact: Collection[str] | None = None,
    arguments: Literal["shown", "hidden"] = "shown",
    secret: str | bytes | None = None,
) -> Callable[[Any, Any], Any]:
    """Returns a WSGI application that shows the queue of *app*, to be mounted in another one.

    *authorize* is called with each request, an action and a queue (None: not of one queue), and returns whether its
    user may do that, or the name of the user: ``look`` for all pages, and the names of actions, such as ``retry``.
    *links* has addresses in your application by names of tasks, with ``{argument}``. *redact* are words in the names of
    arguments that are not shown, nor what stands behind such a name in messages, tracebacks and logs; with *arguments*
    ``"hidden"`` none of all that is, nor results. *secret* signs forms: the same in all processes that serve the
    dashboard.

    Raises :class:`ConfigurationError` for what cannot be, and when the extra ``web`` is not installed.
    """
    with needs_extra():
        from fbtasks.features.web.app import Dashboard, Options
        from fbtasks.features.web.security import Seal
        from fbtasks.features.web.showing import REDACTED, Arguments
    app.features["web"]  # which raises where the app was made without it
    if not checks.is_function(authorize) or iscoroutinefunction(authorize):
        raise ConfigurationError(
            f"authorize {checks.shown(authorize)} must be a function of a request, an action and a queue, that returns "
            f"whether the user may do it, or the user's name, and no coroutine.{checks.no_class(authorize)}"
        )
    words = REDACTED if redact is None else checks.names("redact", redact, "words")
    checks.one_of({"shown": "but for what redact= names", "hidden": "nor results, messages and lines of logs"})(
        "arguments", arguments
    )
    links = links or {}
    if not (isinstance(links, Mapping) and all(isinstance(each, str) for each in (*links, *links.values()))):
        raise ConfigurationError(
            f"links {checks.shown(links)} must have addresses by names of tasks: {{'shop.*': '/{{order}}'}}."
        )
    if secret is not None and not (isinstance(secret, str | bytes) and secret):
        raise ConfigurationError("secret must be text or bytes, and not empty.")
    options = Options(
        authorize=authorize,
        read_only=checks.flag("read_only", read_only),
        links=dict(links),
        arguments=Arguments(app, words, hidden=arguments == "hidden"),
        seal=Seal(secret),
    )
    return Dashboard(app, options)
