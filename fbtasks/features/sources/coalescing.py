"""Several changes, or events, of one key made into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds.changes import Change
from fbtasks.features.sources.kinds.events import Event
from fbtasks.features.sources.kinds.rows import Row

if TYPE_CHECKING:
    from fbtasks.features.sources.subscription import Occurrence, Source


def key_of(occurrence: Occurrence) -> str:
    """Returns what those have in common that are made into one: the key, or the order key (None is one, too).

    As text, for what was written by hand may not be hashable.
    """
    return repr(occurrence.order_key if isinstance(occurrence, Event) else occurrence.key)


def join(source: Source, parts: Sequence[Occurrence]) -> Occurrence | None:
    """Returns what *parts*, those of one key in their order, come to together; None when that is nothing at all."""
    last = parts[-1]
    if len(parts) == 1 or isinstance(last, Row):
        return last
    count = sum(part.count for part in parts if not isinstance(part, Row))
    if isinstance(last, Event):
        return replace(last, count=count)
    changes = [part for part in parts if isinstance(part, Change)]
    joined = _of_a_row(changes) if isinstance(source, ChangeSource) and source.key is None else _of_many_rows(changes)
    return None if joined is None else replace(joined, count=count)


def _of_a_row(changes: Sequence[Change]) -> Change | None:
    """Returns the net change of the one row that has the key: whether there was one before, and whether there is now.

    An update that changed the key took the row away from the former key ("out"), or brought it to the new one ("in").
    Taken away is not deleted: when the row was there before, the result is an update that is marked "out"; one that
    was brought and has stayed is an update that is marked "in", whose *old* has the row under its former key.
    """
    first, last = changes[0], changes[-1]
    was_there = first.op != "insert" and first.moved != "in"
    is_there = last.op != "delete" and last.moved != "out"
    if was_there and is_there:
        return replace(last, op="update", old=first.old, moved=None)
    if was_there:
        return replace(last, old=first.old)
    if not is_there:
        return None
    return replace(last, op=first.op, old=first.old, moved=first.moved)


def _of_many_rows(changes: Sequence[Change]) -> Change:
    """Returns what says that rows of a key have changed, where several may have it: nothing cancels anything out.

    The op is that of all of them, or else "update".
    """
    first, last = changes[0], changes[-1]
    op = last.op if all(change.op == last.op for change in changes) else "update"
    moved = last.moved if all(change.moved == last.moved for change in changes) else None
    return replace(last, op=op, old=first.old, moved=moved)
