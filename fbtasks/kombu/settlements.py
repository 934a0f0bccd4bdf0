"""Settlements on their way: gathered, written together, and one by one where one of them is in the way."""

from __future__ import annotations

import logging
import threading

from fbtasks.errors import ConflictError, DatabaseError, DatabaseUnavailable
from fbtasks.store import messages
from fbtasks.store.shared import SharedDatabase

logger = logging.getLogger("fbtasks.kombu")


class Settlements:
    """What became of messages and is not written yet. Records are those of :meth:`messages.Claimed.settle`."""

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._waiting: list[bytes] = []
        self._held_up: list[bytes] = []

    def add(self, record: bytes) -> bool:
        """One more. Gives whether none waited before. From any thread."""
        with self._lock:
            self._waiting.append(record)
            return len(self._waiting) == 1

    def take(self, most: int) -> list[bytes]:
        """Up to *most*, for somebody who writes them together with something else. Not those that are held up."""
        with self._lock:
            records, self._waiting = self._waiting[:most], self._waiting[most:]
        return records

    def put_back(self, records: list[bytes]) -> None:
        """They were not written."""
        with self._lock:
            self._waiting[:0] = records

    @property
    def held_up(self) -> bool:
        """Whether there are any whose rows somebody else holds."""
        return bool(self._held_up)

    def write(self, consumer_id: int | None) -> None:
        """Writes all, by one thread at a time; without a consumer there is nobody whom they concern any more.

        One whose row somebody else holds is left for the next time. One that the database refuses is given up, with an
        error in the log. Raises :class:`DatabaseUnavailable`, after which all wait again.
        """
        with self._lock:
            records, self._waiting, self._held_up = [*self._held_up, *self._waiting], [], []
        if consumer_id is None:
            return
        left = records
        try:
            try:
                for chunk in messages.chunks(records):
                    self._settle(consumer_id, chunk)
                left = []
            except DatabaseUnavailable:
                raise
            except DatabaseError:
                while left:
                    self._write_one(consumer_id, left[0])
                    left = left[1:]
        finally:
            self.put_back(left)

    def _write_one(self, consumer_id: int, record: bytes) -> None:
        try:
            self._settle(consumer_id, record)
        except ConflictError:
            self._held_up.append(record)
        except DatabaseUnavailable:
            raise
        except DatabaseError as error:
            logger.error("A message stays with consumer %d, for its settlement is refused: %s", consumer_id, error)

    def _settle(self, consumer_id: int, records: bytes) -> None:
        self._shared.use_in_turn(lambda t: messages.settle(t, consumer_id, records))
