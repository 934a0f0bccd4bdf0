"""Arguments of RabbitMQ for queues, exchanges, consumers and publications.

Those that would change what a program sees, and have no effect here, are refused; docs/how-to/celery.md has a table. As
in RabbitMQ, only arguments whose names begin with ``x-``, and ``alternate-exchange``, have a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fbtasks.contrib.celery.store.messages import QueueSpec
from fbtasks.contrib.celery.store.names import kept
from fbtasks.contrib.celery.transport import wire
from fbtasks.errors import ConfigurationError

_HIGHEST: Final = 10
"""The x-max-priority of Celery's documentation; messages with 9 and 10 are equal here."""
_DONE: Final = frozenset(
    {"x-message-ttl", "x-expires", "x-max-length", "x-dead-letter-exchange", "x-dead-letter-routing-key"}
)
_ALWAYS: Final = frozenset(
    {
        "x-queue-mode", "x-queue-version", "x-dead-letter-strategy", "x-queue-master-locator",
        "x-queue-leader-locator", "x-quorum-initial-group-size", "x-cancel-on-ha-failover",
    }
)  # fmt: skip
"""Arguments about where RabbitMQ keeps messages, and safety that messages in a database have in any case."""
_VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "x-overflow": ("drop-head", "reject-publish"),
    "x-queue-type": ("classic", "quorum"),
    "x-single-active-consumer": (False,),
}
_REMEDIES: Final = {
    "x-max-length-bytes": "limit the number of messages by x-max-length",
    "x-delivery-limit": "set delivery_limit in broker_transport_options",
    "x-overflow": "it may be 'drop-head' or 'reject-publish'",
    "x-queue-type": "it may be 'classic' or 'quorum'",
    "x-max-priority": f"it may be a whole number up to {_HIGHEST}, and priorities are 0 to 9 in each queue",
    "x-single-active-consumer": "run one consumer",
    "alternate-exchange": "set deadletter_queue in broker_transport_options, or bind a queue to the exchange",
    "mandatory": "set deadletter_queue in broker_transport_options: it gets what goes nowhere",
    "immediate": "RabbitMQ knows it no more",
    "CC": "bind several queues to one exchange",
    "BCC": "bind several queues to one exchange",
}


def queue_spec(name: str, arguments: Mapping[str, Any], *, durable: bool, auto_delete: bool) -> QueueSpec:
    """Returns the queue that is declared so. Raises :class:`ConfigurationError` for what has no effect here."""
    _check(f"the queue {name!r}", arguments)
    length = arguments.get("x-max-length")
    dead, dead_key = (arguments.get(f"x-dead-letter-{what}") for what in ("exchange", "routing-key"))
    return QueueSpec(
        name=kept(name),
        durable=durable,
        auto_delete=auto_delete,
        message_ttl=wire.span(arguments.get("x-message-ttl")),
        expires=wire.span(arguments.get("x-expires")),
        max_length=None if length is None else int(length),
        rejects=length is not None and arguments.get("x-overflow") == "reject-publish",
        dead_exchange=None if dead is None else kept(dead),
        dead_routing_key=None if dead_key is None else kept(dead_key),
    )


def check_exchange(name: str, arguments: Mapping[str, Any] | None) -> None:
    """Raises :class:`ConfigurationError` for an argument of an exchange, which has none here."""
    for argument, value in (arguments or {}).items():
        if value is not None and (argument.startswith("x-") or argument == "alternate-exchange"):
            raise _refused(f"the exchange {name!r}", argument, value)


def check_consumer(queue: str, arguments: Mapping[str, Any] | None, **flags: Any) -> None:
    """Raises :class:`ConfigurationError` for an argument or a flag of a consumer that has no effect here."""
    _check(f"a consumer of the queue {queue!r}", arguments or {})
    check_flags(f"a consumer of the queue {queue!r}", **flags)


def check_publication(message: Mapping[str, Any], **flags: Any) -> None:
    """Raises :class:`ConfigurationError` for a flag or a header by which RabbitMQ would route a message otherwise."""
    check_flags("a message", **flags)
    headers = message.get("headers") or {}
    for name in ("CC", "BCC"):
        if isinstance(headers, Mapping) and isinstance(headers.get(name), list):  # of another type they are no routes
            raise _refused("a message", name, headers[name])


def check_flags(whose: str, **flags: Any) -> None:
    """Raises :class:`ConfigurationError` for a flag that is set."""
    for name, value in flags.items():
        if value:
            raise _refused(whose, name, value)


def _check(whose: str, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if value is None or not name.startswith("x-") or name in _DONE or name in _ALWAYS:
            continue
        if name == "x-max-priority" and isinstance(value, int) and value <= _HIGHEST:
            continue
        if value not in _VALUES.get(name, ()):
            raise _refused(whose, name, value)


def _refused(whose: str, name: str, value: Any) -> ConfigurationError:
    remedy = _REMEDIES.get(name, "leave it out")
    return ConfigurationError(f"{name}={value!r:.60} of {whose} has no effect on Firebird: {remedy}.")
