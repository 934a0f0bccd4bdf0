"""Looking at subscriptions: which there are, what each has, and what is wrong with them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.feature import Asked, Problem, Told
from fbtasks.features.sources.deploy.applying import undeployed
from fbtasks.features.sources.deploy.comparing import Found, trigger_problems
from fbtasks.features.sources.feeds import Feed, change_source, digest
from fbtasks.features.sources.store import ddl, polling, subscriptions, triggers
from fbtasks.features.sources.store.capture import describe as describe_capture
from fbtasks.features.sources.store.ddl import Connection
from fbtasks.features.sources.store.subscriptions import KEPT, MANY, Backlog, Load, Row
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.firebird.session import Session
from fbtasks.queue.holds import Hold, gate, let_in
from fbtasks.queue.register import processes
from fbtasks.system.showing import command_line, count


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """A subscription as the database has it."""

    id: int | None = None
    """None: the database has none. It is a definition of the code alone, or an event that has no handler."""
    name: str = ""
    """That of the task; empty where an event has none, as are its app and queue."""
    app: str = ""
    kind: str
    source: str
    queue: str = ""
    priority: int | None = None
    order: str | None = None
    state: str
    """That of its row, "undeployed", or "unhandled" for an event that has no handler."""
    ends: bool = False
    """Whether another one has taken its place: it goes when what it has is done."""
    version: int | None = None
    active_since: datetime | None = None
    problems: list[str]
    """What is wrong with its trigger, why its table cannot be polled, and how the code has it in another way."""


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


def list_sources(session: Session, feeds: Collection[Feed] = ()) -> list[SourceRow]:
    """Returns all subscriptions, and what is wrong with them; and which of *feeds*, an app's, are not deployed."""
    return [SourceRow(**facts) for facts in _facts(session, feeds)]


def older_writers(session: Session) -> list[Connection]:
    """Returns the connections that are older than a trigger: what they prepared before goes on without it."""
    return ddl.older_writers(session, [row for row in subscriptions.read(session) if row.kind == "change"])


_NOTHING: Final = Load(0, 0, None, 0, 0, 0, 0, 0, 0)


def inspect_sources(session: Session, feeds: Collection[Feed] = ()) -> list[LoadedSource]:
    """Returns all subscriptions as :func:`list_sources` does, with their changes and tasks counted.

    With them the events that are kept because they have no handler.
    """
    loads, found = subscriptions.loads(session), []
    for facts in _facts(session, feeds):
        load = loads.get(facts.get("id", 0), _NOTHING)._asdict()
        if facts["kind"] == "poll" and "id" in facts:
            load["waiting"] = None  # the log has nothing of the rows of a polled table
        found.append(LoadedSource(**facts, **load))
    for each in subscriptions.unhandled_events(session, counted=True):
        load = _NOTHING._replace(waiting=each.raised, lag=each.lag)._asdict()
        why = [why_unhandled(each.since)]
        found.append(LoadedSource(kind="event", source=each.event, state="unhandled", problems=why, **load))
    return found


def _facts(session: Session, feeds: Collection[Feed]) -> Iterator[dict[str, Any]]:
    """Yields the fields of a :class:`SourceRow` for each subscription, and for each of *feeds* without one."""
    rows, stale = subscriptions.read(session), _undeployed(session, feeds)
    wrong = _wrong(session, rows, stale)
    shared = {each.name for each in fields(SourceRow)} & set(Row._fields)
    for row in rows:
        facts = {name: getattr(row, name) for name in shared}
        yield facts | {"order": row.ordering, "active_since": row.active_time, "problems": wrong[row.id]}
    live = {(row.app, row.name) for row in rows if row.is_live}
    for each in feeds:
        if (key := (each.app, each.name)) in stale and key not in live:
            facts = {"app": each.app, "name": each.name, "kind": each.source.kind, "source": each.source.name}
            yield facts | {"queue": each.queue, "state": "undeployed", "problems": [stale[key]]}


def _undeployed(session: Session, feeds: Collection[Feed]) -> dict[tuple[str, str], str]:
    """Returns why *feeds*, an app's, are not in the database as they are, by the names of app and task."""
    app = next((each.app for each in feeds), "")
    return {(app, name): problem for name, problem in undeployed(session, app, feeds).items()}


def why_unhandled(since: datetime) -> str:
    """Returns why an event is kept that was raised since then."""
    first, last = (f"{moment:%Y-%m-%d %H:%M} UTC" for moment in (since, since + KEPT))
    return f"no handler is registered for it; what was raised since {first} is kept for one, and the first until {last}"


def _wrong(session: Session, rows: Iterable[Row], stale: Mapping[tuple[str, str], str]) -> dict[int, list[str]]:
    """Returns what is wrong with subscriptions, whatever waits for them, by their ids."""
    triggers, catalog, found = ddl.found(session), Catalog(session), {}
    failures = {each.id: each.error for each in polling.failing(session)}
    for row in rows:
        problems = found[row.id] = [failures[row.id]] if row.id in failures else []
        if row.is_live and (row.app, row.name) in stale:
            problems.append(stale[row.app, row.name])
        elif row.is_live and row.kind == "change":
            problems += _problems(catalog, Found(row, triggers.get(row.id)))
    return found


def _problems(catalog: Catalog, found: Found) -> list[str]:
    """Returns what is wrong with the trigger of a subscription, its table included."""
    row = found.row
    try:
        capture = describe_capture(catalog, change_source(row.definition))
    except TaskDefinitionError as error:
        return [str(error).rstrip(".")]
    said = trigger_problems(found)
    if not said and digest(triggers.trigger(row.id, row.name, row.queue, capture)) != row.text_hash:
        said.append("the table has changed, or fbtasks, since its trigger was made")
    return said


def find_problems(session: Session, asked: Asked, feeds: Collection[Feed]) -> Iterator[Problem]:
    """Returns what is wrong with subscriptions, and notes which queues are waited for.

    *feeds* are those of the app that asks; the database is to have them. An event may be kept for the asked lag without
    a handler. Of a subscription that is active, changes may wait for so long, and before that for as long as the
    definition has them wait. The time before a window of their queue opens does not count.
    """
    stale, rows = _undeployed(session, feeds), subscriptions.read(session)
    for failing in polling.failing(session):
        what = f"polling {failing.table} for {failing.task} fails"
        yield Problem(failing.error, what, id="polling", private=failing.error)
    for (app, name), problem in stale.items():
        lacks = f"{problem.rstrip('.')} (fbtasks subscriptions apply)"
        yield Problem(lacks, f"subscription {name} (app {app})", id="undeployed")
    for event in subscriptions.unhandled_events(session):
        if event.lag > asked.max_lag:
            yield Problem(why_unhandled(event.since), f"event {event.event}", id="event-unhandled")
    if not rows:
        return
    wrong, backlogs = _wrong(session, rows, stale), subscriptions.backlogs(session)
    for row in rows:
        # Polls that fail, and what is not deployed, have a place of their own, above.
        told = row.kind == "poll" or (row.app, row.name) in stale
        said = [] if told else [f"{each} (fbtasks subscriptions apply)" for each in wrong[row.id]]
        if (backlog := backlogs.get(row.id)) is not None:
            said += _standing_still(row, backlog)
            if row.state == "active" and backlog.lag is not None:
                due_for = backlog.lag - row.after_ms / 1000
                if due_for >= 0 and backlog.goes_on:
                    asked.waiting.add(row.queue)
                if min(due_for, _open_for(asked, row.queue)) > asked.max_lag:
                    said.append(f"{row.kind}s wait, the oldest for {backlog.lag:.0f} s")
        yield from (Problem(each, f"subscription {row.name}", id="subscription") for each in said)
    if found := older_writers(session):
        from fbtasks.features.sources.showing import END_THEM, older

        yield Problem(older(found, END_THEM, processes.workers(session)), is_wrong=False, id="older-writers")


def _open_for(asked: Asked, name: str) -> float:
    """Returns for how many seconds a queue with a window has been open; infinite for other queues."""
    queue = asked.queues.get(name)
    if queue is None or not queue.is_bounded_in_time:
        return math.inf
    return (asked.now - queue.opens).total_seconds() if queue.is_open and queue.opens else 0.0


def _standing_still(row: Row, backlog: Backlog) -> list[str]:
    """Returns sentences on halted lanes, and on changes that wait for code that is gone."""
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
        return Told([f"{what}. Discard that task, or put it back: {command_line('fbtasks retry {}', found.holder)}"])
    inside = let_in(session, lane)
    looks = [(number, command_line("fbtasks inspect task {}", number)) for number in inside]
    return Told([f"task {number} of its lane has not ended: {look}" for number, look in looks])
