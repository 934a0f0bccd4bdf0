"""Several publications in one transaction: what ``Producer.batch()`` uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kombu.exceptions import BatchPublishError

from fbtasks.contrib.celery.store.messages import Publication
from fbtasks.errors import DatabaseError
from fbtasks.system.showing import count


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
