"""Subscriptions in dashboards: what waits for each, which lanes stand still, and what a task was made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final

from fbtasks.errors import SerializationError
from fbtasks.features.sources import managing as service
from fbtasks.features.sources.feeds import Feed
from fbtasks.features.sources.kinds import changes, events, rows
from fbtasks.features.sources.operations import SourceRow, list_sources, why_unhandled
from fbtasks.features.sources.runs import pieces
from fbtasks.features.sources.store import subscriptions
from fbtasks.features.sources.store.subscriptions import MANY, Backlog
from fbtasks.queue import results
from fbtasks.sheet import MOST, SHOWN, Act, Detail, Line, Private, Ref, Sheet, TaskRef, behind, counted
from fbtasks.system.showing import CUT, brief, shorten
from fbtasks.tasks.formats import load_json

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session

_MEMBERS: Final = 10
"""Changes of a task that are shown."""
_LONGEST: Final = 200
"""Characters of one of them."""


def _each(change: Callable[..., list[str]], done: str, otherwise: str, app: FBTasks, key: str, _: object) -> str:
    names = change(app.database, [key])
    return f"{', '.join(names) or key}: {done if names else otherwise}."


class SourceSheet(Sheet):
    """Subscriptions of all apps, those that are not deployed, and events without a handler."""

    name = "sources"
    title = "Sources"
    empty = "No task is fed by the database."
    actions: Mapping[str, Act] = {
        "pause": Act(label="Pause", do=partial(_each, service.pause, "nothing is given out", "paused already")),
        "resume": Act(label="Resume", do=partial(_each, service.resume, "resumed", "not paused")),
    }

    def __init__(self, feeds: Callable[[], Collection[Feed]]) -> None:
        """*feeds*: what the code of the app says."""
        self._feeds = feeds

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the subscriptions."""
        found = self._all(session)
        waiting, backlogs = subscriptions.waiting(session, MOST + 1), subscriptions.backlogs(session)
        return [_line(key, found[key], waiting, backlogs) for key in behind([*found], after, most)]

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns what the code says of a subscription, what is wrong with it, and its lanes that stand still."""
        row = self._all(session).get(key)
        if row is None:
            return None
        waiting, backlogs = subscriptions.waiting(session, MOST + 1), subscriptions.backlogs(session)
        halted = [] if row.id is None else subscriptions.halted(session, row.id, SHOWN, MANY + 1)
        lanes = [
            {
                "Failed task": TaskRef(each.task),
                "First": next(_members(session, each.task, row.kind, row.source), None),
                "Failed": each.since,
                "Waiting": counted(each.waiting, MANY),
            }
            for each in halted
        ]
        said = next((each.definition for each in subscriptions.read(session) if each.id == row.id), "{}")
        facts = {
            "App": row.app or None,
            "Order": row.order,
            "Options": _options(said),
            "Deployed": row.active_since,
            "Version": row.version,
        }
        return Detail(line=_line(key, row, waiting, backlogs), facts=facts, tables={"Lanes that stand still": lanes})

    def _all(self, session: Session) -> dict[str, SourceRow]:
        """Returns all of them by their keys, in the order of the list."""
        found = list_sources(session, self._feeds())
        for each in subscriptions.unhandled_events(session):
            problems = [why_unhandled(each.since)]
            found.append(SourceRow(kind="event", source=each.event, state="unhandled", problems=problems))
        found.sort(key=lambda row: (row.name, row.source, row.id or 0))
        return {f"{row.state}:{row.name or row.source}" if row.id is None else str(row.id): row for row in found}

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns the subscription that a task comes from, and of which changes, events or rows it was made."""
        for number, name, kind, source in session.read("source_of_task", task, task):
            made = list(islice(_members(session, task, kind, source), _MEMBERS))
            return {"Source": Ref(self.name, str(number), f"{kind} of {source} for {name}"), "Made of": made}
        return {}


def _line(key: str, row: SourceRow, waiting: Mapping[int, int], backlogs: Mapping[int, Backlog]) -> Line:
    backlog = backlogs.get(row.id or 0)
    wrong = list(row.problems)
    if backlog is not None and backlog.halted:
        wrong.append("a lane stands still since a task failed")
    return Line(
        key=key,
        cells={
            "Task": Ref("sources", key, row.name or "no handler"),
            "Kind": row.kind,
            "Source": row.source,
            "Queue": row.queue or None,
            "State": f"{row.state} (ends)" if row.ends else row.state,
            # The rows of a polled table that wait are not counted.
            "Waiting": None if row.id is None or row.kind == "poll" else counted(waiting.get(row.id, 0), MOST),
            "Lag": None if backlog is None or backlog.lag is None else timedelta(seconds=round(backlog.lag)),
            "Halted lanes": None if backlog is None else counted(backlog.halted, MANY) or None,
        },
        wrong=_problem(row, "; ".join(each.rstrip(".") for each in wrong)),
        actions={"active": ["pause"], "paused": ["resume"], "silent": ["resume"]}.get(row.state, []),
    )


def _problem(row: SourceRow, text: str) -> str | Private:
    """Returns what is wrong. Why a poll fails may name a row."""
    return Private(text) if row.kind == "poll" and text else text


def _options(definition: str) -> str:
    """Returns the options that the code gives, as it writes them."""
    said = json.loads(definition)
    options = {**said.get("source", {}), **said.get("delivery", {})}
    return ", ".join(f"{name}={value!r}" for name, value in options.items() if value)


def _members(session: Session, task: int, kind: str, source: str) -> Iterator[Private]:
    """Yields in words what a task was made of."""
    call = results.call_of(session, task)
    try:
        for piece in pieces(b"" if call is None or call[1] is None else call[1]):
            yield Private(shorten(_in_words(kind, source, load_json(piece.encode())), _LONGEST, CUT))
    except (SerializationError, ValueError, RecursionError) as error:
        yield Private(f"it cannot be read: {brief(error)}")


def _in_words(kind: str, source: str, member: object) -> str:
    if kind == "event":
        event = events.read(member)
        return f"event {event.name}" + ("" if event.order_key is None else f" ({event.order_key})")
    if kind == "poll":
        return f"row of {source}: {_key(rows.read(source, member).key)}"
    change = changes.read(member)
    return f"{change.op} of {source}: {_key(change.key)}"


def _key(key: Mapping[str, object]) -> str:
    return ", ".join(f"{column}={value!r}" for column, value in key.items()) or "without a key"
