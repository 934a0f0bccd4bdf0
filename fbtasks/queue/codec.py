"""Packed records: many calls, claims or outcomes in one string.

A row or a bound parameter costs the driver some 25 to 50 microseconds in Python, whatever it holds; so records
cross the line as one string, with a header of fixed widths where the database reads and of text where Python
does. The other half of each format is in the procedure named beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.errors import EnqueueError, StatementRefused
from fbtasks.tasks.call import (
    Call,
    Cancelled,
    Claim,
    Crashed,
    Enqueued,
    Failed,
    Finished,
    Gate,
    OnDuplicate,
    Owner,
    Reason,
    Requeue,
    Stale,
    Succeeded,
    When,
)

CHUNK: Final = 32_765
"""The longest string that a procedure takes or returns, in bytes."""
CALLS: Final = 8_190
"""The longest string that FBTASKS_PRODUCER.ENQUEUE_PACKED takes, in bytes: some 75 small calls."""
INLINE: Final = 2_000
"""The longest payload or result that stays in its row, in bytes."""
SHORT: Final = (b"D", Reason.RELEASE.value, Reason.CONTINUE.value)
"""Kinds of outcomes that carry no values."""
GATE: Final = 32
"""Bytes of a gate."""
_MARKS: Final = {None: b"-K", OnDuplicate.MERGE: b"uU", OnDuplicate.FIND: b"lL", OnDuplicate.RAISE: b"rR"}
"""Those of a gate, and of one that is kept while its task waits for another try."""
_MARKS_OF_MERGED: Final = {**_MARKS, OnDuplicate.FIND: _MARKS[OnDuplicate.MERGE]}
_CALL_HEAD: Final = 67
_OUTCOME_HEAD: Final = 54
_LENGTHS: Final = 36
"""Bytes of the fixed fields: of a call, of an outcome, and of an outcome with values."""
_MILLISECOND: Final = timedelta(milliseconds=1)
NO_LIMITS: Final[Mapping[str, Owner]] = MappingProxyType({})


def _when(value: When) -> bytes:
    if value is None:
        return b"-" + b"0" * 15
    if isinstance(value, timedelta):
        return b"R%015d" % (value // _MILLISECOND)
    return b"A%015d" % clock.to_ms(value)


Ends = Mapping[int, tuple[int, int] | None]
"""By priority, how far a queue was read: ``start`` and ``id`` of the last claim. None: to its end, so that nothing was
left but what other transactions held."""


def pack_gates(gates: Iterable[Gate], limits: Mapping[str, Owner], *, finds: bool = False) -> bytes:
    """The gates of a task for FBTASKS_CORE.HOLD_BACK, in the order in which all tasks pass them.

    With *finds* a duplicate of a unique task is looked for.
    """
    marks = _MARKS if finds else _MARKS_OF_MERGED
    found = sorted(((limits[gate.limit], gate) for gate in gates), key=lambda item: (item[0].stage, item[0].id))
    return b"".join(
        b"%c%011d%020d" % (marks[gate.on_duplicate][gate.keeps], limit.id, gate.lane) for limit, gate in found
    )


def pack_call(call: Call, limits: Mapping[str, Owner] = NO_LIMITS, *, finds: bool = False) -> bytes:
    """One record for FBTASKS_PRODUCER.ENQUEUE_PACKED. A payload longer than INLINE is left out: it goes separately.

    *limits* are those whose gates the call has to pass. With *finds* a duplicate of a unique call is looked for, unless
    the caller has given it an id of its own, by which it asks for the result.
    """
    queue, name = call.queue.encode("ascii"), call.name.encode()
    task_id = (call.task_id or "").encode()
    content_type = call.content_type.encode("ascii")
    payload = call.payload if len(call.payload) <= INLINE else b""
    head = b"%b%b%+06d%010d%03d%04d%04d%03d%05d" % (
        _when(call.start), _when(call.expires), call.priority, -1 if call.max_tries is None else call.max_tries,
        len(queue), len(name), len(task_id), len(content_type), len(payload),
    )  # fmt: skip
    if len(head) != _CALL_HEAD:  # a width is the least that a number takes
        raise EnqueueError(
            f"the call of {call.name!r:.80} does not fit its fields: its priority {call.priority}, its max_tries "
            f"{call.max_tries}, its start {call.start}, its expiry {call.expires}, or the length of a name or an id."
        )
    record = b"".join((head, queue, name, task_id, content_type, payload))
    if not call.gates:
        return record
    gates = pack_gates(call.gates, limits, finds=finds and call.task_id is None)
    mark = b"n" if record[:1] == b"-" else record[:1].lower()  # that gates stand at the end
    return b"%b%b%02d%b" % (mark, record[1:], len(gates) // GATE, gates)


def pack_extras(extras: Iterable[tuple[str, bytes]]) -> bytes:
    """The extras of a task for FBTASKS_PRODUCER.PUT_EXTRAS."""
    return b"".join(b"%02d%04d%b%b" % (len(name), len(data), name.encode("ascii"), data) for name, data in extras)


def steps_at(now: datetime) -> bytes:
    """Returns the prefix of records of steps for FBTASKS_PRODUCER.ENQUEUE_PACKED: all have the time *now*."""
    return b"@" + f"{now:%Y-%m-%d %H:%M:%S}.{now.microsecond // 100:04}".encode("ascii")


def unpack_enqueued(packed: bytes) -> tuple[list[Enqueued], int]:
    """The answers of FBTASKS_PRODUCER.ENQUEUE_PACKED, in the order of the calls, and the number of the transaction."""
    answers = [
        Enqueued(int(packed[at : at + 19]), packed[at + 19 : at + 20] == b"1") for at in range(19, len(packed), 20)
    ]
    return answers, int(packed[:19])


def pack_ends(ends: Ends) -> bytes:
    """The marks for FBTASKS_WORKER.CLAIM: how far each priority was read."""
    marks = [b"%6d%20d%20d" % (-each, *(ends[each] or (0, 0))) for each in sorted(ends, reverse=True)]
    return b"".join(marks)


def unpack_claims(claim_id: int, queue: str, packed: bytes) -> Iterator[Claim]:
    """The records of one row of FBTASKS_WORKER.CLAIM."""
    at = 0
    size = len(packed)
    while at < size:
        colon = packed.index(b":", at)
        task, start, len_name, len_type, len_payload, *rest = packed[at:colon].split(b";")
        name_at = colon + 1
        counts: tuple[Any, ...] = 0, 0, 0, None
        tail: tuple[Any, ...] = None, 0, rest[0] == b"1", False, False, (), (), False
        expires = large = None
        if len(rest) > 1:  # something is out of the ordinary, beside that it may have holds
            fields: list[Any] = [int(field) if field else None for field in rest]
            priority, tries, crashes, suspect, most, expires, large, len_id, marks = fields
            counts = priority, tries, crashes, most
            task_id = packed[name_at : name_at + len_id].decode() or None
            name_at += len_id
            tail = task_id, suspect, bool(marks & 1), bool(marks & 2), bool(marks & 4), (), (), bool(marks & 8)
        type_at = name_at + int(len_name)
        payload_at = type_at + int(len_type)
        at = payload_at + int(len_payload)
        yield Claim._make((
            int(task), claim_id, packed[name_at:type_at].decode(), queue, *counts, int(start), expires,
            packed[type_at:payload_at].decode("ascii"), None if large else packed[payload_at:at], *tail,
        ))  # fmt: skip


def large_result(outcome: object) -> bytes | None:
    """The result of *outcome* when it is too large for its row."""
    if isinstance(outcome, Succeeded) and outcome.keep and len(outcome.result) > INLINE:
        return outcome.result
    return None


def is_large(item: Finished) -> bool:
    """Whether the payload or the result of *item* is too large for its row."""
    payload = item.claim.payload
    return payload is None or len(payload) > INLINE or large_result(item.outcome) is not None


def pack_finished(item: Finished) -> bytes:
    """One record for FBTASKS_WORKER.FINISH. A result longer than INLINE is left out: it goes separately.

    Raises :class:`StatementRefused` for an outcome with values that no record can hold.
    """
    try:
        return _pack_finished(item)
    except Exception as error:
        raise StatementRefused(f"it has what cannot be written: {type(error).__name__}: {error}") from error


def _pack_finished(item: Finished) -> bytes:
    kind, delay = b"", 0.0
    error_type = message = trace = content_type = ""
    result = b""
    match item.outcome:
        case Succeeded(content_type, result, keep):
            kind = b"S" if keep else b"D"
            result = result if keep and len(result) <= INLINE else b""
        case Failed(error_type, message, trace, args):
            kind = b"F"
            if args is not None and len(args) <= INLINE:
                content_type, result = "application/json", args
        case Cancelled(message):
            kind = b"C"
        case Crashed(message, charged, limit):
            kind, delay = b"X" if charged else b"Y", limit / 1000  # its field of whole numbers holds the limit
        case Requeue(reason, delay, message, error_type):
            kind = reason.value
    head = b"%s%019d%019d%015d" % (kind, item.claim.id, item.claim.claim_id, int(item.elapsed * 1000))
    if len(head) != _OUTCOME_HEAD:
        raise ValueError("a number is too large for its field")
    if kind in SHORT:
        return head
    error = _clip(error_type, 255, 1020)
    said = _clip(message, 1000, 4000)
    traceback = _clip(trace, 24_000, 24_000)
    kind_of = content_type.encode("ascii")
    delay_ms = round(min(max(delay, 0.0), clock.LONGEST.total_seconds()) * 1000)
    lengths = b"%015d%04d%04d%05d%03d%05d" % (
        delay_ms, len(error), len(said), len(traceback), len(kind_of), len(result)
    )  # fmt: skip
    if len(lengths) != _LENGTHS:
        raise ValueError(f"content type {content_type[:80]!r} is too long")
    return b"".join((head, lengths, error, said, traceback, kind_of, result))


def unpack_stale(packed: str) -> Iterator[Stale]:
    """The answer of FBTASKS_WORKER.FINISH: what it did not record."""
    for at in range(0, len(packed), 38):
        yield Stale(int(packed[at : at + 19]), int(packed[at + 19 : at + 38]))


def _clip(text: str, characters: int, limit: int) -> bytes:
    """*text* in UTF-8 that fits a column: no NUL, no lone surrogate, and cut in the middle where it is long."""
    if not text:
        return b""
    if len(text) > characters:
        half = characters // 2 - 3
        text = f"{text[:half]} ... {text[-half:]}"
    data = text.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")
    while len(data) > limit:
        text = text[: len(text) * limit // len(data) - 1]
        data = text.encode("utf-8", "replace")
    return data


def chunks(records: Iterable[bytes], most: int = CHUNK) -> Iterator[bytes]:
    """The records one after the other, in strings of *most* bytes at the most."""
    group: list[bytes] = []
    size = 0
    for record in records:
        if group and size + len(record) > most:
            yield b"".join(group)
            group, size = [], 0
        group.append(record)
        size += len(record)
    if group:
        yield b"".join(group)
