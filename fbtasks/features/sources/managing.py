"""Changing subscriptions: apply what the code says, pause, resume, note existing rows, drop."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.database.migrate import deploying
from fbtasks.errors import AuthenticationError, ConfigurationError, FBTasksError
from fbtasks.features.sources.deploy import applying
from fbtasks.features.sources.deploy.applying import Connection as Connection
from fbtasks.features.sources.deploy.comparing import Found
from fbtasks.features.sources.deploy.comparing import Step as Step
from fbtasks.features.sources.feeds import Feed, change_source
from fbtasks.features.sources.store import ddl, subscriptions
from fbtasks.features.sources.store.capture import describe
from fbtasks.features.sources.store.subscriptions import Held, Row
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.firebird.session import Session
from fbtasks.queue.operations.choosing import none_such
from fbtasks.system.showing import brief, command_line, count

_LOOK: Final = 0.2
"""Seconds between two looks at the connections that are waited for."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was done, or is to be done, so that the database has what the code says."""

    steps: list[Step]
    problems: dict[str, str]
    """What is wrong with definitions, by the names of tasks; these are left as they are."""
    unsettled: list[Connection] = field(default_factory=list)
    """Connections that are older than a trigger, and may go on with statements that they prepared before."""
    existing: dict[str, int] = field(default_factory=dict)
    """How many rows that existed already were noted, by the names of tasks."""

    @property
    def changes(self) -> list[Step]:
        """The steps that are not nothing."""
        return [step for step in self.steps if step.action != "none"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What became of a subscription that is to go."""

    id: int
    name: str
    gone: bool
    connections: list[Connection]
    """Connections that may still fire its trigger, which stays until they have ended."""
    tasks: bool
    """Whether tasks of it run."""


# Deploying


def diff(database: Database, app: str, feeds: Iterable[Feed]) -> Applied:
    """Returns what :func:`apply` would do. Nothing is changed."""
    return database.use(lambda session: _diff(session, app, list(feeds)))


def apply(
    database: Database,
    app: str,
    feeds: Iterable[Feed],
    *,
    wait: float = 0.0,
    disconnect: bool = False,
    with_existing: bool = False,
    alone: bool = False,
) -> Applied:
    """Brings the subscriptions of *app* in line with its code: rows, triggers and the rights of these.

    Of several at once one does it, and the others find it done. Waits for up to *wait* seconds until no connection is
    left that may go on without a new trigger; with *disconnect* ends those that are left. With *with_existing* the rows
    that the tables of new subscriptions have already are noted. *alone* as for :func:`register`. Raises
    :class:`AuthenticationError` when the app's user may not make triggers, and :class:`ConfigurationError` for tasks of
    another app.
    """
    with database.session() as session:
        found = bring_in_line(session, app, feeds, alone=alone)
        rows = [row for row in subscriptions.live(session) if row.app == app]
        unsettled = _settle(session, rows, wait, disconnect=disconnect)
        new = {step.name for step in found.steps if step.action == "create" and step.kind == "change"}
        rows = [row for row in rows if row.name in new] if with_existing else []
        return replace(found, unsettled=unsettled, existing=_note_existing(session, rows, unsettled))


def bring_in_line(session: Session, app: str, feeds: Iterable[Feed], *, alone: bool = False) -> Applied:
    """Deploys as :func:`apply` does, with *session*, and waits for no connection. Raises as it does."""
    definitions = list(feeds)
    found = _diff(session, app, definitions, alone=alone)
    if found.changes or not all(row.is_live for row in subscriptions.read(session)):
        with deploying(session), _owners(session, "make triggers"):
            found = Applied(*applying.apply(session, app, definitions, alone=alone))
            applying.finish(session)
    return found


def register(session: Session, app: str, feeds: Iterable[Feed], *, alone: bool = False) -> dict[str, str]:
    """Brings the handlers of events and the polls of *app* in line with its code, as the role of a worker allows it.

    With *alone* the *feeds* are some of the app's, and the others are left as they are. Returns what is wrong with
    definitions, by the names of tasks. Raises :class:`ConfigurationError` for tasks of another app.
    """
    definitions = list(feeds)
    found = _diff(session, app, definitions, as_worker=True, alone=alone)
    if found.changes:
        with deploying(session):
            found = Applied(*applying.apply(session, app, definitions, as_worker=True, alone=alone))
    return found.problems


def hand_on_events(session: Session) -> None:
    """Gives all events that were kept to the handlers that are there by now, some hundred in a transaction.

    For programs with nothing else to do meanwhile: workers do it beside their work.
    """
    while session.run(subscriptions.prune_events) >= subscriptions.EVENTS:
        pass


def _diff(session: Session, app: str, definitions: list[Feed], **scope: bool) -> Applied:
    plan, problems = applying.compared(session, app, definitions, **scope)
    return Applied([each.step for each in plan], problems)


def _settle(session: Session, rows: Collection[Row], wait: float, *, disconnect: bool) -> list[Connection]:
    """Waits until no connection is older than the triggers of *rows*. Returns those that are left."""
    limit = clock.monotonic() + wait
    while left := ddl.older_writers(session, rows):
        if clock.monotonic() >= limit:
            if not disconnect:
                return left
            ddl.disconnect(session, left)
            disconnect = False
            limit = clock.monotonic() + max(wait, 10.0)
        clock.sleep(_LOOK)
    return []


def backfill(
    database: Database, names: Iterable[str], *, wait: float = 0.0, disconnect: bool = False
) -> dict[str, int]:
    """Notes the rows that the tables of subscriptions have, as if they had just been inserted. Returns how many.

    Raises :class:`FBTasksError` while a connection is left that is older than a trigger: its changes may be missed.
    """
    with database.session() as session:
        rows = [row for row in _chosen(session, names) if row.is_live]
        for row in rows:
            if row.kind != "change":
                why = "an event, and those have no rows to begin with" if row.kind == "event" else "all rows that wait"
                raise ConfigurationError(f"{row.name!r} is called for {why}.")
            if row.active_time is None or row.held == "silent":
                raise ConfigurationError(
                    f"{row.name!r} notes no changes now. Run: fbtasks subscriptions resume or apply"
                )
        return _note_existing(session, rows, _settle(session, rows, wait, disconnect=disconnect))


def describe_unsettled(connections: Collection[Connection]) -> str:
    """Returns what connections that are older than the triggers may do, without a full stop."""
    older = f"{count(len(connections), 'connection')} {'is' if len(connections) == 1 else 'are'}"
    return f"{older} older than the triggers, and may go on with statements whose changes are not noted"


def _note_existing(session: Session, rows: Collection[Row], unsettled: list[Connection]) -> dict[str, int]:
    if unsettled and rows:
        remedy = command_line("fbtasks subscriptions backfill {}", [row.name for row in rows])
        raise FBTasksError(
            f"{describe_unsettled(unsettled)}: no existing row was noted either. Wait for their end (--wait), or end "
            f"them (--disconnect), then run: {remedy}"
        )
    catalog = Catalog(session)
    with _owners(session, "note existing rows"):
        return {
            row.name: ddl.note_existing(session, row.id, describe(catalog, change_source(row.definition)))
            for row in rows
        }


# Operating


def pause(database: Database, names: Iterable[str], *, silent: bool = False) -> list[str]:
    """Pauses subscriptions: they give out nothing. With *silent* they note nothing either.

    Returns the names of those that changed. Raises :class:`ConfigurationError` for names that are not known.
    """
    return _hold(database, names, "silent" if silent else "paused")


def resume(database: Database, names: Iterable[str]) -> list[str]:
    """Ends pauses of subscriptions. Returns the names of those that changed. Raises as :func:`pause` does."""
    return _hold(database, names, None)


def _hold(database: Database, names: Iterable[str], held: Held | None) -> list[str]:
    with database.session() as session:
        with deploying(session), _owners(session, "change triggers"):
            triggers = ddl.found(session)
            rows = [row for row in _chosen(session, names) if row.state != "dropped" and row.held != held]
            for row in rows:
                if held == "silent" and row.kind == "poll":
                    raise ConfigurationError(
                        f"{row.name!r} polls the table {row.source!r}, where rows wait in any case. Pause it without "
                        "--silent."
                    )
            for row in rows:
                applying.hold(session, Found(row, triggers.get(row.id)), held)
        return list(dict.fromkeys(row.name for row in rows))


def check_names(database: Database, names: Iterable[str]) -> None:
    """Raises :class:`ConfigurationError` for names of subscriptions that are not known."""
    database.use(lambda session: _chosen(session, names))


def drop(database: Database, names: Iterable[str]) -> list[Dropped]:
    """Deletes subscriptions, with what they have noted. A second call ends what the first one could not.

    Raises :class:`ConfigurationError` for names that are not known.
    """
    with database.session() as session:
        with deploying(session), _owners(session, "drop triggers"):
            triggers, rows = ddl.found(session), _chosen(session, names)
            for row in rows:
                if row.state != "dropped":
                    applying.begin_drop(session, Found(row, triggers.get(row.id)))
            left = applying.finish(session)
        return [Dropped(row.id, row.name, row.id not in left, *left.get(row.id, ([], False))) for row in rows]


def _chosen(session: Session, names: Iterable[str]) -> list[Row]:
    """The subscriptions that *names* mean, which are names of tasks, or ids."""
    rows = subscriptions.read(session)
    found: dict[int, Row] = {}
    for name in names:
        meant = [row for row in rows if name in (row.name, str(row.id))]
        if not meant:
            raise none_such("subscription", name, {row.name for row in rows})
        found.update((row.id, row) for row in meant)
    return list(found.values())


@contextmanager
def _owners(session: Session, what: str) -> Iterator[None]:
    """Names in an error of the block who may do *what*."""
    try:
        yield
    except AuthenticationError as error:
        owner = session.read("database_owner")[0][0]
        raise AuthenticationError(
            f"{session.url}: the user may not {what} ({brief(error.__cause__ or error)}). Run the command as the owner "
            f"of the database, {owner}, or as SYSDBA."
        ) from error
