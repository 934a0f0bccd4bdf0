"""The status of a child process, in memory that it shares with its worker.

The child notes each task as it begins it; that costs a microsecond, and no message. So the worker knows at every moment
what has begun and since when, also of a child that has just died. And the child knows as whom the worker is registered,
which it is only while the child starts, and may be anew when it was declared dead, and which database the worker works
on, so that it connects to no other. And the process that sends a solo worker's heartbeats says here when it was held up
itself.
"""

from __future__ import annotations

import mmap
import os
from ctypes import Structure, c_double, c_int64, c_ubyte, sizeof
from typing import ClassVar

from fbtasks import timing as clock
from fbtasks.firebird.identity import MARK_SIZE
from fbtasks.worker.pools.wire import memory_file


class _Slot(Structure):
    """The task of a slot, or its last one. Times are monotonic: all processes of a machine share that clock."""

    number: int
    since: float
    """When it began; 0.0: the slot is free."""
    step: int
    """In which of its calls it is, when it is a run of several."""
    beaten: float
    """When it said last that it is at work."""
    ended: float
    """When its end had been said."""
    _fields_: ClassVar = [
        ("number", c_int64), ("since", c_double), ("step", c_int64), ("beaten", c_double), ("ended", c_double)
    ]  # fmt: skip


class _Shared(Structure):
    """What worker and child share beside the slots."""

    worker_id: int
    """As whom the worker is registered."""
    stalled_until: float
    """The monotonic time at which the last stall of what sends heartbeats ended; 0.0: it had none."""
    answered: float
    """The monotonic time at which the child has last answered its worker."""
    _fields_: ClassVar = [
        ("worker_id", c_int64), ("stalled_until", c_double), ("answered", c_double), ("soft", c_int64),
        ("stop", c_int64), ("mark", c_ubyte * MARK_SIZE),
    ]  # fmt: skip


class ChildStatus:
    """One entry for each slot of a child. *file* is that of the other side; None makes a new one."""

    def __init__(self, slots: int, file: int | None = None) -> None:
        self.file = memory_file("fbtasks-status") if file is None else file
        size = sizeof(_Shared) + slots * sizeof(_Slot)
        try:
            if file is None:
                os.ftruncate(self.file, size)
            memory = mmap.mmap(self.file, size)
        except OSError:
            os.close(self.file)
            raise
        self.shared = _Shared.from_buffer(memory)
        self._slots = [_Slot.from_buffer(memory, sizeof(_Shared) + slot * sizeof(_Slot)) for slot in range(slots)]

    def begin(self, slot: int, task: int) -> None:
        """Notes that *task* begins now."""
        entry = self._slots[slot]
        entry.number = 0  # the worker may look at any moment: no task has the time of another
        entry.since, entry.step, entry.beaten, entry.ended = clock.monotonic(), 0, 0.0, 0.0
        entry.number = task

    def begin_step(self, slot: int, step: int) -> None:
        """Notes that the call number *step* begins now, of a task that is a run of several calls."""
        self._slots[slot].since, self._slots[slot].step = clock.monotonic(), step

    def end(self, slot: int) -> None:
        """Notes that nothing runs at *slot* any more: the end of what ran has been said."""
        self._slots[slot].since, self._slots[slot].ended = 0.0, clock.monotonic()

    def beat(self, task: int) -> None:
        """Notes that *task* is at work, wherever it runs here."""
        for each in self._of(task):
            each.beaten = clock.monotonic()

    def answer(self) -> None:
        """Notes that the child, in which a task does not stop, answers its worker."""
        self.shared.answered = clock.monotonic()

    def running(self) -> dict[int, float]:
        """Returns since when each running task runs."""
        return {each.number: each.since for each in self._slots if each.number and each.since}

    def ended(self) -> dict[int, float]:
        """Returns when the end of the last task of each slot was sent."""
        return {each.number: each.ended for each in self._slots if each.number and each.ended}

    def step_of(self, task: int) -> int:
        """Which of its calls *task* is in; 0 when it does not run, or is not one of several."""
        return max((each.step for each in self._of(task)), default=0)

    def beaten(self, task: int) -> float:
        """When *task* said last that it is at work; 0.0: it has not, or does not run."""
        return max((each.beaten for each in self._of(task)), default=0.0)

    def _of(self, task: int) -> list[_Slot]:
        return [each for each in self._slots if each.number == task and not each.ended]

    @property
    def database(self) -> bytes:
        """The mark of the database that the worker works on; zeros before it has connected."""
        return bytes(self.shared.mark)

    @database.setter
    def database(self, mark: bytes) -> None:
        self.shared.mark[:] = mark.ljust(MARK_SIZE, b"\0")

    def aim(self, kind: str, task: int) -> None:
        """Says for which task the next signal of this kind is meant."""
        setattr(self.shared, kind, task)

    def aimed_at(self, kind: str) -> int:
        """The task that the last signal of this kind was meant for."""
        return int(getattr(self.shared, kind))

    def close(self) -> None:
        """Closes the file. The memory is freed with this."""
        os.close(self.file)
