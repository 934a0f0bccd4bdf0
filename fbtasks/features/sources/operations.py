"""Looking at subscriptions: which there are, what each has, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final, NamedTuple

from fbtasks.errors import TaskDefinitionError
from fbtasks.feature import Asked, Problem, Told
from fbtasks.features.sources.deploy.comparing import Found, trigger_problems
from fbtasks.features.sources.feeds import change_source, digest
from fbtasks.features.sources.store import ddl, polling, subscriptions, triggers, undeployed
from fbtasks.features.sources.store.capture import Capture, resolve
from fbtasks.features.sources.store.ddl import Connection
from fbtasks.features.sources.store.subscriptions import KEPT, MANY, Backlog, Load, Row, Unhandled
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.features.sources.store.undeployed import Undeployed
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
    """Returns all subscriptions, and what is wrong with their triggers or tables."""
    known = _Known.read(session, undeployed.read(session))
    rows = subscriptions.read(session)
    found = [SourceRow(**_facts(row, known)) for row in rows]
    return found + [SourceRow(**each) for each in _missing(rows, known.undeployed)]


def older_writers(session: Session) -> list[Connection]:
    """Returns the connections that are older than a trigger: what they prepared before goes on without it."""
    moments = [row.active_time for row in subscriptions.read(session) if row.kind == "change" and row.active_time]
    return ddl.older_connections(session, max(moments)) if moments else []


def inspect_sources(session: Session) -> list[LoadedSource]:
    """Returns the same, with what each has; and the events that are kept since they have no handler."""
    loaded = _loaded(session, subscriptions.read(session), undeployed.read(session))
    return loaded + [_unhandled(each) for each in subscriptions.unhandled_events(session)]


_NOTHING: Final = Load(0, 0, None, 0, 0, 0, 0, 0, 0)


def _loaded(session: Session, rows: Iterable[Row], noted: list[Undeployed]) -> list[LoadedSource]:
    """Returns the subscriptions of *rows* and what they have, with what workers have *noted* of definitions."""
    known, loads = _Known.read(session, noted), subscriptions.loads(session)
    found = [LoadedSource(**_facts(row, known), **_load(row, loads.get(row.id, _NOTHING))) for row in rows]
    return found + [LoadedSource(**each, **_NOTHING._asdict()) for each in _missing(rows, known.undeployed)]


def _load(row: Row, load: Load) -> dict[str, Any]:
    """What a subscription has; the log has nothing of the rows of a polled table."""
    return load._asdict() | ({"waiting": None} if row.kind == "poll" else {})


def _unhandled(event: Unhandled) -> LoadedSource:
    facts = _without_row(name="", app="", queue="", kind="event", source=event.event, state="unhandled")
    facts["problems"].append(_why_unhandled(event.since))
    return LoadedSource(**facts, **_NOTHING._replace(waiting=event.raised, lag=event.lag)._asdict())


def _why_unhandled(since: datetime) -> str:
    first, last = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (since, since + KEPT))
    return f"no handler is registered for it; what was raised since {first} is kept for one, and the first until {last}"


class _Known(NamedTuple):
    """What is known of all subscriptions beside their rows."""

    triggers: dict[int, ddl.Trigger]
    failures: dict[int, str]
    """Why polls fail, by the numbers of their subscriptions."""
    undeployed: list[Undeployed]
    catalog: Catalog

    @classmethod
    def read(cls, session: Session, noted: list[Undeployed]) -> _Known:
        failures = {each.id: each.error for each in polling.failing(session)}
        return cls(ddl.found(session), failures, noted, Catalog(session))


def _facts(row: Row, known: _Known) -> dict[str, Any]:
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
        "problems": _found_wrong(row, known),
    }


def _found_wrong(row: Row, known: _Known) -> list[str]:
    """What is wrong with a subscription, whatever waits for it."""
    if row.id in known.failures:
        problems = [known.failures[row.id]]
    else:
        problems = _problems(known.catalog, Found(row, known.triggers.get(row.id)))
    if row.is_live:
        problems += [each.problem for each in known.undeployed if (each.app, each.name) == (row.app, row.name)]
    return problems


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


def _problems(catalog: Catalog, found: Found) -> list[str]:
    """What is wrong with the trigger of a subscription, its table included."""
    row = found.row
    if row.kind != "change" or not row.is_live:
        return []
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
    noted, rows = undeployed.read(session), subscriptions.read(session)
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
    known, backlogs = _Known.read(session, noted), subscriptions.backlogs(session)
    for row in rows:
        # Polls that fail have a place of their own, above.
        said = [
            f"{each} (fbtasks subscriptions apply)"
            for each in (_found_wrong(row, known) if row.kind != "poll" else [])
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
