"""Chords of Celery, by names as they are kept: the parts that have ended, and which of them goes on to the body."""

from __future__ import annotations

from dataclasses import dataclass

from fbtasks.contrib.celery.store.keyvalues import columns, milliseconds
from fbtasks.firebird.session import Transaction


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a chord that has ended."""

    task_id: str
    """The id as it is kept: see ``names.key``."""
    index: int | None
    """Its place in the header; None: it was added later."""
    value: bytes


@dataclass(frozen=True, slots=True)
class Complete:
    """A chord whose parts have all ended, in the hands of the worker that is to send the body."""

    id: int
    """To be named at its end: a chord that begins anew has another one."""
    parts: tuple[Part, ...]
    shape: bytes | None
    """How they are nested, as it was told at the beginning."""


def begin(transaction: Transaction, name: str, shape: bytes | None, expires: float | None) -> int:
    """Notes that a chord begins, or begins anew. Returns its number."""
    return int(transaction.call("FBTASKS_CELERY_API.CHORD_BEGIN", name, milliseconds(expires), shape))


def ended(
    transaction: Transaction, name: str, part: Part, *, final: bool, expires: float | None
) -> tuple[bool, Complete | None]:
    """Counts a part that has ended, with success when *final*; each once.

    Returns whether there is such a chord, and the whole of it to the caller that is to send the body: again when it
    comes again before :func:`end`.
    """
    number, ready, shape = transaction.call(
        "FBTASKS_CELERY.CHORD_PART", name, part.task_id, part.index, int(final), milliseconds(expires),
        *columns(part.value),
    )  # fmt: skip
    if not ready:
        return number is not None, None
    parts = tuple(
        Part(task_id, index, bytes(data if short is None else short))
        for task_id, index, short, data in transaction.rows("FBTASKS_CELERY.CHORD_PARTS", number)
    )
    return True, Complete(number, parts, None if shape is None else bytes(shape))
