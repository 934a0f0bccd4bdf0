"""Keeps what running tasks say to features, until their worker is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fbtasks.tasks.request import G, Gathering, Reports


class RunReports(Reports):
    """Of each run and each feature one object, which both keep."""

    def __init__(self, beat: Callable[[int], None]) -> None:
        """*beat* is called with the number of a run that is at work."""
        self._beat = beat
        self.runs: dict[int, dict[str, Gathering]] = {}
        """What runs say, by their numbers, and by the names of features."""

    def beat(self, number: int) -> None:
        """The run *number* is at work."""
        self._beat(number)

    def gather(self, number: int, feature: str, make: Callable[[], G]) -> G:
        """Returns what the run *number* says to *feature*."""
        run = self.runs.get(number)
        if run is None:
            run = self.runs.setdefault(number, {})  # two threads of the run may be here
        if feature not in run:
            run.setdefault(feature, make())
        return run[feature]  # type: ignore[return-value]  # a feature makes objects of one class

    def take(self, number: int, *, ended: bool) -> Iterator[tuple[str, bytes]]:
        """Yields what the run *number* says to features that the worker was not told before; the last when *ended*."""
        run = self.runs.pop(number, {}) if ended else self.runs.get(number, {})
        for feature, each in [*run.items()]:
            if data := each.take(ended=ended):
                yield feature, data
