"""A channel: declares, publishes, consumes. Exchanges, queues and bindings are in the database, where all see them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import READ
from fbtasks.kombu import qos as quality
from fbtasks.kombu import wire
from fbtasks.kombu.batch import PublishBatch
from fbtasks.kombu.inbox import Inbox
from fbtasks.kombu.process import ConsumerProcess
from fbtasks.kombu.queues import ConsumedQueue
from fbtasks.store import messages
from fbtasks.store.messages import BATCH, Claimed, Publication, QueueFacts, QueueSpec, Taken
from fbtasks.store.shared import SharedDatabase

logger = logging.getLogger("fbtasks.kombu")
_UNLIMITED: Final = 100
"""Messages that a channel without prefetch limit claims at once."""
_NOT_FOUND: Final = 404


@dataclass(slots=True)
class Subscription:
    """One consumer of one queue on one channel."""

    tag: str
    queue: str
    no_ack: bool
    callback: Callable[[Any], object]


@dataclass(slots=True)
class Source:
    """A queue as a channel consumes from it."""

    queue: ConsumedQueue
    subscriptions: deque[Subscription] = field(default_factory=deque)
    ready: bool = True
    """Whether there may be something to claim."""


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel of the transport. The thread that receives is one; messages are settled from any."""

    QoS = quality.QoS
    supports_fanout = True
    do_restore = False
    body_encoding = None

    closed: bool
    connection: Any

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._transport = connection
        self._process: ConsumerProcess = connection.process
        self._inbox: Inbox = connection.inbox
        self._shared: SharedDatabase = self._process.shared
        self._settle = self._process.settlements.add
        self._tags = count(1)
        self._sources: dict[str, Source] = {}
        self._queue_of: dict[str, str] = {}
        self._buffer: deque[tuple[Claimed, str]] = deque()
        self._starved = False
        self.qos = quality.QoS(self, self._settle)
        self._process.watch(self.qos)

    qos: quality.QoS = None  # type: ignore[assignment]  # set at once; it replaces the base class's property

    # Exchanges and queues.

    def exchange_declare(
        self, exchange: str | None = None, type: str = "direct", durable: bool = False, auto_delete: bool = False,
        arguments: Any = None, nowait: bool = False, passive: bool = False,
    ) -> None:  # fmt: skip
        """Declares an exchange; with *passive* it must be there already."""
        kind = type or "direct"
        name = exchange or f"amq.{kind}"
        if not passive and kind not in self.exchange_types:
            raise ChannelError(f"COMMAND_INVALID - exchange type {kind!r}, not one of {', '.join(self.exchange_types)}",
                               (40, 10), "Channel.exchange_declare", "503")  # fmt: skip
        found = self._shared.use(
            lambda t: messages.declare_exchange(
                t, name, None if passive else kind, durable=durable, auto_delete=auto_delete
            )
        )
        if found is None:
            raise _not_found("exchange", name, (40, 10), "Channel.exchange_declare")
        if not passive and found != kind:
            raise virtual.base.NotEquivalentError(
                f"Cannot redeclare exchange {name!r}: it is of type {found!r}, not {kind!r}."
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Deletes an exchange and its bindings."""
        self._shared.use(lambda t: messages.drop_exchange(t, exchange, if_unused=if_unused))

    def prepare_queue_arguments(self, arguments: dict[str, Any] | None, **options: Any) -> dict[str, Any]:
        """Arguments as RabbitMQ names them: ``x-message-ttl``, ``x-expires`` and so on."""
        prepared: dict[str, Any] = to_rabbitmq_queue_arguments(arguments or {}, **options)
        return prepared

    def queue_declare(
        self, queue: str | None = None, passive: bool = False, durable: bool = False, exclusive: bool = False,
        auto_delete: bool = False, arguments: dict[str, Any] | None = None, **_: Any,
    ) -> Any:  # fmt: skip
        """Declares a queue; with *passive* it must be there already. Returns its name, messages and other consumers."""
        name = queue or f"amq.gen-{uuid()}"
        given = arguments or {}
        spec = QueueSpec(
            name=name,
            durable=bool(durable),
            auto_delete=bool(auto_delete or exclusive),
            message_ttl=wire.span(given.get("x-message-ttl")),
            expires=wire.span(given.get("x-expires")),
            max_length=_integer(given.get("x-max-length")),
            dead_exchange=given.get("x-dead-letter-exchange"),
            dead_routing_key=given.get("x-dead-letter-routing-key"),
        )
        facts = self._look_at_queue(spec) if passive else self._declare_queue(spec)
        if facts is None:
            raise _not_found("queue", name, (50, 10), "Channel.queue_declare")
        return queue_declare_ok_t(name, facts.waiting, facts.consumers)

    def _declare_queue(self, spec: QueueSpec) -> QueueFacts | None:
        return self._shared.use(lambda t: messages.declare_queue(t, spec, self._process.consumer.number))

    def _look_at_queue(self, spec: QueueSpec) -> QueueFacts | None:
        number = self._process.consumer.number
        return self._shared.use(lambda t: messages.declare_queue(t, spec, number, passive=True), READ)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Deletes a queue with its bindings and messages."""
        self._process.flush()  # what is settled does not count as in the queue
        number = self._process.consumer.number
        self._shared.use(lambda t: messages.drop_queue(t, queue, number, if_unused=if_unused, if_empty=if_empty))

    def queue_bind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        """Binds a queue to an exchange."""
        name = exchange or "amq.direct"
        done = self._shared.use(lambda t: messages.bind(t, queue, name, routing_key or ""))
        if done < 0:
            raise _not_found("exchange", name, (50, 20), "Channel.queue_bind")
        if not done:
            raise _not_found("queue", queue, (50, 20), "Channel.queue_bind")

    def queue_unbind(
        self,
        queue: str,
        exchange: str | None = None,
        routing_key: str = "",
        arguments: Any = None,
        **_: Any,
    ) -> None:
        """Takes a binding away."""
        self._shared.use(lambda t: messages.unbind(t, queue, exchange or "amq.direct", routing_key or ""))

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Deletes what waits in a queue. Returns how many messages."""
        total = 0
        while True:
            gone = self._shared.use_in_turn(lambda t: messages.purge(t, queue))
            if gone is None:
                raise _not_found("queue", queue, (50, 30), "Channel.queue_purge")
            total += gone
            if gone < BATCH:
                return total

    def _size(self, queue: str) -> int:
        facts = self._look_at_queue(QueueSpec(queue))
        return facts.waiting if facts else 0

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._look_at_queue(QueueSpec(queue)) is not None

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Queue, exchange and routing key of all bindings."""
        return iter(self._shared.use(messages.bindings, READ))

    def get_exchanges(self) -> list[str]:
        """The names of all exchanges."""
        return self._shared.use(messages.exchanges, READ)

    # Publishing.

    def basic_publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> None:
        """Publishes a message: one copy for each queue that it is routed to. What goes nowhere is dropped."""
        self.publish_all([self.publication(message, exchange, routing_key)])

    def publication(self, message: dict[str, Any], exchange: str, routing_key: str) -> Publication:
        """What a message is for the database."""
        return wire.publication(
            message,
            exchange or "",
            routing_key or "",
            withhold=self._transport.withhold_eta,
            fallback=self.deadletter_queue,
        )

    def publish_all(self, items: list[Publication]) -> None:
        """Publishes in one transaction: one of its own, or the caller's (see ``fbtasks.kombu.in_transaction``)."""
        for item, routed in zip(items, self._process.publisher.publish(items), strict=True):
            if routed < 0:
                raise _not_found("exchange", item.exchange, (60, 40), "Channel.basic_publish")

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """What ``Producer.batch()`` gathers messages in."""
        return PublishBatch(self, self.publication, self.publish_all, max_size)

    # Consuming.

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Any = None, consumer_tag: str | None = None, **_: Any
    ) -> str:
        """Has *callback* called with each message of a queue, while events are drained. Returns the consumer's tag."""
        tag = consumer_tag or uuid()
        consumed = self._process.queues.begin(self._process.register(), queue, self._inbox)
        if consumed is None:
            raise _not_found("queue", queue, (60, 20), "Channel.basic_consume")
        source = self._sources.setdefault(queue, Source(consumed))
        source.queue, source.ready = consumed, True
        source.subscriptions.append(Subscription(tag, queue, no_ack, callback))
        self._queue_of[tag] = queue
        self._consumers.add(tag)
        self._inbox.look_soon()
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer. What was claimed for it and not delivered goes back, for others."""
        queue = self._queue_of.pop(consumer_tag, None)
        self._consumers.discard(consumer_tag)
        source = self._sources.get(queue) if queue is not None else None
        if queue is None or source is None:
            return
        source.subscriptions = deque(s for s in source.subscriptions if s.tag != consumer_tag)
        if not source.subscriptions:
            del self._sources[queue]
            self._return_buffered(queue)
        if self._process.queues.end(queue, self._inbox):
            self._process.flush()
            self._process.queues.tell_ended()

    def _return_buffered(self, queue: str | None = None) -> None:
        kept: deque[tuple[Claimed, str]] = deque()
        for claimed, name in self._buffer:
            if queue in (None, name):
                self._settle(claimed.settle(messages.UNSEEN))
            else:
                kept.append((claimed, name))
        self._buffer = kept

    @property
    def consumed(self) -> list[ConsumedQueue]:
        """The queues that it consumes from."""
        return [source.queue for source in self._sources.values()]

    def note_events(self, buckets: Set[int]) -> None:
        """Notes that events of these numbers came: there may be something in the queues that have them."""
        for source in self._sources.values():
            if source.queue.bucket in buckets:
                source.ready = True

    def note_ready(self, numbers: Set[int]) -> None:
        """Notes that there is something in the queues of these numbers."""
        for source in self._sources.values():
            if source.queue.number in numbers:
                source.ready = True

    def freed(self) -> None:
        """Notes that there may be room for another message."""
        if self._starved:
            self._starved = False
            self._inbox.wake()

    def deliver(self) -> int:
        """Claims from the next queue that has something, and delivers. Returns how many messages.

        Those of a consumer without acknowledgements are gone when they are handed over, so they are handed over one at
        a time: a program that stops after one, as kombu's mailbox does, loses nothing.
        """
        if not self._buffer:
            self._receive()
        delivered = 0
        while self._buffer and not self.closed:
            claimed, queue = self._buffer.popleft()
            source = self._sources.get(queue)
            if source is None or not source.subscriptions:
                self._settle(claimed.settle(messages.UNSEEN))
                continue
            subscription = source.subscriptions[0]
            source.subscriptions.rotate(-1)
            try:
                message = self._message(claimed, subscription.tag)
            except DatabaseError:
                self._buffer.appendleft((claimed, queue))
                raise
            if message is None:
                continue
            delivered += 1
            if subscription.no_ack:
                self._settle(claimed.settle(messages.DONE))
                subscription.callback(message)
                break
            self.qos.hold(claimed, message)
            subscription.callback(message)
        return delivered

    def _receive(self) -> None:
        """Claims for the first queue in turn that has something, and room for it."""
        for queue in list(self._sources):
            source = self._sources[queue]
            if not source.ready:
                continue
            room = self.qos.room if any(not s.no_ack for s in source.subscriptions) else None
            if room == 0:
                self._starved = True
                if not self.qos.can_consume():
                    continue
            most = _UNLIMITED if room is None else min(room, _UNLIMITED)
            source.ready = False
            # The next time another queue comes first.
            self._sources[queue] = self._sources.pop(queue)
            try:
                found = self._process.claim(source.queue.number, most)
            except BaseException:
                source.ready = True
                raise
            self._buffer.extend((claimed, queue) for claimed in found)
            if found.unseen or len(found) >= most:
                source.ready = True
            self._tell(found, queue)
            if found:
                return
            if found.unseen:  # the next claim goes on behind what expired
                self._inbox.wake()

    def _tell(self, found: Taken, queue: str) -> None:
        """Logs which messages came back too often: in the log of the consumer that would have had the next try."""
        for ended in found.ended:
            went = (
                "It went to the dead-letter exchange."
                if ended.dead_lettered
                else f"It stays in QUEUE_MSG with ID {ended.id} and STATE 3."
            )
            logger.error(
                "A message of queue %r%s came back %d times after it was delivered, which is above delivery_limit. %s",
                queue,
                wire.title(ended.message),
                ended.times,
                went,
            )

    def _message(self, claimed: Claimed, consumer_tag: str | None) -> Any:
        """What is delivered; None: it was deleted meanwhile with its queue, or cannot be read."""
        data = claimed.message
        if data is None:
            data = self._shared.use(lambda t: messages.body(t, claimed.id), READ)
            if data is None:
                return None
        try:
            return self.Message(wire.payload(claimed, data, next(self._tags), consumer_tag), channel=self)
        except Exception as error:  # noqa: BLE001  # it was written by hand
            logger.error("Message %d cannot be read, and is rejected: %r", claimed.id, error)
            self._settle(claimed.settle(messages.REJECTED))
            return None

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message of a queue; None: there is none."""
        number = self._shared.use(lambda t: messages.ask(t, queue))
        if number is None:
            raise _not_found("queue", queue, (60, 70), "Channel.basic_get")
        found = self._claim_one(number, queue)
        while found.unseen and not found:
            found = self._claim_one(number, queue)
        if not found:
            return None
        try:
            message = self._message(found[0], None)
        except DatabaseError:
            self._settle(found[0].settle(messages.UNSEEN))
            raise
        if message is None:
            return None
        if no_ack:
            self._settle(found[0].settle(messages.DONE))
        else:
            self.qos.hold(found[0], message)
        return message

    def _claim_one(self, number: int, queue: str) -> Taken:
        found = self._process.claim(number, 1)
        self._tell(found, queue)
        return found

    def withheld(self, most: int) -> Iterator[Any]:
        """Tasks whose time has not come in the queues that it consumes from, as messages that are not delivered."""
        numbers = [queue.number for queue in self.consumed]
        found = self._shared.use(lambda t: [messages.withheld(t, number, most) for number in numbers], READ)
        for _, claimed in sorted(chain(*found), key=lambda pair: pair[0])[:most]:
            with suppress(Exception):  # what cannot be read is told of when it is delivered
                yield self.Message(wire.payload(claimed, claimed.message or b"", 0, None), channel=self)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Delivers what is there, or waits for it, as the connection does."""
        self._transport.drain_events(self._transport, timeout=timeout)

    # Settling.

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """A message is done."""
        self.qos.ack(delivery_tag, multiple=multiple)

    def basic_reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """A message is refused; with *requeue* it goes back to its queue, else to the dead-letter exchange."""
        self.qos.reject(delivery_tag, requeue=requeue)

    def basic_recover(self, requeue: bool = False) -> None:
        """Gives back all that is unsettled."""
        if not requeue:
            raise NotImplementedError("Does not support recover(requeue=False)")
        self.qos.restore_unacked()

    def basic_qos(self, prefetch_size: int = 0, prefetch_count: int = 0, apply_global: bool = False) -> None:
        """Limits how many messages of this channel may be unsettled; 0 without limit."""
        self.qos.prefetch_count = prefetch_count

    # Its end.

    def close(self) -> None:
        """Ends the consumers, and gives back what is unsettled; while the database is away, as soon as it is back."""
        if self.closed:
            return
        self.closed = True
        try:
            self._return_buffered()
            self.qos.restore_unacked()
            for tag in list(self._consumers):
                self.basic_cancel(tag)
            self._process.flush()
        finally:
            self._forget_consumers()
            if self.connection is not None:
                self.connection.close_channel(self)

    def _forget_consumers(self) -> None:
        """Ends those that are left without asking the database anything."""
        for tag in list(self._consumers):
            queue = self._queue_of.pop(tag, None)
            if queue is not None:
                self._process.queues.end(queue, self._inbox)  # the database is told when it answers again
        self._consumers.clear()
        self._sources.clear()

    def abandon(self, *, give_back: bool) -> None:
        """Ends it without asking the database anything: its connection is lost.

        With *give_back* false it is a fork's copy, and what it holds is the parent's.
        """
        self.closed = True
        if give_back:
            self._return_buffered()
            self.qos.abandon()
            self._forget_consumers()
        else:
            self._buffer.clear()
            self.qos.discard()
            self._consumers.clear()
            self._sources.clear()
        self.connection = None


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def _not_found(what: str, name: str, method: tuple[int, int], where: str) -> ChannelError:
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", method, where, str(_NOT_FOUND))
