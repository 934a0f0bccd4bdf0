"""Looking at subscriptions: which there are, what each has, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.feature import Asked, Problem, Told
from fbtasks.features.sources.deploy.comparing import Found, trigger_problems
from fbtasks.features.sources.feeds import change_source, digest
from fbtasks.features.sources.store import ddl, polling, subscriptions, triggers
from fbtasks.features.sources.store.capture import Capture, resolve
from fbtasks.features.sources.store.ddl import Connection
from fbtasks.features.sources.store.subscriptions import KEPT, MANY, Backlog, Load, Row, Undeployed
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.firebird.session import Session
from fbtasks.queue.holds import Hold, gate, let_in
from fbtasks.system.showing import count


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


def list_sources(session: Session) -> list[SourceRow]:
    """Returns all subscriptions, and what is wrong with their triggers or tables; and what is not deployed."""
    return [SourceRow(**facts) for facts in _facts(session)]


def older_writers(session: Session) -> list[Connection]:
    """Returns the connections that are older than a trigger: what they prepared before goes on without it."""
    moments = [row.active_time for row in subscriptions.read(session) if row.kind == "change" and row.active_time]
    return ddl.older_connections(session, max(moments)) if moments else []


_NOTHING: Final = Load(0, 0, None, 0, 0, 0, 0, 0, 0)


def inspect_sources(session: Session) -> list[LoadedSource]:
    """Returns the same, with what each has; and the events that are kept since they have no handler."""
    loads, found = subscriptions.loads(session), []
    for facts in _facts(session):
        load = loads.get(facts["id"], _NOTHING)._asdict()
        if facts["kind"] == "poll" and facts["id"] is not None:
            load["waiting"] = None  # the log has nothing of the rows of a polled table
        found.append(LoadedSource(**facts, **load))
    for each in subscriptions.unhandled_events(session):
        load = _NOTHING._replace(waiting=each.raised, lag=each.lag)._asdict()
        facts = _without_row(name="", app="", queue="", kind="event", source=each.event, state="unhandled")
        found.append(LoadedSource(**facts | {"problems": [_why_unhandled(each.since)]}, **load))
    return found


def _facts(session: Session) -> Iterator[dict[str, Any]]:
    """The fields of a :class:`SourceRow` for each subscription, and for each definition of workers without one."""
    rows, noted = subscriptions.read(session), subscriptions.undeployed(session)
    wrong = _wrong(session, rows, noted)
    shared = {each.name for each in fields(SourceRow)} & set(Row._fields)
    for row in rows:
        facts = {name: getattr(row, name) for name in shared}
        yield facts | {"order": row.ordering, "active_since": row.active_time, "problems": wrong[row.id]}
    live = {(row.app, row.name) for row in rows if row.is_live}
    missing: dict[tuple[str, str], dict[str, Any]] = {}
    for app, name, kind, source, queue, problem in noted:
        if (app, name) not in live:
            facts = _without_row(app=app, name=name, kind=kind, source=source, queue=queue, state="undeployed")
            missing.setdefault((app, name), facts)["problems"].append(problem)
    yield from missing.values()


def _without_row(**facts: str) -> dict[str, Any]:
    """The fields of a :class:`SourceRow` of which the database has no row: these *facts*, and no problem yet."""
    return {**dict.fromkeys(field.name for field in fields(SourceRow)), **facts, "ends": False, "problems": []}


def _why_unhandled(since: datetime) -> str:
    first, last = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (since, since + KEPT))
    return f"no handler is registered for it; what was raised since {first} is kept for one, and the first until {last}"


def _wrong(session: Session, rows: Iterable[Row], noted: Iterable[Undeployed]) -> dict[int, list[str]]:
    """What is wrong with subscriptions, whatever waits for them, by their ids."""
    triggers, catalog, found = ddl.found(session), Catalog(session), {}
    failures = {each.id: each.error for each in polling.failing(session)}
    for row in rows:
        problems = found[row.id] = [failures[row.id]] if row.id in failures else []
        if row.is_live and row.kind == "change":
            problems += _problems(catalog, Found(row, triggers.get(row.id)))
        if row.is_live:
            problems += [each.problem for each in noted if (each.app, each.name) == (row.app, row.name)]
    return found


def _problems(catalog: Catalog, found: Found) -> list[str]:
    """What is wrong with the trigger of a subscription, its table included."""
    row = found.row
    try:
        text = triggers.trigger(row.id, row.name, row.queue, capture(catalog, row))
    except TaskDefinitionError as error:
        return [str(error).rstrip(".")]
    said = trigger_problems(found)
    if not said and digest(text) != row.text_hash:
        said.append("the table has changed, or fbtasks, since its trigger was made")
    return said


def find_problems(session: Session, asked: Asked) -> Iterator[Problem]:
    """Returns what is wrong with subscriptions, and notes which queues are waited for.

    An event may be kept for the asked lag without a handler. Of a subscription that is active, changes may wait for so
    long, and before that for as long as the definition has them wait. The time before a window of their queue opens
    does not count.
    """
    noted, rows = subscriptions.undeployed(session), subscriptions.read(session)
    for failing in polling.failing(session):
        yield Problem(failing.error, f"polling {failing.table} for {failing.task} fails")
    for each in noted:
        yield Problem(each.problem, f"subscription {each.name} (app {each.app})")
    for event in subscriptions.unhandled_since(session):
        if event.lag > asked.max_lag:
            yield Problem(_why_unhandled(event.since), f"event {event.event}")
    if not rows:
        return
    told = {(each.app, each.name, each.problem) for each in noted}
    wrong, backlogs = _wrong(session, rows, noted), subscriptions.backlogs(session)
    for row in rows:
        # Polls that fail have a place of their own, above.
        said = [
            f"{each} (fbtasks subscriptions apply)"
            for each in (wrong[row.id] if row.kind != "poll" else [])
            if (row.app, row.name, each) not in told
        ]
        if (backlog := backlogs.get(row.id)) is not None:
            said += _standing_still(row, backlog)
            if row.state == "active" and backlog.lag is not None:
                due_for = backlog.lag - row.after_ms / 1000
                if due_for >= 0 and backlog.goes_on:
                    asked.waiting.add(row.queue)
                if min(due_for, _open_for(asked, row.queue)) > asked.max_lag:
                    said.append(f"{row.kind}s wait, the oldest for {backlog.lag:.0f} s")
        yield from (Problem(each, f"subscription {row.name}") for each in said)
    if found := older_writers(session):
        from fbtasks.features.sources.showing import END_THEM, older

        yield Problem(older(found, END_THEM), is_wrong=False)


def _open_for(asked: Asked, name: str) -> float:
    """Returns for how many seconds a queue with a window has been open; infinite for other queues."""
    queue = asked.queues.get(name)
    if queue is None or not queue.is_bounded_in_time:
        return math.inf
    return (asked.now - queue.opens).total_seconds() if queue.is_open and queue.opens else 0.0


def _standing_still(row: Row, backlog: Backlog) -> list[str]:
    """What is said of halted lanes, and of what waits for code that is gone."""
    said = []
    if backlog.halted:
        are, them = ("is", "it") if backlog.halted == 1 else ("are", "them")
        many = "more than " if backlog.halted > MANY else ""
        behind = f", and more waits behind {them}" if backlog.behind else ""
        lanes = count(min(backlog.halted, MANY), "lane")
        said.append(f"{many}{lanes} {are} halted since a task failed{behind} (fbtasks retry or discard)")
    if row.state == "orphaned" and backlog.lag is not None:
        said.append(f"its code is gone, and {row.kind}s wait (deploy it again, or fbtasks subscriptions drop)")
    return said


def describe(session: Session, task: int, lane: Hold) -> Told:
    """Returns which tasks of its lane a held one waits for."""
    found = gate(session, lane)
    if found.halted and found.holder != task:
        what = f"its lane stands still since task {found.holder} failed"
        return Told([f"{what}. Discard that task, or put it back: fbtasks retry {found.holder}"])
    inside = let_in(session, lane)
    return Told([f"task {each} of its lane has not ended: fbtasks inspect task {each}" for each in inside])


def capture(catalog: Catalog, row: Row) -> Capture:
    """What the trigger of a subscription is made from, with its table as it is now."""
    source = change_source(row.definition)
    return resolve(source, catalog.describe(source.table))
