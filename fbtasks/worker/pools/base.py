"""The interface of an executor, which runs the claims of a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from fbtasks.tasks.call import Claim, Finished, Outcome, Said


class Executor(Protocol):
    """Runs claims; used by one thread. What has a body here is left so by an executor that does not need it."""

    def start(self) -> None:
        """Begins to make the executor ready."""
        return

    def serve(self, worker_id: int, database: bytes = b"") -> None:
        """Says as whom the worker is registered, and in which file, before the first claim and whenever it changes."""

    def free(self) -> int:
        """How many more claims it takes: to begin at once, and to wait a moment where tasks are short."""

    def capacity(self) -> int:
        """How many claims it takes when it has none."""
        return 1

    def idle(self) -> int:
        """How many more claims can begin at once."""
        return self.free()

    def busy(self) -> list[Claim]:
        """The claims that run now."""

    def submit(self, claims: Sequence[Claim]) -> list[Claim]:
        """Takes *claims*, no more than are free, or one suspect, beside which nothing runs in its process.

        Returns those that it cannot take now, in their order.
        """

    def take_back(self) -> list[Claim]:
        """Claims that were submitted, have not begun, and are better given to others."""
        return []

    def take_said(self) -> list[Said]:
        """Returns the messages of tasks to features since the last call."""
        return []

    def take_all_back(self) -> list[Claim]:
        """All claims that were submitted and have not begun."""
        return []

    def interrupt(self, task: int, outcome: Outcome) -> None:  # noqa: ARG002
        """Stops *task*, if it runs here, and gives it *outcome*, where that is possible."""
        return

    def look(self, task: int, feature: str) -> int | None:  # noqa: ARG002
        """Has the process that runs *task* say its stack to *feature*. Returns its pid; None: *task* has not begun."""
        return None

    def filenos(self) -> list[int]:
        """File descriptors that become readable when something has ended."""
        return []

    def deadline(self) -> float:
        """The monotonic time at which ``collect`` has something to do, whatever ends until then."""
        return math.inf

    def collect(self) -> list[Finished]:
        """Returns the claims that have ended since the last call."""

    def stop(self, hurry: Callable[[], bool]) -> list[Finished]:
        """Ends the executor; whatever runs is stopped at once. Idle processes have a while, unless *hurry* is true.

        Returns the end of all that was not collected, as ``collect``; what was stopped by this is given back.
        """
