"""What a child process runs at this moment, in memory that it shares with its worker.

The child notes each task as it begins it; that costs a microsecond, and no message. So the worker knows at every moment
what has begun and since when, also of a child that has just died. And the child knows as whom the worker is registered,
which it is only while the child starts, and may be anew when it was declared dead, and which database the worker works
on, so that it connects to no other. And the process that sends a solo worker's heartbeats says here when it was held up
itself.
"""

from __future__ import annotations

import mmap
import os
import struct
from typing import Final

from fbtasks import timing as clock
from fbtasks.firebird.identity import MARK_SIZE
from fbtasks.run.interrupts import SOFT, STOP
from fbtasks.worker.pools.wire import memory_file

_NUMBER: Final = struct.Struct("<q")
_TARGETS: Final = {SOFT: 0, STOP: _NUMBER.size}
_ENTRY: Final = struct.Struct("<qdqd")
"""The number of the run, since when, in which of its calls, and when it said last that it is at work.

When its end has been said: the number, since when or 0.0 if the slot is free, :data:`_SAID`, and when that was.
"""
_TIMES: Final = struct.Struct("<dqd")
_SAID: Final = -1
_BEAT: Final = _ENTRY.size - 8
_WORKER_AT: Final = 2 * _NUMBER.size
_MOMENT: Final = struct.Struct("<d")
_STALLED_AT: Final = _WORKER_AT + _NUMBER.size
_MARK_AT: Final = _STALLED_AT + _MOMENT.size
_FIRST: Final = _MARK_AT + MARK_SIZE


class ChildStatus:
    """One entry for each slot of a child. *file* is that of the other side; None makes a new one."""

    def __init__(self, slots: int, file: int | None = None) -> None:
        self.file = memory_file("fbtasks-status") if file is None else file
        self._size = _FIRST + slots * _ENTRY.size
        try:
            if file is None:
                os.ftruncate(self.file, self._size)
            self._memory = mmap.mmap(self.file, self._size)
        except OSError:
            os.close(self.file)
            raise

    def begin(self, slot: int, task: int) -> None:
        """Notes that *task* begins now."""
        at = _FIRST + slot * _ENTRY.size
        _NUMBER.pack_into(self._memory, at, 0)  # the worker may look at any moment: no task has the time of another
        _TIMES.pack_into(self._memory, at + _NUMBER.size, clock.monotonic(), 0, 0.0)
        _NUMBER.pack_into(self._memory, at, task)

    def said(self, slot: int) -> None:
        """Notes that the end of what runs at *slot* has been said to the worker, whose word it waits for."""
        at = _FIRST + slot * _ENTRY.size + _NUMBER.size
        (since,) = _MOMENT.unpack_from(self._memory, at)
        _TIMES.pack_into(self._memory, at, since, _SAID, clock.monotonic())

    def end(self, slot: int) -> None:
        """Notes that nothing runs at *slot* any more: the end of what ran has been said."""
        at = _FIRST + slot * _ENTRY.size + _NUMBER.size
        _TIMES.pack_into(self._memory, at, 0.0, _SAID, clock.monotonic())

    def begin_step(self, slot: int, step: int) -> None:
        """Notes that the call number *step* begins now, of a task that is a run of several calls."""
        at = _FIRST + slot * _ENTRY.size + _NUMBER.size
        _MOMENT.pack_into(self._memory, at, clock.monotonic())
        _NUMBER.pack_into(self._memory, at + _MOMENT.size, step)

    def running(self) -> dict[int, float]:
        """What runs, and since when on the monotonic clock, which all processes of a machine share."""
        return {task: since for task, since, *_ in _ENTRY.iter_unpack(self._memory[_FIRST:]) if task and since}

    def ended(self) -> dict[int, float]:
        """What has ended, as the last one of its slot, and when its end had been said."""
        return {task: at for task, _, step, at in _ENTRY.iter_unpack(self._memory[_FIRST:]) if task and step == _SAID}

    def step_of(self, task: int) -> int:
        """Which of its calls *task* is in; 0 when it does not run, or is not one of several."""
        return next((max(step, 0) for each, _, step, _ in _ENTRY.iter_unpack(self._memory[_FIRST:]) if each == task), 0)

    def beat(self, task: int) -> None:
        """Notes that *task* is at work, wherever it runs here."""
        for at in range(_FIRST, self._size, _ENTRY.size):
            number, _, step, _ = _ENTRY.unpack_from(self._memory, at)
            if number == task and step != _SAID:
                _MOMENT.pack_into(self._memory, at + _BEAT, clock.monotonic())

    def beaten(self, task: int) -> float:
        """When *task* said last that it is at work; 0.0: it has not, or does not run."""
        entries = _ENTRY.iter_unpack(self._memory[_FIRST:])
        return next((beat for each, _, step, beat in entries if each == task and step != _SAID), 0.0)

    @property
    def worker_id(self) -> int:
        """As whom the worker is registered."""
        return int(_NUMBER.unpack_from(self._memory, _WORKER_AT)[0])

    @worker_id.setter
    def worker_id(self, worker_id: int) -> None:
        _NUMBER.pack_into(self._memory, _WORKER_AT, worker_id)

    @property
    def database(self) -> bytes:
        """The mark of the database that the worker works on; zeros before it has connected."""
        return self._memory[_MARK_AT:_FIRST]

    @database.setter
    def database(self, mark: bytes) -> None:
        self._memory[_MARK_AT:_FIRST] = mark.ljust(MARK_SIZE, b"\0")

    @property
    def stalled_until(self) -> float:
        """The monotonic time at which the last stall of what sends heartbeats ended; 0.0: it had none."""
        return float(_MOMENT.unpack_from(self._memory, _STALLED_AT)[0])

    @stalled_until.setter
    def stalled_until(self, moment: float) -> None:
        _MOMENT.pack_into(self._memory, _STALLED_AT, moment)

    def aim(self, kind: str, task: int) -> None:
        """Says for which task the next signal of this kind is meant."""
        _NUMBER.pack_into(self._memory, _TARGETS[kind], task)

    def aimed_at(self, kind: str) -> int:
        """The task that the last signal of this kind was meant for."""
        return int(_NUMBER.unpack_from(self._memory, _TARGETS[kind])[0])

    def close(self) -> None:
        """Frees the memory."""
        self._memory.close()
        os.close(self.file)
