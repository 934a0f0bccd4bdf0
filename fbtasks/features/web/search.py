"""Pages of the tasks that a line asks for."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.features.web.lanes import LIVE, Key, Lanes, from_ticks
from fbtasks.features.web.query import Query, moment
from fbtasks.features.web.query import parse as parse
from fbtasks.features.web.showing import Arguments
from fbtasks.firebird.session import Session
from fbtasks.queue import holds, results
from fbtasks.queue.operations.queues import described
from fbtasks.queue.operations.waiting import hold_names
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload

LOOKS: Final = 10_000
"""Tasks that a page looks at at the most."""
READS: Final = 2_000
"""The same where it reads texts of errors, or arguments."""
_INLINE: Final = 2_000
"""Bytes of a text that arguments are compared with."""
_TURNS: Final = 4
"""So often a page looks on that has found less than it may hold."""
_NUMBER: Final = re.compile(r"-?\d{1,18}")
_PATTERN: Final = str.maketrans({"!": "!!", "%": "!%", "_": "!_", "*": "%"})
_WAITS_IN: Final = "EXISTS(SELECT 1 FROM QUEUE_HOLD H WHERE H.TASK_ID = T.ID AND H.SORT_KEY <= 10000 AND {})"
_NAME_IS_PAUSED: Final = "EXISTS(SELECT 1 FROM QUEUE_RULE R WHERE R.NAME = T.NAME AND R.PAUSED = 1)"
_QUEUE_IS_PAUSED: Final = "EXISTS(SELECT 1 FROM QUEUE_POLICY P WHERE P.QUEUE = T.QUEUE AND P.PAUSED = 1)"
_REASONS: Final[Mapping[str, str]] = {
    "limit": _WAITS_IN.format("H.STEP >= 0"),
    "key": _WAITS_IN.format("(H.LANE <> 0 OR H.STEP < 0)"),
    "paused": f"({_QUEUE_IS_PAUSED} OR {_NAME_IS_PAUSED})",
    "unknown": f"NOT {_NAME_IS_PAUSED}",
}
"""What is true for a task that is kept so. Other reasons are those of its queue, or of its state."""
_OF_WORKER: Final = "EXISTS(SELECT 1 FROM QUEUE_PROCESS P WHERE P.ID = T.WORKER_ID AND {})"


@dataclass(frozen=True, slots=True)
class Page:
    """Some tasks of a list."""

    rows: list[TaskRow]
    next: str | None
    """The cursor of the next page; None: there is none."""
    searched_to: datetime | None
    """How far it has looked, where the bound has ended that, in a list that is ordered by time; else None."""
    more: bool
    """Whether the next page is known to have a task."""


def page(
    database: Database, session: Session, query: Query, arguments: Arguments, cursor: str | None = None, most: int = 50
) -> Page:
    """Returns up to *most* tasks that *query* asks for, behind the *cursor* of another page.

    What *arguments* does not show of a task does not find it.

    Finished tasks come newest first, scheduled ones as they are due, others by priority and time. Looks at 10,000 tasks
    at the most, at 2,000 where it reads errors or arguments. Raises :class:`ConfigurationError` for what is no cursor.
    """
    if query.id:
        number = results.find_id(session, query.id)
        row = None if number is None else results.find(session, results.answering(session, number))
        return Page(_with_waits(database, session, [] if row is None else [row]), None, None, more=False)
    lanes = Lanes(session, query.states, most)
    _ask(database, session, query, lanes)
    at = None if cursor is None else _key(cursor, lanes)
    bound = READS if query.error or query.words or query.arg else LOOKS
    rows: list[TaskRow] = []
    known: set[int] = set()
    last = None
    for _ in range(_TURNS):
        seen = lanes.look(at, bound)
        for key, row in _rows(session, seen.found, most, live=lanes.order.live):
            if row.id in known or not _is_seen(session, row, query, arguments):
                continue  # it may have moved behind those that were looked at before
            known.add(row.id)
            if len(rows) == most:
                return Page(_with_waits(database, session, rows), _text(last), None, more=True)
            rows.append(row)
            last = key
        at, bound = seen.until, bound - seen.looked
        if at is None or len(rows) == most or bound <= 0:
            break
    bounded = at is not None and len(rows) < most and lanes.order is not LIVE
    searched_to = from_ticks(at[-2]).replace(tzinfo=UTC) if at is not None and bounded else None
    return Page(_with_waits(database, session, rows), _text(at), searched_to, more=at is not None and seen.beyond)


def _key(cursor: str, lanes: Lanes) -> Key:
    parts = cursor.split(".")
    if len(parts) != len(lanes.order.columns) or not all(map(_NUMBER.fullmatch, parts)):
        raise ConfigurationError(f"{cursor!r:.80} is no page of this list: begin with the first one.")
    return tuple(map(int, parts))


def _text(key: Key | None) -> str | None:
    return None if key is None else ".".join(map(str, key))


def _ask(database: Database, session: Session, query: Query, lanes: Lanes) -> None:
    """Has *lanes* look for what *query* says."""
    live = lanes.order.live
    error = f"({'' if live else 'T.ERROR_TYPE CONTAINING {0} OR '}T.ERROR_MSG CONTAINING {{0}})"
    if query.why in _REASONS:
        lanes.match(_REASONS[query.why])
    elif query.why == "closed":
        rows = described(database, session, ()).values()
        lanes.in_queues(row.queue for row in rows if not (row.is_open or row.paused))
    elif query.why == "unserved":
        lanes.in_queues(processes.serving(processes.workers(session)), others=True)
    if query.queue:
        lanes.in_queues([query.queue])
    if query.name:
        lanes.match(_like(lanes, "T.NAME", query.name))
    if query.worker:
        named = _like(lanes, "P.NAME" if live else "T.WORKER", query.worker)
        lanes.match(_OF_WORKER.format(named) if live else named)
    if query.error:
        lanes.match(error.format(lanes.param(query.error)))
    for word in query.words:
        lanes.match(f"(T.NAME CONTAINING {{0}} OR {error})".format(lanes.param(word)))
    for _, value in query.arg:  # whose text stands in the payload as it is, or escaped
        forms = {value.encode("utf-8", "replace"), json.dumps(value)[1:-1].encode()}
        if max(map(len, forms)) > _INLINE:
            raise ConfigurationError(f"{value!r:.80} is too long to be looked for: leave out some of it.")
        tests = (f"POSITION({lanes.param(each, 'QUEUE_INLINE')} IN T.PAYLOAD) > 0" for each in sorted(forms))
        lanes.match(f"T.CONTENT_TYPE = _ASCII '{JSON_TYPE}' AND (T.PAYLOAD IS NULL OR {' OR '.join(tests)})")
    if query.since or query.until:
        now = results.now(session)
        for compare, text in ((">=", query.since), ("<=", query.until)):
            if (time := moment(text, now)) is not None:
                lanes.in_time(compare, time)


def _like(lanes: Lanes, column: str, text: str) -> str:
    if "*" not in text:
        return f"{column} = {lanes.param(text)}"
    return f"{column} LIKE {lanes.param(text.translate(_PATTERN))} ESCAPE _ASCII '!'"


def _rows(session: Session, found: Sequence[Key], most: int, *, live: bool) -> Iterator[tuple[Key, TaskRow]]:
    """Yields those that are still there, and reads no more than are asked for."""
    for at in range(0, len(found), most + 1):
        some = found[at : at + most + 1]
        rows = results.find_all(session, [key[-1] for key in some], live=live)
        yield from ((key, rows[key[-1]]) for key in some if key[-1] in rows)


def _is_seen(session: Session, row: TaskRow, query: Query, arguments: Arguments) -> bool:
    """Whether readers see what is looked for. The database has compared what they do not see, too."""
    told = arguments.told(row.error_msg)
    if told != row.error_msg:
        seen = f"{row.error_type or ''}\n{told}".casefold()
        name = row.name.casefold()
        if query.error.casefold() not in seen or not all(each.casefold() in f"{name}\n{seen}" for each in query.words):
            return False
    if not query.arg:
        return True
    call = results.call_of(session, row.id)
    values = arguments.values(None if call is None or call[1] is None else Payload(call[0], call[1]), row.name)
    return bool(values) and all(_value_at(values, path) == value for path, value in query.arg)


def _value_at(values: Any, path: str) -> str:
    """Returns what is inside of *values*, as people write it."""
    for part in path.split("."):
        if isinstance(values, list):
            values = values[int(part)] if part.isdecimal() and int(part) < len(values) else None
        else:
            values = values.get(part) if isinstance(values, dict) else None
    if isinstance(values, dict) and "__value__" in values:  # of a type that JSON does not have
        values = values["__value__"]
    return values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)


def _with_waits(database: Database, session: Session, rows: list[TaskRow]) -> list[TaskRow]:
    held = [row.id for row in rows if row.state is State.HELD]
    found = holds.holds(session, held) if held else {}
    names = hold_names(database, session, {hold for some in found.values() for hold in some})
    return [replace(row, waits_for=[names[hold] for hold in found.get(row.id, ())]) for row in rows]
