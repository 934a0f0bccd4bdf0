"""Messages of the kombu transport in the database: published, claimed, read, swept.

Names in the procedures are AMQP's; those whose arguments need no packing are called by the transport itself. Every
function is one statement in the caller's transaction; what travels in numbers is packed in strings (see ``codec``): a
row or a parameter costs the driver more than its content does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.contrib.celery.store.names import kept, shown
from fbtasks.firebird.session import Transaction
from fbtasks.queue.codec import chunks

INLINE: Final = 8_000
"""The longest message, in bytes, that stays in its row."""
BUCKETS: Final = 14
EVENTS: Final = tuple(f"fbtasks:message:{number}" for number in range(BUCKETS))
"""Posted when a message may be claimed: the number of its queue modulo 14. With one's own there are 15, the most."""
OWN_EVENT: Final = "fbtasks:consumer:"
"""With the number of a consumer behind it: posted by its heartbeat."""
BATCH: Final = 200
"""Rows that a purge or a sweep takes in one transaction."""
READS: Final = 1_000
"""Rows that a sweep reads in one transaction, beside the first of each queue, to find expired messages."""
COUNTED: Final = 10_000
"""Messages of a queue that are counted for those who look: it takes some milliseconds."""
LOOK_BACK: Final = 1.0
"""Seconds after which a claim looks for messages that have come to be before those that were claimed last."""
_ASKED: Final = 400
"""Queues that one statement asks for: a parameter of text takes 8191 characters."""
DELIVERY_LIMIT: Final = 20
"""How often a message may come back after it was delivered, as in RabbitMQ's quorum queues."""

_NULL: Final = b"%15d" % -1
"""No time, in a record of a publication."""

DONE: Final = b"A"
DONE_WITH_BODY: Final = b"a"
REJECTED: Final = b"D"
GIVEN_BACK: Final = b"R"
UNSEEN: Final = b"U"


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue as it is declared: its names as they are kept, times in milliseconds, None without limit."""

    name: str
    durable: bool = False
    auto_delete: bool = False
    message_ttl: int | None = None
    expires: int | None = None
    max_length: int | None = None
    rejects: bool = False
    """True: it refuses messages while it holds *max_length*. False: the oldest one goes."""
    dead_exchange: str | None = None
    dead_routing_key: str | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """What the database knows of a queue."""

    id: int
    waiting: int
    """Messages that no consumer has claimed: up to 100, where it was not asked passively."""
    consumers: int
    """Other processes that consume from it."""


@dataclass(frozen=True, slots=True)
class Publication:
    """A message on its way to an exchange, with names as they are kept."""

    exchange: str
    routing_key: str
    message: bytes
    priority: int = 0
    start: int | None = None
    """Milliseconds of the Unix epoch until which it is withheld."""
    ttl: int | None = None
    """Milliseconds that it may wait."""
    fallback: str | None = None
    """The queue that takes it where nothing is bound."""


@dataclass(frozen=True, slots=True)
class Claimed:
    """A message that is claimed, with names as they are kept."""

    id: int
    claim_id: int
    queue_id: int
    priority: int
    redelivered: bool
    exchange: str
    routing_key: str
    dead_queue: str
    """The queue that it died in before, or ''."""
    dead_reason: str
    message: bytes | None
    """None: too large for its row, see :func:`body`."""

    def settle(self, kind: bytes) -> bytes:
        """Returns the record that settles it: one of the letters of this module."""
        if kind == DONE and self.message is None:
            kind = DONE_WITH_BODY
        return b"%s%019d%019d" % (kind, self.id, self.claim_id)


class Ended(NamedTuple):
    """A message that came back too often, and was taken away instead of being claimed."""

    id: int
    times: int
    """How often it came back."""
    dead_lettered: bool
    """Whether a copy of it went to the dead-letter exchange; else it stays in the table, in STATE 3."""
    message: bytes | None
    """None: too large for its row."""


class Taken(list[Claimed]):
    """What a claim took."""

    ended: Sequence[Ended] = ()
    unseen = False
    """Whether it ended at as many expired messages as one claim may take away: there may be others behind them."""
    mark: int | None = None
    """Where in its queue it ended; None when it took less than it was to take."""


def declare_queue(
    transaction: Transaction, spec: QueueSpec, consumer_id: int | None, *, passive: bool = False
) -> QueueFacts | None:
    """Makes the queue, or gives it the arguments of *spec*; with *passive* only looks. None: there is none."""
    found = transaction.call(
        "FBTASKS_CELERY_API.DECLARE_QUEUE", spec.name, passive, spec.durable, spec.auto_delete, spec.message_ttl,
        spec.expires, spec.max_length, spec.dead_exchange, spec.dead_routing_key, consumer_id, spec.rejects,
    )  # fmt: skip
    return None if found[0] is None else QueueFacts(*found)


def publish(transaction: Transaction, items: Iterable[Publication]) -> tuple[list[int], int | None]:
    """Writes one copy of each for each of its queues, in this order. Raises :class:`QueueFull`.

    Returns to how many queues each went (-1: no such exchange), and the number of the transaction, for ``settlement``.
    """
    counts: list[int] = []
    number: int | None = None
    for is_large, some in groupby(items, lambda item: len(item.message) > INLINE):
        if is_large:
            for item in some:
                ((routed, number),) = transaction.rows(
                    "msg_publish", item.exchange, item.routing_key, item.priority, item.start, item.ttl, None,
                    item.message, item.fallback,
                )  # fmt: skip
                counts.append(routed)
        else:
            for group in chunks(map(_pack, some)):
                packed, number = transaction.call("FBTASKS_CELERY_API.PUBLISH_PACKED", group)
                counts.extend(int(packed[at : at + 6]) for at in range(0, len(packed), 6))
    return counts, number


def _pack(item: Publication) -> bytes:
    exchange, key, fallback = item.exchange.encode(), item.routing_key.encode(), (item.fallback or "").encode()
    return b"".join(
        (
            b"%d" % item.priority,
            _NULL if item.start is None else b"%015d" % max(0, item.start),
            _NULL if item.ttl is None else b"%015d" % item.ttl,
            b"%04d%04d%04d%05d" % (len(exchange), len(key), len(fallback), len(item.message)),
            exchange,
            key,
            fallback,
            item.message,
        )
    )


def claim(
    transaction: Transaction,
    consumer_id: int,
    claim_id: int,
    queue_id: int,
    most: int,
    settled: bytes,
    after: int | None = None,
) -> Taken | None:
    """Settles *settled*, then claims up to *most* messages. None when the consumer is not registered.

    *after* is the mark of a claim of a moment ago: where that ended is looked first, and messages of its priority that
    were there before it are found only when that is not enough.
    """
    found = Taken()
    for stale, packed, unseen, mark in transaction.rows(
        "FBTASKS_CELERY.CLAIM", consumer_id, claim_id, queue_id, most, settled, after
    ):
        if stale < 0:
            return None
        for each in _unpack(bytes(packed), claim_id, queue_id):
            if isinstance(each, Ended):
                found.ended = [*found.ended, each]
            else:
                found.append(each)
        found.unseen, found.mark = bool(unseen), mark
    return found


class LowWaterMarks:
    """Where the last claim from each queue ended, for :data:`LOOK_BACK` seconds at a time. From any thread."""

    def __init__(self) -> None:
        self._marks: dict[int, tuple[int, float]] = {}

    def get(self, queue_id: int) -> int | None:
        """Returns where the next claim goes on; None: at the beginning."""
        mark, until = self._marks.get(queue_id, (None, 0.0))
        return mark if clock.monotonic() < until else None

    def note(self, queue_id: int, taken: Taken) -> None:
        """Notes where a claim that is committed has ended."""
        now = clock.monotonic()
        _, until = self._marks.pop(queue_id, (0, 0.0))
        if taken.mark is not None:
            self._marks[queue_id] = taken.mark, until if now < until else now + LOOK_BACK

    def forget(self) -> None:
        """Messages are given back: they are found again at the beginning of their queues."""
        self._marks.clear()


def _unpack(packed: bytes, claim_id: int, queue_id: int) -> Iterator[Claimed | Ended]:
    at = 0
    while at < len(packed):
        colon = packed.index(b":", at)
        number, priority, redelivered, *lengths = map(int, packed[at:colon].split(b";"))
        at = colon + 1
        texts = []
        for length in lengths:
            texts.append(packed[at : at + max(0, length)])
            at += max(0, length)
        exchange, routing_key, dead_queue, dead_reason, inline = texts
        message = None if lengths[-1] < 0 else inline
        if redelivered < 0:
            yield Ended(number, -redelivered, priority > 0, message)
            continue
        yield Claimed(
            number, claim_id, queue_id, priority, bool(redelivered), exchange.decode(), routing_key.decode(),
            dead_queue.decode(), dead_reason.decode(), message,
        )  # fmt: skip


def body(transaction: Transaction, number: int) -> bytes | None:
    """Returns a message too large for its row; None when it is gone."""
    value = transaction.value("msg_body", number)
    return None if value is None else bytes(value)


class QueueLength(NamedTuple):
    """How many messages are in a queue, each number up to a bound, and how many processes consume it."""

    name: str
    ready: int
    withheld: int
    claimed: int
    dead: int
    """Those that came back too often, and wait for an operator."""
    consumers: int

    @property
    def messages(self) -> int:
        """All that may still be delivered."""
        return self.ready + self.withheld + self.claimed


def lengths(transaction: Transaction, queues: Iterable[str] | None, most: int) -> list[QueueLength]:
    """Returns the lengths of those *queues* that are there, or of all (None), with numbers up to *most*."""
    names = [name for (name,) in transaction.rows("msg_queues")] if queues is None else map(kept, queues)
    rows = (row for name in names for row in transaction.rows("msg_lengths", *[most] * 4, name))
    return [QueueLength(shown(name), *numbers) for name, *numbers in rows]


def withheld(transaction: Transaction, queue_id: int, most: int) -> list[tuple[datetime, Claimed]]:
    """Returns the next messages of a queue that are withheld, and until when; no consumer has claimed them."""
    return [
        (until, Claimed(number, 0, queue_id, priority, bool(redelivered), exchange, key, "", "", bytes(text)))
        for until, number, priority, redelivered, exchange, key, text in transaction.rows(
            "msg_withheld", most, queue_id
        )
        if text is not None
    ]


def ready(transaction: Transaction, queues: Iterable[int]) -> tuple[set[int], float | None]:
    """Returns which *queues* have something to claim, and the seconds until more is due (None: nothing is withheld)."""
    numbers, waits = list(queues), []
    ready: set[int] = set()
    for begin in range(0, len(numbers), _ASKED):
        asked = "".join(f"{number:019d}" for number in numbers[begin : begin + _ASKED])
        found, next_ms = transaction.call("FBTASKS_CELERY.ANY_READY", asked)
        ready.update(int(found[at : at + 19]) for at in range(0, len(found), 19))
        if next_ms is not None:
            waits.append(next_ms / 1000)
    return ready, min(waits, default=None)


class Swept(NamedTuple):
    """What a sweep took away."""

    queues: int
    released: int
    """Messages that were claimed by a consumer that is not registered."""
    expired: int
    last: int | None
    """The number of the message up to which it looked for expired ones; None: to the end."""


def sweep(transaction: Transaction, after: int = 0, *, most: int = BATCH, reads: int = READS) -> Swept:
    """Takes away what is over: unused queues, claims of unregistered consumers, and up to *most* expired messages.

    These are looked for at the beginning of each queue, and among the next *reads* messages after the number *after*.
    """
    return Swept(*transaction.call("FBTASKS_CELERY.SWEEP", most, after, reads))
