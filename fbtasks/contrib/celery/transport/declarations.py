"""What a channel declares: exchanges, queues and bindings are in the database, where all see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from amqp.protocol import queue_declare_ok_t
from kombu.exceptions import ChannelError
from kombu.transport import virtual
from kombu.transport.base import to_rabbitmq_queue_arguments
from kombu.utils.uuid import uuid

from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import BATCH, QueueFacts, QueueSpec
from fbtasks.contrib.celery.transport import wire
from fbtasks.contrib.celery.transport.process import ConsumerProcess
from fbtasks.firebird.session import READ

_NOT_FOUND: Final = 404


class DeclaringChannel(virtual.Channel):  # type: ignore[misc]  # kombu has no types
    """The part of a channel that declares, deletes and shows. From any thread."""

    supports_fanout = True

    def __init__(self, connection: Any) -> None:
        super().__init__(connection)
        self._process: ConsumerProcess = connection.process
        self._shared: SharedDatabase = self._process.shared

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
            lambda t: t.call(
                "FBTASKS_CELERY_API.DECLARE_EXCHANGE", name, None if passive else kind, durable, auto_delete
            )
        )
        if found is None:
            raise not_found("exchange", name, (40, 10), "Channel.exchange_declare")
        if not passive and found != kind:
            raise virtual.base.NotEquivalentError(
                f"Cannot redeclare exchange {name!r}: it is of type {found!r}, not {kind!r}."
            )

    def exchange_delete(self, exchange: str, if_unused: bool = False, nowait: bool = False) -> None:
        """Deletes an exchange and its bindings."""
        self._shared.use(lambda t: t.call("FBTASKS_CELERY.DROP_EXCHANGE", exchange, if_unused))

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
            raise not_found("queue", name, (50, 10), "Channel.queue_declare")
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
        self._shared.use(lambda t: t.call("FBTASKS_CELERY.DROP_QUEUE", queue, if_unused, if_empty, number))

    def queue_bind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Binds a queue to an exchange."""
        name = exchange or "amq.direct"
        done = self._shared.use(lambda t: t.call("FBTASKS_CELERY_API.BIND", queue, name, routing_key or ""))
        if done < 0:
            raise not_found("exchange", name, (50, 20), "Channel.queue_bind")
        if not done:
            raise not_found("queue", queue, (50, 20), "Channel.queue_bind")

    def queue_unbind(self, queue: str, exchange: str | None = None, routing_key: str = "", **_: Any) -> None:
        """Takes a binding away."""
        name = exchange or "amq.direct"
        self._shared.use(lambda t: t.call("FBTASKS_CELERY.UNBIND", queue, name, routing_key or ""))

    def queue_purge(self, queue: str, **_: Any) -> int:
        """Deletes what waits in a queue. Returns how many messages."""
        total = 0
        while True:
            gone: int | None = self._shared.use_in_turn(lambda t: t.call("FBTASKS_CELERY_UPKEEP.PURGE", queue, BATCH))
            if gone is None:
                raise not_found("queue", queue, (50, 30), "Channel.queue_purge")
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


def _integer(value: Any) -> int | None:
    return None if value is None else int(value)


def not_found(what: str, name: str, method: tuple[int, int], where: str) -> ChannelError:
    """The error of AMQP for what is not declared."""
    return ChannelError(f"NOT_FOUND - no {what} {name!r}", method, where, str(_NOT_FOUND))
