"""Settlements on their way: gathered, written together, and one by one where one of them is in the way."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from fbtasks import timing as clock
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.errors import ConflictError, StatementRefused
from fbtasks.firebird.session import MOST_ATTEMPTS
from fbtasks.queue.codec import chunks

logger = logging.getLogger("fbtasks.kombu")
_GATHER: Final = 0.01
"""Seconds for which settlements are gathered."""
_AGAIN: Final = 2.0
"""Seconds until a settlement is tried again whose row another transaction held."""


class Settlements:
    """What became of messages and is not written yet. Records are those of :meth:`messages.Claimed.settle`.

    Every method may be called from any thread.
    """

    def __init__(self, shared: SharedDatabase, alarm: Alarm) -> None:
        self._shared = shared
        self._alarm = alarm
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._waiting: list[bytes] = []
        self._held_up: list[bytes] = []
        self._again_at = 0.0
        self.marks = messages.LowWaterMarks()
        """Where claims go on. What is given back comes before that."""
        self._added = self._large = 0

    def add(self, record: bytes) -> None:
        """Takes a settlement. The consumer's thread writes it within milliseconds, with others."""
        if messages.gives_back(record):
            self.marks.forget()
        with self._lock:
            self._added += 1
            self._large += record.startswith(messages.DONE_WITH_BODY)
            self._waiting.append(record)
            first = len(self._waiting) == 1
        if first:
            self._alarm.ask_for(clock.monotonic() + _GATHER)

    def take_added(self) -> int:
        """How many have been added since the last call."""
        with self._lock:
            added, self._added = self._added, 0
        return added

    def take_large(self) -> int:
        """The same, of messages with a body of their own."""
        with self._lock:
            large, self._large = self._large, 0
        return large

    @contextmanager
    def taken(self, most: int) -> Iterator[list[bytes]]:
        """Up to *most* settlements for the block, which writes them with something else. If it raises, they wait again.

        Those that are held up are not among them.
        """
        with self._writing:
            with self._lock:
                records, self._waiting = self._waiting[:most], self._waiting[most:]
            try:
                yield records
            except BaseException:
                self._put_back(records)
                raise

    def _put_back(self, records: list[bytes]) -> None:
        with self._lock:
            self._waiting[:0] = records

    def write(self, consumer_id: int | None) -> None:
        """Writes all; without a consumer they wait for one.

        The consumer that claimed the messages may be about to write them itself, at its end. Another one changes
        nothing by them.

        One whose row another transaction holds is left for a later time. One that the database refuses is given up,
        with an error in the log. Raises :class:`DatabaseUnavailable`, after which all wait again.
        """
        if consumer_id is None:
            return
        with self._writing:
            now = clock.monotonic()
            with self._lock:
                records, self._waiting = self._waiting, []
                held_up: list[bytes] = []
                if now >= self._again_at:
                    held_up, self._held_up = self._held_up, []
            try:
                try:
                    for group in chunks(records):
                        self._settle(consumer_id, group)
                except (ConflictError, StatementRefused):  # because of one of them
                    self._write_each(consumer_id, records)
                records = []
                self._write_each(consumer_id, held_up)
                held_up = []
            finally:  # written twice, they would change nothing
                self._put_back(records)
                self._held_up.extend(held_up)

    def _write_each(self, consumer_id: int, records: list[bytes]) -> None:
        for record in records:
            try:
                self._settle(consumer_id, record, attempts=1)
            except ConflictError:
                self._held_up.append(record)
                self._again_at = clock.monotonic() + _AGAIN
            except StatementRefused as error:
                logger.error("A message stays with consumer %d, for its settlement is refused: %s", consumer_id, error)

    def _settle(self, consumer_id: int, records: bytes, attempts: int = MOST_ATTEMPTS) -> None:
        self._shared.use_in_turn(lambda t: t.call("FBTASKS_CELERY.SETTLE", consumer_id, records), attempts)


class Alarm:
    """The moment for which other threads ask the one that waits here."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._rung = False
        self.at = math.inf
        """The earliest moment asked for, in monotonic time."""

    def ask_for(self, moment: float) -> None:
        """Has the waiting thread wake at *moment*, if it would not before."""
        if moment < self.at:
            self.at = moment
            self.ring()

    def ring(self) -> None:
        """Ends the wait, or the next one."""
        with self._changed:
            self._rung = True
            self._changed.notify()

    def clear(self) -> None:
        """Forgets what was asked for."""
        self.at = math.inf

    def wait(self, until: float) -> None:
        """Waits until *until*, or until another moment is asked for."""
        with self._changed:
            if not self._rung:
                self._changed.wait(max(0.0, until - clock.monotonic()))
            self._rung = False
