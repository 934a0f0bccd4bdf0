"""A channel: declares, publishes, consumes and settles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import BatchPublishError, ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import BATCH, COUNTED, Publication, QueueFacts, QueueLength, QueueSpec
from fbtasks.contrib.celery.store.names import kept, shown
from fbtasks.contrib.celery.transport import qos as quality
from fbtasks.contrib.celery.transport import wire
from fbtasks.contrib.celery.transport.arguments import check_consumer, check_exchange, check_publication, queue_spec
from fbtasks.contrib.celery.transport.inbox import Inbox
from fbtasks.contrib.celery.transport.process import ConsumerProcess
from fbtasks.contrib.celery.transport.receiver import Receiver, Subscription
from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import READ, UPDATE
from fbtasks.system.showing import count


class Channel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """A channel of the transport. The thread that receives is one; messages are declared and settled from any.

    Exchanges, queues and bindings are in the database, where all see them.
    """

    QoS = quality.QoS
    do_restore = False
    body_encoding = None
    supports_fanout = True

    closed: bool
    connection: Any

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._transport = connection
        self._process: ConsumerProcess = connection.process
        self._shared: SharedDatabase = self._process.shared
        inbox: Inbox = connection.inbox
        self.qos = quality.QoS(self, self._process.settlements.add, inbox.wake)
        self.receiver = Receiver(self._process, inbox, self.qos, lambda payload: self.Message(payload, channel=self))
        self._process.watch(self.qos)

    qos: quality.QoS = None  # type: ignore[assignment]  # set at once; it replaces the base class's property

    # Declaring.

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
        if not passive:
            check_exchange(name, arguments)
        found = self._shared.use(
            lambda t: t.call(
                "FBTASKS_CELERY_API.DECLARE_EXCHANGE", kept(name), None if passive else kind, durable, auto_delete
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
        self._shared.use(lambda t: t.call("FBTASKS_CELERY.DROP_EXCHANGE", kept(exchange), if_unused))

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
        spec = QueueSpec(kept(name))
        if not passive:
            ends = bool(auto_delete or exclusive)
            spec = queue_spec(name, arguments or {}, durable=bool(durable), auto_delete=ends)
        facts = self._declare(spec, passive=passive)
        if facts is None:
            raise _not_found("queue", name, (50, 10), "Channel.queue_declare")
        return queue_declare_ok_t(name, facts.waiting, facts.consumers)

    def _declare(self, spec: QueueSpec, *, passive: bool = True) -> QueueFacts | None:
        number = self._process.consumer.number
        kind = READ if passive else UPDATE
        return self._shared.use(lambda t: messages.declare_queue(t, spec, number, passive=passive), kind)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **_: Any) -> None:
        """Deletes a queue with its bindings and messages."""
        self._process.flush()  # what is settled does not count as in the queue
        number = self._process.consumer.number
        self._shared.use(lambda t: t.call("FBTASKS_CELERY.DROP_QUEUE", kept(queue), if_unused, if_empty, number))

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Binds a queue to an exchange."""
        name = exchange or "amq.direct"
        done = self._bind("FBTASKS_CELERY_API.BIND", queue, name, routing_key)
        if done < 0:
            raise _not_found("exchange", name, (50, 20), "Channel.queue_bind")
        if not done:
            raise _not_found("queue", queue, (50, 20), "Channel.queue_bind")

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Takes a binding away."""
        name = exchange or "amq.direct"
        self._bind("FBTASKS_CELERY.UNBIND", queue, name, routing_key)

    def _bind(self, procedure: str, queue: str, exchange: str, routing_key: str | None) -> int:
        names = [kept(name) for name in (queue, exchange, routing_key or "")]
        return int(self._shared.use(lambda t: t.call(procedure, *names)))

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Deletes what waits in a queue. Returns how many messages."""
        total, name = 0, kept(queue)
        while True:
            gone: int | None = self._shared.use_in_turn(lambda t: t.call("FBTASKS_CELERY_UPKEEP.PURGE", name, BATCH))
            if gone is None:
                raise _not_found("queue", queue, (50, 30), "Channel.queue_purge")
            total += gone
            if gone < BATCH:
                return total

    def _size(self, queue: str) -> int:
        facts = self._declare(QueueSpec(kept(queue)))
        return facts.waiting if facts else 0

    def lengths(self, queues: Iterable[str]) -> list[QueueLength]:
        """Returns how many messages are in those *queues* that are there, with numbers up to :data:`COUNTED`."""
        return self._shared.use(lambda t: messages.lengths(t, queues, COUNTED), READ)

    def _has_queue(self, queue: str, **_: Any) -> bool:
        return self._declare(QueueSpec(kept(queue))) is not None

    def list_bindings(self) -> Iterator[tuple[str, str, str]]:
        """Queue, exchange and routing key of all bindings."""
        rows = self._shared.use(lambda t: t.rows("msg_bindings"), READ)
        return ((shown(queue), shown(exchange), shown(routing_key)) for queue, exchange, routing_key in rows)

    def get_exchanges(self) -> list[str]:
        """Returns the names of all exchanges."""
        return [shown(name) for (name,) in self._shared.use(lambda t: t.rows("msg_exchanges"), READ)]

    # Publishing.

    def basic_publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **options: Any) -> None:
        """Publishes a message: one copy for each queue that it is routed to. What goes nowhere is dropped.

        Raises :class:`QueueFull` for a queue that is full and rejects what is published; then no queue has it.
        """
        self.publish_all([self.publication(message, exchange, routing_key, **options)])

    def publication(
        self, message: dict[str, Any], exchange: str, routing_key: str, mandatory: bool = False,
        immediate: bool = False, **_: Any,
    ) -> Publication:  # fmt: skip
        """Makes a publication of a message of kombu's."""
        check_publication(message, mandatory=mandatory, immediate=immediate)
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
                raise _not_found("exchange", shown(item.exchange), (60, 40), "Channel.basic_publish")

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """Makes what ``Producer.batch()`` gathers messages in."""
        return PublishBatch(self, max_size)

    # Consuming.

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Any = None, consumer_tag: str | None = None,
        arguments: dict[str, Any] | None = None, exclusive: bool = False, no_local: bool = False, **_: Any,
    ) -> str:  # fmt: skip
        """Calls *callback* with each message of a queue while events are drained. Returns the consumer's tag."""
        check_consumer(queue, arguments, exclusive=exclusive, no_local=no_local)
        tag = consumer_tag or uuid()
        if not self.receiver.begin(Subscription(tag, queue, no_ack, callback)):
            raise _not_found("queue", queue, (60, 20), "Channel.basic_consume")
        self._consumers.add(tag)
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer. What was claimed for it and not delivered goes back, for others."""
        self._consumers.discard(consumer_tag)
        self.receiver.end(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """Returns the next message of a queue; None: there is none."""
        name = kept(queue)
        number = self._shared.use(lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", None, name, None))
        if number is None:
            raise _not_found("queue", queue, (60, 70), "Channel.basic_get")
        return self.receiver.get(number, queue, no_ack=no_ack)

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> None:
        """Delivers what is there, or waits for it, as the connection does."""
        self._transport.drain_events(self._transport, timeout=timeout)

    # Settling.

    def basic_ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Settles a message as done."""
        self.qos.ack(delivery_tag, multiple=multiple)

    # Its end.

    def close(self) -> None:
        """Ends the consumers, and gives back what is unsettled; while the database is away, as soon as it is back."""
        if self.closed:
            return
        self.closed = True
        try:
            self.receiver.return_claimed()
            self.qos.restore_unacked()
            for tag in list(self._consumers):
                self.basic_cancel(tag)
            self._process.flush()
        finally:
            self._consumers.clear()
            self.receiver.forget()
            if self.connection is not None:
                self.connection.close_channel(self)

    def abandon(self, *, give_back: bool) -> None:
        """Ends it without asking the database anything: its connection is lost.

        With *give_back* false it is a fork's copy, and what it holds is the parent's.
        """
        self.closed = True
        if give_back:
            self.receiver.return_claimed()
            self.qos.abandon()
            self.receiver.forget()
        else:
            self.receiver.drop()
            self.qos.discard()
        self._consumers.clear()
        self.connection = None


def _not_found(what: str, name: str, method: tuple[int, int], where: str) -> ChannelError:
    """Returns AMQP's error for what is not declared."""
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", method, where, "404")


class PublishBatch:
    """Gathers messages for a channel, and publishes up to *max_size* of them at a time: all or none."""

    def __init__(self, channel: Channel, max_size: int) -> None:
        self.channel = channel
        """The one it was made on, by which kombu tells whether the producer has another one by now."""
        self.max_size = max_size
        self._items: list[Publication] = []
        self._failed: BaseException | None = None

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **options: Any) -> None:
        """Takes a message."""
        self._items.append(self.channel.publication(message, exchange, routing_key, **options))
        if len(self._items) >= self.max_size:
            self.flush()

    def flush(self) -> None:
        """Publishes what was gathered. Raises :class:`BatchPublishError` unless it is known to have been published."""
        if self._failed is not None:
            raise BatchPublishError("This batch has failed before.") from self._failed
        items, self._items = self._items, []
        if not items:
            return
        try:
            self.channel.publish_all(items)
        except DatabaseError as error:
            self._failed = error
            raise BatchPublishError(
                f"The batch of {count(len(items), 'message')} was not published, as far as is known."
            ) from error
        except BaseException as error:
            self._failed = error
            raise

    def discard(self) -> None:
        """Forgets what was gathered: the block raised an error."""
        self._items.clear()

    def close(self) -> None:
        """Nothing: kombu flushes or discards before."""
