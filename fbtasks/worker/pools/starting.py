"""Starts child processes, and waits with that after those that could not be started or never became ready."""

from __future__ import annotations

import logging
from typing import Final

from fbtasks import timing as clock
from fbtasks.errors import FBTasksError
from fbtasks.timing import Backoff
from fbtasks.worker.pools.process import Child
from fbtasks.worker.pools.processes import CannotStart

logger = logging.getLogger(__name__)
_FIRST: Final = 0.1
_LAST: Final = 30.0
"""Seconds before a child is started again that could not be: three times as many each time, up to the latter."""
_FIRST_TRIES: Final = 3
"""Children that may die while they import the app, before any has been ready, until the app is to blame."""


class Starter:
    """Starts the children of one executor."""

    def __init__(self, app_path: str, log: str, longest: int, folder: str | None = None) -> None:
        self._app_path = app_path
        self._log = log
        self._longest = longest
        self._folder = folder
        self.worker_id = 0
        self.database = b""
        self.next_start = 0.0
        """The monotonic time before which no child is to be started."""
        self._was_ready = False
        self._failures = 0
        """Children in a row that have failed to become ready."""
        self._failed_at = self._pause = 0.0
        self._short_since = 0.0
        """Since when the machine has no room for a child."""
        self._refused = Backoff(_FIRST, _LAST, 3.0)
        self._failed = Backoff(_FIRST, _LAST, 3.0)
        self._said = ""

    def start(self, mode: str, number: int, slots: int) -> Child | None:
        """A child that begins to start; None when the machine has no room for it, which is waited for."""
        try:
            child = Child(mode, self._app_path, self.worker_id, number, slots, self._log, self._longest, self._folder)
        except CannotStart as error:
            self._wait_for_room(str(error))
            return None
        if self._said:
            logger.warning("Child processes can be started again after %.1f s.", clock.monotonic() - self._short_since)
            self._refused.reset()
            self._said = ""
        child.status.database = self.database
        return child

    def _wait_for_room(self, why: str) -> None:
        now = clock.monotonic()
        if not self._said:
            self._short_since = now
        self.next_start = now + self._refused.next()
        if why != self._said:
            self._said = why
            logger.error(
                "No child process can be started: %s The worker tries again, with pauses of up to %g s.", why, _LAST
            )

    def ready(self) -> None:
        """A child has become ready."""
        self._was_ready, self._failures = True, 0
        self._failed.reset()

    def failed(self, child: Child, how: str) -> None:
        """A child has ended that did not become ready: another one is started after a while.

        Raises :class:`FBTasksError` when no child has ever been ready and this one says that it cannot be, or several
        have died without a word, one after the other.
        """
        message = child.message or f"a child process ended {how} while it imported the app."
        if child.started > self._failed_at:  # else it died together with the one before
            self._failures += 1
            self._pause = self._failed.next()
        self._failed_at = clock.monotonic()
        if not self._was_ready and not child.for_now and (child.message or self._failures >= _FIRST_TRIES):
            raise FBTasksError(message)
        self.next_start = self._failed_at + self._pause
        what = "replaced" if self._was_ready else "started"
        logger.error("A child process could not be %s: %s Trying again in %g s.", what, message, self._pause)
