"""Claims of messages, and their settlements: gathered, and written with a claim, together, or one by one."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
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
_UNCLAIM: Final = 1.0
"""Seconds after which a claim whose answer was lost is given back once more."""
_UNCLAIM_FOR: Final = 60.0
_PIGGYBACK: Final = 800
"""Settlements that travel with a claim, at most."""


class Settlements:
    """What became of messages and is not written yet. Records are those of :meth:`messages.Claimed.settle`.

    Every method may be called from any thread.
    """

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self.alarm = Alarm()
        """Wakes the consumer's thread."""
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
        if record[:1] in (messages.GIVEN_BACK, messages.UNSEEN):
            self.marks.forget()
        with self._lock:
            self._added += 1
            self._large += record.startswith(messages.DONE_WITH_BODY)
            self._waiting.append(record)
            first = len(self._waiting) == 1
        if first:
            self.alarm.ask_for(clock.monotonic() + _GATHER)

    def take_added(self) -> int:
        """Returns how many have been added since the last call."""
        with self._lock:
            added, self._added = self._added, 0
        return added

    def take_large(self) -> int:
        """Returns how many messages with a body of their own were settled since the last call."""
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
        self._rung = threading.Event()
        self.at = math.inf
        """The earliest moment asked for, in monotonic time."""

    def ask_for(self, moment: float) -> None:
        """Wakes the waiting thread at *moment*, if it would not wake before."""
        if moment < self.at:
            self.at = moment
            self.ring()

    def ring(self) -> None:
        """Ends the wait, or the next one."""
        self._rung.set()

    def clear(self) -> None:
        """Forgets what was asked for."""
        self.at = math.inf

    def wait(self, until: float) -> None:
        """Waits until *until*, or until another moment is asked for."""
        self._rung.wait(max(0.0, until - clock.monotonic()))
        self._rung.clear()


@dataclass(slots=True, eq=False)
class Uncertain:
    """A claim whose answer was lost."""

    consumer_id: int
    claim_id: int
    queue_id: int
    again_at: float = 0.0
    until: float = 0.0
    """The monotonic time from which on it cannot take effect any more; 0 until it was given back once."""


class Claims:
    """The claims of this process. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, settlements: Settlements) -> None:
        self._shared = shared
        self._settlements = settlements
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._uncertain: list[Uncertain] = []

    def claim(self, consumer_id: int, queue_id: int, most: int) -> messages.Taken | None:
        """Claims up to *most* messages; settlements that wait go with it. None: this consumer is not registered."""
        while True:
            claim_id = next(self._numbers)
            records: list[bytes] = []
            try:
                with self._settlements.taken(_PIGGYBACK) as records:
                    settled, after = b"".join(records), self._settlements.marks.get(queue_id)
                    taken = self._shared.use_in_turn(
                        lambda t: messages.claim(t, consumer_id, claim_id, queue_id, most, settled, after)  # noqa: B023
                    )
                if taken is not None:
                    self._settlements.marks.note(queue_id, taken)
                return taken
            except BaseException as error:
                if not isinstance(error, ConflictError | StatementRefused):
                    self.note_lost(Uncertain(consumer_id, claim_id, queue_id))
                    raise
                if not records:
                    raise
            self._settlements.write(consumer_id)  # one of them was in the way

    def note_lost(self, claim: Uncertain) -> None:
        """Notes a claim whose answer was lost."""
        with self._lock:
            self._uncertain.append(claim)

    def give_back_lost(self) -> None:
        """Gives back the claims whose answer was lost."""
        for claim in list(self._uncertain):
            self._give_back(claim)

    def _give_back(self, claim: Uncertain) -> None:
        """Gives back one; for a while again and again, as its commit may come later."""
        now = clock.monotonic()
        if now < claim.again_at:
            return
        claim.again_at = now + _UNCLAIM
        try:
            self._shared.use_in_turn(
                lambda t: t.call("FBTASKS_CELERY.UNCLAIM", claim.consumer_id, claim.claim_id, claim.queue_id),
                attempts=1,
            )
        except ConflictError:  # it is being committed
            return
        claim.until = claim.until or now + _UNCLAIM_FOR
        if now >= claim.until:
            with self._lock:
                self._uncertain.remove(claim)
