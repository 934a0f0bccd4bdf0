"""What running tasks say of themselves, until it is written: with outcomes where there are any, else alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fbtasks import timing as clock
from fbtasks.features.progress.said import Progress
from fbtasks.tasks.call import Said

WAITS: Final = 0.5
"""Seconds for which it waits for outcomes to be written with."""


class ProgressNotes:
    """The last that each task has said. Used by one thread."""

    def __init__(self) -> None:
        self._notes: dict[int, Progress] = {}
        self.due: float | None = None
        """The monotonic time at which they are to be written; None: there are none."""

    def __bool__(self) -> bool:
        return bool(self._notes)

    def add(self, items: Iterable[Progress]) -> None:
        """Keeps the last of each task."""
        for item in items:
            self._notes[item.id] = item
        if self._notes and self.due is None:
            self.due = clock.monotonic() + WAITS

    def take(self, said: Iterable[Said]) -> None:
        """Keeps what tasks have said."""
        self.add(map(Progress.of, said))

    def items(self) -> list[Progress]:
        """All that is to be written, in the order of the tasks."""
        return sorted(self._notes.values())

    def written(self) -> None:
        """Forgets them."""
        self._notes.clear()
        self.due = None
