"""Flower's page of the broker, for queues in a Firebird database. Importing this registers it.

The transport does so in a process that has Flower loaded.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from flower.utils.broker import Broker
from kombu import Connection


class FirebirdBroker:
    """What Flower asks a broker."""

    def __init__(self, url: str, *, broker_options: dict[str, Any] | None = None, **_: Any) -> None:
        self._url = url
        self._options = broker_options

    async def queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Returns the lengths of those queues that are there: each number up to 10,000."""
        return await get_running_loop().run_in_executor(None, self._queues, names)

    def _queues(self, names: Iterable[str]) -> list[dict[str, Any]]:
        with Connection(self._url, transport_options=self._options) as connection:
            return [
                {
                    "name": each.name,
                    "messages": each.messages,
                    "messages_ready": each.ready,
                    "messages_unacknowledged": each.claimed,
                    "consumers": each.consumers,
                }
                for each in connection.channel().lengths(names)
            ]


def _register() -> None:
    make = Broker.__new__

    def choose(kind: Any, url: str, *args: Any, **options: Any) -> Any:
        ours = urlsplit(url).scheme == "firebird"
        return FirebirdBroker(url, **options) if ours else make(kind, url, *args, **options)

    Broker.__new__ = choose


_register()
