"""A message of kombu as the bytes that the database keeps, and back."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from amqp.basic_message import Message
from kombu.utils import json

from fbtasks.errors import SerializationError
from fbtasks.store.messages import LONGEST_NAME, Claimed, Publication

_LOCAL: Final = ("delivery_tag", "delivery_info", "body_encoding")
"""Properties that are those of one delivery."""
_AMQP: Final = frozenset(name for name, _ in Message.PROPERTIES)
MOST_PRIORITY: Final = 9
LONGEST: Final = 10**12
"""Milliseconds that anything may last, some 31 years: a date of the database has an end."""


def publication(
    message: dict[str, Any], exchange: str, routing_key: str, *, withhold: bool, fallback: str | None
) -> Publication:
    """What *message*, as ``Channel.prepare_message`` makes it, is for the database.

    With *withhold*, one with Celery's ``eta`` header waits there until it is due. Raises :class:`SerializationError`
    when its headers cannot be written as JSON, or a name is too long.
    """
    properties = message["properties"]
    headers = message.get("headers") or {}
    for name in (exchange, routing_key):
        if len(name) > LONGEST_NAME:
            raise SerializationError(
                f"{name!r:.60} has {len(name)} characters; names and keys have {LONGEST_NAME} at most."
            )
    body = message["body"]
    body = b"" if body is None else body.encode() if isinstance(body, str) else bytes(body)
    packed = _head(
        {key: value for key, value in properties.items() if key not in _LOCAL},
        {"h": headers, "t": message.get("content-type"), "e": message.get("content-encoding")},
    )
    return Publication(
        exchange=exchange,
        routing_key=routing_key,
        message=b"%08d%b%b" % (len(packed), packed, body),
        priority=_priority(properties.get("priority")),
        start=_start(headers) if withhold else None,
        ttl=_ttl(properties, headers),
        fallback=fallback,
    )


def _head(properties: dict[str, Any], rest: dict[str, Any]) -> bytes:
    """All but the body. What is neither a property of AMQP's nor can be written is dropped, as AMQP drops it."""
    with suppress(TypeError, ValueError):
        return str(json.dumps({"p": properties, **rest})).encode()
    known = {key: value for key, value in properties.items() if key in _AMQP}
    try:
        return str(json.dumps({"p": known, **rest})).encode()
    except (TypeError, ValueError) as error:
        raise SerializationError(f"the headers of a message cannot be written as JSON: {error}") from error


def payload(claimed: Claimed, message: bytes, tag: int, consumer_tag: str | None) -> dict[str, Any]:
    """What kombu's ``Message`` takes, of a message that was claimed."""
    length = int(message[:8])
    head = json.loads(message[8 : 8 + length])
    properties = head["p"]
    headers = head["h"]
    info: dict[str, Any] = {
        "exchange": claimed.exchange,
        "routing_key": claimed.routing_key,
        "redelivered": claimed.redelivered,
        "priority": claimed.priority,
    }
    if consumer_tag is not None:
        info["consumer_tag"] = consumer_tag
    if claimed.dead_reason:
        headers["x-first-death-queue"] = claimed.dead_queue
        headers["x-first-death-reason"] = claimed.dead_reason
        headers["x-death"] = [{"queue": claimed.dead_queue, "reason": claimed.dead_reason, "count": 1}]
    properties["delivery_tag"] = tag
    properties["delivery_info"] = info
    return {
        "body": message[8 + length :],
        "content-type": head["t"],
        "content-encoding": head["e"],
        "headers": headers,
        "properties": properties,
    }


def _priority(value: object) -> int:
    try:
        return max(0, min(MOST_PRIORITY, int(value)))  # type: ignore[call-overload,no-any-return]  # whatever the caller gave
    except (TypeError, ValueError):
        return 0


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
    """Milliseconds as somebody gave them, from 0 to :data:`LONGEST`; None: none given."""
    return None if value is None else min(max(0, int(value)), LONGEST)


def _ttl(properties: dict[str, Any], headers: dict[str, Any]) -> int | None:
    """Milliseconds to live.

    Not for a task of Celery that has its own ``expires``: its worker marks it as revoked, and who waits for it is told,
    while one that vanished here would be waited for without end.
    """
    if properties.get("expiration") is None or (_is_task(headers) and headers.get("expires")):
        return None
    return span(properties["expiration"])
