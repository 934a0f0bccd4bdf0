"""The life of a task in the database: enqueued, claimed, finished, cancelled, put back, forgotten."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import MappingProxyType
from typing import Final, NamedTuple

from fbtasks.errors import ConflictError, DuplicateKey
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import codec
from fbtasks.queue.firsts import write_first
from fbtasks.states import State
from fbtasks.tasks.call import Call, Claim, Claims, Enqueued, Finished, Owner, Stale, batch_of

BATCH: Final = 200
"""Rows that maintenance moves in one transaction."""
_TAKEN: Final = "QUEUE_TASK_ID_TAKEN"
"""The constraint that two transactions violate with one id."""
READS: Final = 2_000
"""Rows that maintenance reads in one transaction where no index leads to those that it looks for."""


def enqueue(
    transaction: Transaction,
    calls: Sequence[Call],
    limits: Mapping[str, Owner] = codec.NO_LIMITS,
    *,
    finds: bool = False,
) -> tuple[list[Enqueued], int | None]:
    """Writes *calls*, which are seen from the commit on. *limits* are those whose gates they have to pass.

    With *finds* a call of a unique task is not written when another one with its key waits; that one is locked until
    the transaction ends, which is for short ones alone.

    Returns their ids in the same order, and the number of the transaction, for ``settlement`` (None: there are none).
    Raises :class:`ConflictError` when another transaction has given one of their ids, and this one cannot see it, and
    :class:`DuplicateTask`.
    """
    found: list[Enqueued] = []
    number: int | None = None
    with ids_may_be_taken():
        packed_calls = (codec.pack_call(call, limits, finds=finds) for call in calls)
        for records in codec.chunks(packed_calls, codec.CALLS):
            packed = transaction.packed("FBTASKS_PRODUCER.ENQUEUE_PACKED", records)
            answers, number = codec.unpack_enqueued(packed)
            found.extend(answers)
    for call, enqueued in zip(calls, found, strict=True):
        if not enqueued.duplicate:
            put_beside(transaction, enqueued.id, call)
    return found, number


def put_beside(transaction: Transaction, task: int, call: Call) -> None:
    """Writes what the row of *call* has no room for."""
    if len(call.payload) > codec.INLINE:
        transaction.call("FBTASKS_PRODUCER.PUT_PAYLOAD", task, call.payload)
    if call.extras:
        transaction.call("FBTASKS_PRODUCER.PUT_EXTRAS", task, codec.pack_extras(call.extras))


@contextmanager
def ids_may_be_taken() -> Iterator[None]:
    """Raises :class:`ConflictError` when another transaction has given an id that the block gives."""
    try:
        yield
    except DuplicateKey as error:
        if _TAKEN not in str(error):
            raise
        raise ConflictError(
            "another transaction has enqueued a task under the same task_id, and has not ended, or has ended since "
            "this one began. Nothing was enqueued by this call. Call it again when the other one has ended; in a "
            "SNAPSHOT transaction, roll back first."
        ) from error


def claim(
    transaction: Transaction,
    worker_id: int,
    queue: str,
    most: int,
    parked_name: str | None = None,
    *,
    ends: codec.Ends = MappingProxyType({}),
    from_start: bool = True,
    idle: bool = True,
) -> Claims:
    """Claims up to *most* ready tasks of *queue*, best first; with *parked_name*, parked tasks of that name.

    A suspect comes alone. *ends* says how far the queue was read a moment ago: it goes on from there, and tasks of
    these priorities that were due before are found only when that is not enough. What the sources of the queue have
    becomes tasks first; with *from_start* also changes that were committed late. Without *idle*, idle work is left.
    """
    claims, marks = Claims(), codec.pack_ends(ends)
    rows = transaction.rows(
        "FBTASKS_WORKER.CLAIM", worker_id, queue, most, parked_name, int(from_start), int(idle), marks
    )
    for claim_id, packed, unseen, missed, idles, let_in in rows:
        claims.extend(codec.unpack_claims(claim_id, queue, packed))
        claims.unseen, claims.missed, claims.idles = bool(unseen), bool(missed), bool(idles & 1)
        claims.limited, claims.let_in = idles > 1, bool(let_in)
    claims.unseen |= len(claims) == 1 and claims[0].suspect > 0
    return claims


class Look(NamedTuple):
    """Whether there is something to claim, and when to look again."""

    ready: bool
    """Whether a queue has something to claim now."""
    due: float | None
    """Seconds until the next scheduled task of all queues is due."""
    again: float | None
    """Seconds until a source of the queues is due, or one of them opens that is closed now."""


def any_ready(session: Session, queues: Iterable[str]) -> Look:
    """Whether any of *queues* has something to claim."""
    ready, due, again = session.read("FBTASKS_WORKER.ANY_READY", ",".join(queues))[0]
    return Look(bool(ready), *(None if each is None else max(0.0, each / 1000) for each in (due, again)))


def still_opens(session: Session, queues: Iterable[str]) -> bool:
    """Whether a worker that leaves when nothing is due waits for what waits in *queues* for limits or other steps."""
    return bool(session.read("FBTASKS_WORKER.STILL_OPENS", ",".join(queues))[0][0])


def left(session: Session, queues: Iterable[str]) -> list[tuple[str, int, int]]:
    """Queue, state and number of the tasks that are ready, or wait for limits or other steps."""
    return [
        (queue, state, count) for queue, state, count in session.read("FBTASKS_WORKER.TASKS_LEFT", ",".join(queues))
    ]


class Promoted(NamedTuple):
    """How many tasks have become ready, and when to look again."""

    tasks: int
    due: float | None
    """Seconds until the next scheduled task is due; None: none is scheduled."""


def promote(transaction: Transaction, most: int = 500) -> Promoted:
    """Makes due tasks ready."""
    promoted, next_ms = transaction.rows("FBTASKS_WORKER.PROMOTE", most)[0]
    return Promoted(promoted, None if next_ms is None else next_ms / 1000)


def finish(transaction: Transaction, worker_id: int, slot: int, items: Iterable[Finished]) -> list[Stale]:
    """Records outcomes. Returns those whose claim was stale: for them nothing was changed.

    With a *slot*, also those whose row another transaction holds, which are not waited for.
    """
    items = list(items)
    stale: list[Stale] = []
    records = [codec.pack_finished(item) for item in items]
    for item in items:
        large = codec.large_result(item.outcome)
        if large is not None:
            transaction.call("FBTASKS_WORKER.PUT_RESULT", item.claim.id, item.claim.claim_id, large)
    for group in codec.chunks(records):
        stale.extend(codec.unpack_stale(transaction.call("FBTASKS_WORKER.FINISH", worker_id, slot, group)))
    return stale


def payload(transaction: Transaction, task: int) -> bytes | None:
    """A large payload from its own table."""
    value = transaction.value("payload", task)
    return None if value is None else bytes(value)


def with_payload(session: Session, claim: Claim) -> Claim:
    """*claim* with its payload, which is read now when the claim did not return it (above 30,000 bytes)."""
    if claim.payload is not None:
        return claim
    if claim.members:
        return batch_of([with_payload(session, each) for each in claim.members])
    with session.transaction() as transaction:
        return claim._replace(payload=payload(transaction, claim.id) or b"")


def revoke(transaction: Transaction, task: int, *, terminate: bool = False) -> str | None:
    """Cancels a waiting task ('cancelled'), asks the worker of a running one ('requested').

    The worker is asked not to try it again, or with *terminate* to stop it. None when there is no such live task that
    the caller's user may see.
    """
    return {0: None, 1: "cancelled", 2: "requested"}[transaction.call("FBTASKS_READER.CANCEL", task, int(terminate))]


def prune(transaction: Transaction, state: State, age: timedelta, most: int = BATCH) -> int:
    """Deletes up to *most* tasks that ended in *state* longer than *age* ago. Returns how many."""
    return int(transaction.call("FBTASKS_UPKEEP.PRUNE", int(state), age // timedelta(milliseconds=1), most))


def expire(transaction: Transaction, after: int, reads: int = READS, most: int = BATCH) -> tuple[int, int | None]:
    """Cancels up to *most* expired ones of the next *reads* tasks with an id above *after*.

    Returns how many, and the id up to which it looked; None: to the end.
    """
    expired, last = transaction.call("FBTASKS_WORKER.EXPIRE", after, reads, most)
    return expired, last


def fail_parked(transaction: Transaction, age: timedelta, hook: str | None = None) -> list[int]:
    """Fails some tasks that were parked longer than *age* ago. Returns their ids.

    *hook* is the task that calls the on_failure hooks of the app for them.
    """
    given = age // timedelta(milliseconds=1), BATCH, hook
    return [row[0] for row in transaction.rows("FBTASKS_WORKER.FAIL_PARKED", *given)]


def set_on_failure(session: Session, tasks: Mapping[str, bool]) -> None:
    """Tells the database which of *tasks* have on_failure hooks."""
    known = {name for (name,) in session.read("names_on_failure")}
    for name, has_hooks in tasks.items():
        if has_hooks != (name in known):
            write_first(session, lambda t, given=(name, has_hooks): t.call("FBTASKS_WORKER.SET_ON_FAILURE", *given))  # type: ignore[misc]
