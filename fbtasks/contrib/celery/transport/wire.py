"""Packs a message of kombu for the database, and unpacks it."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Final

from amqp.basic_message import Message
from kombu.utils import json

from fbtasks.contrib.celery.store.messages import Claimed, Publication
from fbtasks.contrib.celery.store.names import kept, shown
from fbtasks.errors import SerializationError

_LOCAL: Final = ("delivery_tag", "delivery_info", "body_encoding")
"""Properties that are those of one delivery."""
_AMQP: Final = frozenset(name for name, _ in Message.PROPERTIES)
MOST_PRIORITY: Final = 9
LONGEST: Final = 10**12
"""Milliseconds that anything may last, some 31 years: a date of the database has an end."""
_CELERY: Final[dict[str, tuple[type, ...]]] = {
    "task": (str,),
    "id": (str, int),
    "shadow": (str, NoneType),
    "eta": (str, datetime, NoneType),
    "expires": (str, int, float, datetime, NoneType),
    "timelimit": (list, tuple, NoneType),
    "stamps": (dict, NoneType),
    "stamped_headers": (list, tuple, NoneType),
}
"""Headers of Celery's messages: other types end its worker with an error instead of the task."""


def publication(
    message: dict[str, Any], exchange: str, routing_key: str, *, withhold: bool, fallback: str | None
) -> Publication:
    """Makes a publication of *message*, which ``Channel.prepare_message`` has made.

    With *withhold*, one with Celery's ``eta`` header waits there until it is due. Raises :class:`SerializationError`
    when its headers cannot be written as JSON, a name is too long, or what the transport reads is of a wrong type.
    """
    properties = message["properties"]
    headers = message.get("headers") or {}
    body = message["body"]
    _expect(body, "the body of a message", str, bytes, bytearray, memoryview, NoneType)
    _check(properties, headers, message.get("content-type"), message.get("content-encoding"))
    body = b"" if body is None else body.encode() if isinstance(body, str) else bytes(body)
    packed = _head(
        {key: value for key, value in properties.items() if key not in _LOCAL},
        {"h": headers, "t": message.get("content-type"), "e": message.get("content-encoding")},
    )
    return Publication(
        exchange=kept(exchange),
        routing_key=kept(routing_key),
        message=b"%08d%b%b" % (len(packed), packed, body),
        priority=_priority(properties.get("priority")),
        start=_start(headers) if withhold else None,
        ttl=_ttl(properties, headers),
        fallback=fallback and kept(fallback),
    )


def _head(properties: dict[str, Any], rest: dict[str, Any]) -> bytes:
    """Packs all but the body. Drops what is no property of AMQP's and cannot be written, as AMQP does."""
    with suppress(TypeError, ValueError):
        return str(json.dumps({"p": properties, **rest})).encode()
    known = {key: value for key, value in properties.items() if key in _AMQP}
    try:
        return str(json.dumps({"p": known, **rest})).encode()
    except (TypeError, ValueError) as error:
        raise SerializationError(f"the headers of a message cannot be written as JSON: {error}") from error


def payload(claimed: Claimed, message: bytes, tag: int, consumer_tag: str | None) -> dict[str, Any]:
    """Returns what kombu's ``Message`` takes, of a message that was claimed.

    Raises :class:`SerializationError`, or what JSON raises, when it was not written by :func:`publication`.
    """
    length = int(message[:8])
    head = json.loads(message[8 : 8 + length])
    _expect(head, "the head of a message", dict)
    properties = head["p"]
    headers = head["h"]
    _check(properties, headers, head["t"], head["e"])
    info: dict[str, Any] = {
        "exchange": shown(claimed.exchange),
        "routing_key": shown(claimed.routing_key),
        "redelivered": claimed.redelivered,
        "priority": claimed.priority,
    }
    if consumer_tag is not None:
        info["consumer_tag"] = consumer_tag
    if claimed.dead_reason:
        headers["x-first-death-queue"] = queue = shown(claimed.dead_queue)
        headers["x-first-death-reason"] = claimed.dead_reason
        headers["x-death"] = [{"queue": queue, "reason": claimed.dead_reason, "count": 1}]
    properties["delivery_tag"] = tag
    properties["delivery_info"] = info
    return {
        "body": message[8 + length :],
        "content-type": head["t"],
        "content-encoding": head["e"],
        "headers": headers,
        "properties": properties,
    }


def title(message: bytes | None) -> str:
    """For a log: the task that a message is of, as ``" (task NAME, id ID)"``, or nothing where it does not say so."""
    with suppress(Exception):  # of another program, in any form
        headers = json.loads(message[8 : 8 + int(message[:8])])["h"]  # type: ignore[index]  # None is an error as well
        return f" (task {headers['task']!r:.100}, id {headers['id']!r:.100})"
    return ""


def _expect(value: object, what: str, *types: type) -> None:
    if not isinstance(value, types):
        names = " or ".join("None" if each is NoneType else each.__name__ for each in types)
        raise SerializationError(f"{value!r:.60} is a {type(value).__name__}: {what} must be {names}.")


def _check(properties: Any, headers: Any, content_type: Any, encoding: Any) -> None:
    """Raises :class:`SerializationError` for a message that would end its consumer.

    The body is not looked at, and no header but those of Celery's.
    """
    _expect(properties, "the properties of a message", dict)
    _expect(headers, "the headers of a message", dict)
    _expect(content_type, "content_type", str, NoneType)
    _expect(encoding, "content_encoding", str, NoneType)
    if not (_is_task(headers) and "lang" in headers):  # protocol 2; others may have such headers as well
        return
    for name, types in _CELERY.items():
        if name in headers:
            _expect(headers[name], f"Celery's header {name!r}", *types)
    limits = headers.get("timelimit")
    if limits is not None and len(limits) != 2:
        raise SerializationError(f"{limits!r:.60}: Celery's header 'timelimit' has two values.")


def _priority(value: Any) -> int:
    return 0 if value is None else max(0, min(MOST_PRIORITY, _number(value, "priority")))


def _number(value: Any, what: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise SerializationError(f"{value!r:.60} is no number: {what} must be one.") from None


def _is_task(headers: dict[str, Any]) -> bool:
    return "task" in headers and "id" in headers


def _start(headers: dict[str, Any]) -> int | None:
    eta = headers.get("eta")
    if not eta or not _is_task(headers):
        return None
    try:
        moment = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
    except (TypeError, ValueError):
        return None  # the worker knows what to say about it
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def span(value: Any) -> int | None:
    """Returns the publisher's milliseconds, from 0 to :data:`LONGEST`; None: none given.

    Raises :class:`SerializationError` for what is no number.
    """
    return None if value is None else min(max(0, _number(value, "a time in milliseconds")), LONGEST)


def _ttl(properties: dict[str, Any], headers: dict[str, Any]) -> int | None:
    """Returns the milliseconds to live.

    Not for a task of Celery that has its own ``expires``: its worker marks it as revoked, and a waiting caller is told,
    while one that vanished here would be waited for without end.
    """
    if properties.get("expiration") is None or (_is_task(headers) and headers.get("expires")):
        return None
    return span(properties["expiration"])
