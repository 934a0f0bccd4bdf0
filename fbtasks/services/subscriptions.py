"""Operations on subscriptions: apply what the code says, list, pause, resume, note existing rows, drop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeVar

from fbtasks.checks import did_you_mean
from fbtasks.deploy import applying
from fbtasks.deploy.applying import Connection as Connection
from fbtasks.deploy.comparing import Found, steps, trigger_problems
from fbtasks.deploy.comparing import Step as Step
from fbtasks.errors import AuthenticationError, ConfigurationError, FBTasksError, TaskDefinitionError
from fbtasks.feeds import Definition, change_source, digest
from fbtasks.feeds import Feed as Feed
from fbtasks.firebird.session import Session
from fbtasks.store.database import Database
from fbtasks.store.sources import ddl, existing, polling, subscriptions, tables, undeployed
from fbtasks.store.sources.capture import Capture, resolve
from fbtasks.store.sources.subscriptions import KEPT, Held, Load, Row, Unhandled, deploying
from fbtasks.store.sources.undeployed import Undeployed

T = TypeVar("T")
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A subscription as the database has it."""

    id: int | None
    """None: the database has none. It is a definition of a worker that is alive, or an event that has no handler."""
    name: str
    """That of the task; empty where an event has none, as are its app and queue."""
    app: str
    kind: str
    source: str
    queue: str
    priority: int | None
    order: str | None
    state: str
    """That of its row, "undeployed", or "unhandled" for an event that has no handler."""
    ends: bool
    """Whether another one has taken its place: it goes when what it has is done."""
    version: int | None
    active_since: datetime | None
    problems: list[str]
    """What is wrong with its trigger, why its table cannot be polled, and why it is not as workers have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedSource(SourceRow):
    """A subscription, and what it has."""

    waiting: int | None
    """How many changes or events wait; None for a polled table, whose rows are not counted."""
    lag: float | None
    taken: int
    ready: int
    running: int
    held: int
    """Tasks that wait until it is the turn of theirs in its lane."""
    failed: int
    halted: int
    """Lanes that stand still since a task failed."""
    behind: int
    """How many of those that wait do so behind these lanes."""


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


@dataclass(frozen=True, slots=True)
class SourceProblem:
    """What is wrong with a subscription, or with an event."""

    name: str
    problem: str
    app: str | None = None
    """The app whose code has it otherwise than the database; None: something else is wrong."""
    kind: Literal["subscription", "event"] = "subscription"


class SourceHealth(NamedTuple):
    """What is wrong with what feeds tasks."""

    problems: list[SourceProblem]
    queues: set[str]
    """Queues for which changes or events wait that could be tasks by now."""


class Compared(NamedTuple):
    """How the database does not have what feeds tasks of an app as its code has it."""

    undeployed: dict[str, str]
    """What was not deployed, by the names of tasks: the database has it in another way, or not at all."""
    spoiled: list[SourceProblem]
    """What has become of triggers that were."""


# Deploying


def diff(database: Database, app: str, feeds: Iterable[Feed]) -> Applied:
    """Returns what :func:`apply` would do. Nothing is changed."""
    return database.use(lambda session: _diff(session, _definitions(app, feeds)))


def apply(
    database: Database,
    app: str,
    feeds: Iterable[Feed],
    *,
    wait: float = 0.0,
    disconnect: bool = False,
    with_existing: bool = False,
) -> Applied:
    """Brings the subscriptions of *app* in line with its code: rows, triggers and the rights of these.

    Of several at once one does it, and the others find it done. Waits for up to *wait* seconds until no connection is
    left that may go on without a new trigger; with *disconnect* ends those that are left. With *with_existing* the rows
    that the tables of new subscriptions have already are noted. Raises :class:`AuthenticationError` when the app's
    user may not make triggers, and :class:`ConfigurationError` for tasks of another app.
    """
    definitions = _definitions(app, feeds)

    def work(session: Session) -> Applied:
        found = _diff(session, definitions)
        if found.changes or _to_finish(session):
            with deploying(session), _owners(session, "make triggers"):
                found = Applied(*applying.apply(session, app, definitions.list))
                applying.finish(session)
        undeployed.forget(session, app, [each for each in definitions.list if each.name not in found.problems])
        moments = [row.active_time for row in _live(session) if row.app == app and row.active_time is not None]
        unsettled = _settle(session, max(moments), wait, disconnect=disconnect) if moments else []
        noted = {}
        if with_existing:
            new = {step.name for step in found.steps if step.action == "create" and step.kind == "change"}
            noted = _note_existing(session, [row for row in _live(session) if row.name in new], unsettled)
        return Applied(found.steps, found.problems, unsettled, noted)

    return _with_session(database, work)


def register(session: Session, app: str, feeds: Iterable[Feed], *, alone: bool = False) -> dict[str, str]:
    """Brings the handlers of events and the polls of *app* in line with its code, as the role of a worker allows it.

    With *alone* the *feeds* are some of the app's, and the others are left as they are. Returns what is wrong with
    definitions, by the names of tasks. Raises :class:`ConfigurationError` for tasks of another app.
    """
    definitions = _definitions(app, feeds)
    plan, problems = applying.compare_registered(session, app, definitions.list, alone=alone)
    if plan:
        with deploying(session):
            problems = applying.register(session, app, definitions.list, alone=alone)
    return problems


def find_stale(session: Session, app: str, feeds: Iterable[Feed]) -> Compared:
    """Returns how the triggers of *app* are not as its code says, as far as two statements tell."""
    rows = {row.name: row for row in _live(session) if row.app == app}
    triggers = ddl.found(session)
    found = Compared({}, [])
    for feed in feeds:
        if feed.subscription.kind != "change":
            continue
        row = rows.get(feed.name)
        if row is None:
            found.undeployed[feed.name] = "it has no trigger yet"
            continue
        if row.hash != Definition(app, feed).hash:
            found.undeployed[feed.name] = "the definition has changed"
        found.spoiled.extend(
            SourceProblem(feed.name, each) for each in trigger_problems(Found(row, triggers.get(row.id)))
        )
    return found


def refusals(session: Session, app: str, feeds: Iterable[Feed]) -> dict[str, str]:
    """Returns what is wrong with those *feeds* that the database cannot have, by the names of tasks."""
    return applying.refusals(session, _definitions(app, feeds).list)


def note_undeployed(
    session: Session, worker_id: int, app: str, feeds: Iterable[Feed], problems: Mapping[str, str]
) -> None:
    """Notes for a worker why *feeds* are not deployed as its code has them, for those who look after it."""
    found = [(Definition(app, feed), problems[feed.name]) for feed in feeds if feed.name in problems]
    session.run(lambda t: undeployed.note(t, worker_id, found))


@dataclass(frozen=True, slots=True)
class _Definitions:
    app: str
    list: list[Definition]


def _definitions(app: str, feeds: Iterable[Feed]) -> _Definitions:
    return _Definitions(app, [Definition(app, feed) for feed in feeds])


def _diff(session: Session, definitions: _Definitions) -> Applied:
    rows = subscriptions.read(session)
    plan, problems = applying.planned(session, definitions.app, definitions.list, rows, ddl.found(session))
    return Applied(steps(plan), problems)


def _live(session: Session) -> list[Row]:
    """The subscriptions that are neither to go nor replaced."""
    return [row for row in subscriptions.read(session) if row.is_live]


def _to_finish(session: Session) -> bool:
    return any(not row.is_live for row in subscriptions.read(session))


def _settle(session: Session, moment: datetime, wait: float, *, disconnect: bool) -> list[Connection]:
    """Waits until no connection is older than *moment*. Returns those that are left."""
    limit = time.monotonic() + wait
    while left := ddl.older_connections(session, moment):
        if time.monotonic() >= limit:
            if not disconnect:
                return left
            ddl.disconnect(session, left)
            disconnect = False
            limit = time.monotonic() + max(wait, 10.0)
        time.sleep(_LOOK)
    return []


def backfill(
    database: Database, names: Iterable[str], *, wait: float = 0.0, disconnect: bool = False
) -> dict[str, int]:
    """Notes the rows that the tables of subscriptions have, as if they had just been inserted. Returns how many.

    Raises :class:`FBTasksError` while a connection is left that is older than a trigger: its changes may be missed.
    """

    def work(session: Session) -> dict[str, int]:
        rows = [row for row in _chosen(session, names) if row.is_live]
        for row in rows:
            if row.kind != "change":
                why = "an event, and those have no rows to begin with" if row.kind == "event" else "all rows that wait"
                raise ConfigurationError(f"{row.name!r} is called for {why}.")
            if row.active_time is None or row.held == "silent":
                raise ConfigurationError(
                    f"{row.name!r} notes no changes now. Run: fbtasks subscriptions resume or apply"
                )
        moments = [row.active_time for row in rows if row.active_time is not None]
        left = _settle(session, max(moments), wait, disconnect=disconnect) if moments else []
        return _note_existing(session, rows, left)

    return _with_session(database, work)


def _note_existing(session: Session, rows: Iterable[Row], unsettled: list[Connection]) -> dict[str, int]:
    rows = list(rows)
    if unsettled and rows:
        names = " ".join(row.name for row in rows)
        raise FBTasksError(
            f"{len(unsettled)} connections are older than the triggers, and may go on with statements whose changes "
            "are not noted: no existing row was noted either. Let them end (--wait, --disconnect), then run: "
            f"fbtasks subscriptions backfill {names}"
        )
    with _owners(session, "note existing rows"):
        return {row.name: existing.note(session, row.id, _capture(session, row)) for row in rows}


def _capture(session: Session, row: Row) -> Capture:
    source = change_source(row.definition)
    return resolve(source, tables.describe(session, source.table))


# Operating


def list_sources(database: Database) -> list[SourceRow]:
    """Returns all subscriptions, and what is wrong with their triggers or tables."""

    def read(session: Session) -> list[SourceRow]:
        known = _Known.read(session, undeployed.read(session))
        rows = subscriptions.read(session)
        found = [SourceRow(**_facts(session, row, known)) for row in rows]
        return found + [SourceRow(**each) for each in _missing(rows, known.undeployed)]

    return database.use(read)


def inspect_sources(database: Database) -> list[LoadedSource]:
    """Returns the same, with what each has; and the events that are kept since they have no handler."""

    def read(session: Session) -> list[LoadedSource]:
        loaded = _loaded(session, subscriptions.read(session), undeployed.read(session))
        return loaded + [_unhandled(each) for each in subscriptions.unhandled_events(session)]

    return database.use(read)


_NOTHING: Final = Load(0, 0, None, 0, 0, 0, 0, 0, 0)


def _loaded(session: Session, rows: Iterable[Row], noted: list[Undeployed]) -> list[LoadedSource]:
    """Returns the subscriptions of *rows* and what they have, with what workers have *noted* of definitions."""
    known, loads = _Known.read(session, noted), subscriptions.loads(session)
    found = [LoadedSource(**_facts(session, row, known), **_load(row, loads.get(row.id, _NOTHING))) for row in rows]
    return found + [LoadedSource(**each, **_NOTHING._asdict()) for each in _missing(rows, known.undeployed)]


def _load(row: Row, load: Load) -> dict[str, Any]:
    """What a subscription has; the log has nothing of the rows of a polled table."""
    return load._asdict() | ({"waiting": None} if row.kind == "poll" else {})


def _unhandled(event: Unhandled) -> LoadedSource:
    facts = _without_row(name="", app="", queue="", kind="event", source=event.event, state="unhandled")
    facts["problems"].append(_why_unhandled(event))
    return LoadedSource(**facts, **_NOTHING._replace(waiting=event.raised, lag=event.lag)._asdict())


def _why_unhandled(event: Unhandled) -> str:
    first, last = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (event.since, event.since + KEPT))
    return (
        f"no handler is registered for it; {event.raised} raised since {first} "
        f"{'is' if event.raised == 1 else 'are'} kept for one, the first until {last}"
    )


class _Known(NamedTuple):
    """What is known of all subscriptions beside their rows."""

    triggers: dict[int, ddl.Trigger]
    failures: dict[int, str]
    """Why polls fail, by the numbers of their subscriptions."""
    undeployed: list[Undeployed]

    @classmethod
    def read(cls, session: Session, noted: list[Undeployed]) -> _Known:
        failures = {each.id: each.error for each in polling.failing(session)}
        return cls(ddl.found(session), failures, noted)


def _facts(session: Session, row: Row, known: _Known) -> dict[str, Any]:
    if row.id in known.failures:
        problems = [known.failures[row.id]]
    else:
        problems = _problems(session, Found(row, known.triggers.get(row.id)))
    if row.is_live:
        problems += [each.problem for each in known.undeployed if (each.app, each.name) == (row.app, row.name)]
    return {
        "id": row.id,
        "name": row.name,
        "app": row.app,
        "kind": row.kind,
        "source": row.source,
        "queue": row.queue,
        "priority": row.priority,
        "order": row.ordering,
        "state": row.state,
        "ends": row.ends,
        "version": row.version,
        "active_since": row.active_time,
        "problems": problems,
    }


def _without_row(**facts: str) -> dict[str, Any]:
    """The fields of a :class:`SourceRow` of which the database has no row: these *facts*, and no problem yet."""
    return {**dict.fromkeys(field.name for field in fields(SourceRow)), **facts, "ends": False, "problems": []}


def _missing(rows: Iterable[Row], found: Iterable[Undeployed]) -> list[dict[str, Any]]:
    """Definitions of workers of which the database has nothing."""
    live = {(row.app, row.name) for row in rows if row.is_live}
    missing: dict[tuple[str, str], dict[str, Any]] = {}
    for each in found:
        if (each.app, each.name) in live:
            continue
        facts = _without_row(
            name=each.name, app=each.app, queue=each.queue, kind=each.kind, source=each.source, state="undeployed"
        )
        missing.setdefault((each.app, each.name), facts)["problems"].append(each.problem)
    return list(missing.values())


def _problems(session: Session, found: Found) -> list[str]:
    """What is wrong with the trigger of a subscription, its table included."""
    row = found.row
    if row.kind != "change" or not row.is_live:
        return []
    try:
        text = ddl.text(row.id, row.name, row.queue, _capture(session, row))
    except TaskDefinitionError as error:
        return [str(error).rstrip(".")]
    said = trigger_problems(found)
    if not said and digest(text) != row.text_hash:
        said.append("the table has changed, or fbtasks, since its trigger was made")
    return said


def find_problems(session: Session, max_lag: float, open_for: Mapping[str, float]) -> SourceHealth:
    """Returns what is wrong with subscriptions, and which queues are waited for.

    An event may be kept for *max_lag* seconds without a handler. Of a subscription that is active, changes may wait for
    so long, and before that for as long as the definition has them wait. *open_for* says for how many seconds queues
    with a window have been open: the time before does not count.
    """
    noted, rows = undeployed.read(session), subscriptions.read(session)
    found = [SourceProblem(each.name, each.problem, each.app) for each in noted]
    found += [
        SourceProblem(each.event, _why_unhandled(each), kind="event")
        for each in subscriptions.unhandled_events(session)
        if each.lag > max_lag
    ]
    queues: set[str] = set()
    if not rows:
        return SourceHealth(found, queues)
    delays = {row.id: row.after_ms / 1000 for row in rows}
    told = {(each.app, each.name, each.problem) for each in found}
    for source in _loaded(session, rows, noted):
        # Polls that fail have a place of their own in what `health` says.
        said = [
            f"{each} (fbtasks subscriptions apply)"
            for each in source.problems
            if source.kind != "poll" and (source.app, source.name, each) not in told
        ]
        if source.halted:
            lanes, them = ("1 lane is", "it") if source.halted == 1 else (f"{source.halted} lanes are", "them")
            behind = f", and {source.behind} wait behind {them}" if source.behind else ""
            said.append(f"{lanes} halted since a task failed{behind} (fbtasks retry or discard)")
        if source.state == "orphaned" and source.waiting:
            said.append(f"its code is gone, and {source.waiting} wait (deploy it again, or fbtasks subscriptions drop)")
        if source.state == "active" and source.id is not None and source.lag is not None:
            due_for = source.lag - delays.get(source.id, 0.0)
            if due_for >= 0 and source.waiting != source.behind:
                queues.add(source.queue)
            if min(due_for, open_for.get(source.queue, math.inf)) > max_lag:
                said.append(f"{source.waiting} wait, the oldest for {source.lag:.0f} s")
        found += [SourceProblem(source.name, each) for each in said]
    return SourceHealth(found, queues)


def pause(database: Database, names: Iterable[str], *, silent: bool = False) -> list[str]:
    """Has subscriptions give out nothing; with *silent* they note nothing either.

    Returns the names of those that changed. Raises :class:`ConfigurationError` for names that are not known.
    """
    return _hold(database, names, "silent" if silent else "paused")


def _refuse_silence(rows: Iterable[Row]) -> None:
    for row in rows:
        if row.kind == "poll":
            raise ConfigurationError(
                f"{row.name!r} polls the table {row.source!r}, where rows wait in any case. Pause it without --silent."
            )


def resume(database: Database, names: Iterable[str]) -> list[str]:
    """Has subscriptions go on. Returns the names of those that changed. Raises as :func:`pause` does."""
    return _hold(database, names, None)


def _hold(database: Database, names: Iterable[str], held: Held | None) -> list[str]:
    def work(session: Session) -> list[str]:
        with deploying(session), _owners(session, "change triggers"):
            triggers = ddl.found(session)
            rows = [row for row in _chosen(session, names) if row.state != "dropped" and row.held != held]
            if held == "silent":
                _refuse_silence(rows)
            for row in rows:
                applying.hold(session, Found(row, triggers.get(row.id)), held)
        return list(dict.fromkeys(row.name for row in rows))

    return _with_session(database, work)


def check_names(database: Database, names: Iterable[str]) -> None:
    """Raises :class:`ConfigurationError` for names of subscriptions that are not known."""
    database.use(lambda session: _chosen(session, names))


def drop(database: Database, names: Iterable[str]) -> list[Dropped]:
    """Deletes subscriptions, with what they have noted. A second call ends what the first one could not.

    Raises :class:`ConfigurationError` for names that are not known.
    """

    def work(session: Session) -> list[Dropped]:
        with deploying(session), _owners(session, "drop triggers"):
            triggers, rows = ddl.found(session), _chosen(session, names)
            for row in rows:
                if row.state != "dropped":
                    applying.begin_drop(session, Found(row, triggers.get(row.id)))
            left = applying.finish(session)
        return [_dropped(row, left.get(row.id)) for row in rows]

    return _with_session(database, work)


def _dropped(row: Row, left: applying.Remains | None) -> Dropped:
    if left is None:
        return Dropped(row.id, row.name, True, [], False)
    return Dropped(row.id, row.name, False, left.connections, left.tasks)


def _chosen(session: Session, names: Iterable[str]) -> list[Row]:
    """The subscriptions that *names* mean, which are names of tasks, or ids."""
    rows = subscriptions.read(session)
    found: dict[int, Row] = {}
    for name in names:
        meant = [row for row in rows if name in (row.name, str(row.id))]
        if not meant:
            known = {row.name for row in rows}
            hint = did_you_mean(name, known) or f" Known: {', '.join(sorted(known)) or 'none'}."
            raise ConfigurationError(f"unknown subscription {name!r}.{hint}")
        found.update((row.id, row) for row in meant)
    return list(found.values())


@contextmanager
def _owners(session: Session, what: str) -> Iterator[None]:
    """For the block, which only some may do: the error for others names these."""
    try:
        yield
    except AuthenticationError as error:
        raise applying.refused(session, what, error) from error


def _with_session(database: Database, work: Callable[[Session], T]) -> T:
    with database.session() as session:
        return work(session)
