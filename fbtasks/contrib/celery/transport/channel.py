"""A channel: publishes, consumes and settles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.exceptions import BatchPublishError
from kombu.utils.uuid import uuid

from fbtasks.contrib.celery.store.messages import Publication
from fbtasks.contrib.celery.transport import qos as quality
from fbtasks.contrib.celery.transport import wire
from fbtasks.contrib.celery.transport.declarations import DeclaringChannel, not_found
from fbtasks.contrib.celery.transport.inbox import Inbox
from fbtasks.contrib.celery.transport.receiver import Receiver, Subscription
from fbtasks.errors import DatabaseError
from fbtasks.system.showing import count


class Channel(DeclaringChannel):
    """A channel of the transport. The thread that receives is one; messages are settled from any."""

    QoS = quality.QoS
    do_restore = False
    body_encoding = None

    closed: bool
    connection: Any

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._transport = connection
        inbox: Inbox = connection.inbox
        self.qos = quality.QoS(self, self._process.settlements.add, inbox.wake)
        self.receiver = Receiver(self._process, inbox, self.qos, lambda payload: self.Message(payload, channel=self))
        self._process.watch(self.qos)

    qos: quality.QoS = None  # type: ignore[assignment]  # set at once; it replaces the base class's property

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
                raise not_found("exchange", item.exchange, (60, 40), "Channel.basic_publish")

    def create_publish_batch(self, max_size: int) -> PublishBatch:
        """What ``Producer.batch()`` gathers messages in."""
        return PublishBatch(self, self.publication, self.publish_all, max_size)

    # Consuming.

    def basic_consume(
        self, queue: str, no_ack: bool = False, callback: Any = None, consumer_tag: str | None = None, **_: Any
    ) -> str:
        """Has *callback* called with each message of a queue, while events are drained. Returns the consumer's tag."""
        tag = consumer_tag or uuid()
        if not self.receiver.begin(Subscription(tag, queue, no_ack, callback)):
            raise not_found("queue", queue, (60, 20), "Channel.basic_consume")
        self._consumers.add(tag)
        return tag

    def basic_cancel(self, consumer_tag: str) -> None:
        """Ends a consumer. What was claimed for it and not delivered goes back, for others."""
        self._consumers.discard(consumer_tag)
        self.receiver.end(consumer_tag)

    def basic_get(self, queue: str, no_ack: bool = False, **_: Any) -> Any:
        """The next message of a queue; None: there is none."""
        number = self._shared.use(lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", None, queue, None))
        if number is None:
            raise not_found("queue", queue, (60, 70), "Channel.basic_get")
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


class PublishBatch:
    """Gathers messages, and publishes up to *max_size* of them at a time: all or none.

    *prepare* makes a publication of a message, its exchange and its routing key; *publish* writes several.
    """

    def __init__(
        self,
        channel: object,
        prepare: Callable[[dict[str, Any], str, str], Publication],
        publish: Callable[[list[Publication]], None],
        max_size: int,
    ) -> None:
        self.channel = channel
        """The one it was made on, by which kombu tells whether the producer has another one by now."""
        self._prepare = prepare
        self._publish = publish
        self.max_size = max_size
        self._items: list[Publication] = []
        self._failed: BaseException | None = None
        self._over = False

    def publish(self, message: dict[str, Any], exchange: str = "", routing_key: str = "", **_: Any) -> None:
        """Takes a message."""
        self._check()
        self._items.append(self._prepare(message, exchange, routing_key))
        if len(self._items) >= self.max_size:
            self.flush()

    def flush(self) -> None:
        """Publishes what was gathered. Raises :class:`BatchPublishError` unless it is known to have been published."""
        self._check()
        items, self._items = self._items, []
        if not items:
            return
        try:
            self._publish(items)
        except DatabaseError as error:
            self._failed = error
            raise BatchPublishError(
                f"The batch of {count(len(items), 'message')} was not published, as far as is known."
            ) from error
        except BaseException as error:
            self._failed = error
            raise

    def discard(self) -> None:
        """Forgets what was gathered."""
        self._over = True
        self._items.clear()

    def close(self) -> None:
        """Ends it."""
        self._over = True

    def _check(self) -> None:
        if self._over:
            raise RuntimeError("This batch has ended.")
        if self._failed is not None:
            raise BatchPublishError("This batch has failed before.") from self._failed
