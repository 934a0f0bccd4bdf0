"""Calls of on_failure hooks: of every task that is recorded as failed, wherever that was decided, once."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.errors import ConflictError, StatementRefused
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.run.claimed import hooks_at
from fbtasks.system.showing import count
from fbtasks.tasks.call import Claim, Crashed, Failed, Finished, is_last_crash
from fbtasks.timing import Backoff
from fbtasks.worker.pools.base import Executor

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")

LOOK_AGAIN: Final = 0.1
LOOK_AGAIN_LAST: Final = 10.0
"""Seconds until it is looked again whether a claim has decided a group: twice as many each time, up to the latter."""


class FailureHooks:
    """What is to be called, until the executor takes it. Used by one thread."""

    def __init__(self, app: FBTasks, executor: Executor) -> None:
        self._app = app
        self._executor = executor
        self._failing = app.features.which("failed_with")
        self._failed: list[int] = []
        """Tasks that were failed in the database, or may have been: what it says of them is to be read."""
        self._members: list[int] = []
        """Tasks that have failed, and with which what follows them in a workflow may have failed."""
        self._undecided: dict[int, set[int]] = {}
        """Those of them with a group that a claim is still to decide, and what has failed with each until now."""
        self.next_look = math.inf
        """When it is to be looked again at those, on the monotonic clock."""
        self._backoff = Backoff(LOOK_AGAIN, LOOK_AGAIN_LAST)
        self._calls: deque[tuple[Claim, Failed]] = deque()

    def __len__(self) -> int:
        return len(self._calls)

    def __bool__(self) -> bool:
        return bool(self._calls or self._failed or self._members)

    def settle(self, settled: Iterable[Finished]) -> None:
        """Takes note of what has been recorded."""
        for claim, outcome, _, recorded in settled:
            failed = outcome if recorded and isinstance(outcome, Failed) else None
            if claim.wanted and recorded and isinstance(outcome, Failed | Crashed):
                self._members.append(claim.id)
            if (
                self._executor.settle(claim, failed)
                or not recorded
                or not hooks_at("on_failure", self._app, claim.name)
            ):
                continue
            if failed is not None:
                self._calls.append((claim, failed))
            elif isinstance(outcome, Crashed) and is_last_crash(claim, outcome):
                self._failed.append(claim.id)

    def look_up(self, failed: Iterable[int]) -> None:
        """Takes note of tasks that were failed in the database."""
        failed = list(failed)
        self._failed += failed
        self._members += failed

    def look_again(self) -> None:
        """Has the next call look at the groups that were undecided."""
        self.next_look = 0.0 if self._undecided else math.inf

    def call(self, session: Session) -> None:
        """Hands out as many calls as the executor takes."""
        if clock.monotonic() >= self.next_look:
            self._members += self._undecided
            self.next_look = math.inf
        while self._members:
            self._look_behind(session, self._members[-1])
            self._members.pop()
        while self._failed:
            self._read(session, self._failed[-1])
            self._failed.pop()
        self._calls.extendleft(self._executor.take_hooks_back())
        while self._calls:
            claim, failed = self._calls[0]
            claim = tasks.with_payload(session, claim)
            self._calls[0] = claim, failed
            if not self._executor.call_hooks(claim, failed):
                return
            self._calls.popleft()

    @property
    def _has_any(self) -> bool:
        """Whether there are hooks."""
        return any(hooks_at("on_failure", self._app, name) for name in ("", *self._app.tasks))

    def _look_behind(self, session: Session, task: int) -> None:
        """Takes note of what has failed because *task* did, in a workflow."""
        if not self._has_any:
            return
        found = session.run(lambda t: {each for feature in self._failing for each in feature.failed_with(t, task)})
        failed = {each for each in found if each is not None}
        known_before = task in self._undecided
        known = self._undecided.pop(task, set())
        self._failed += failed - known
        if None in found:
            self._undecided[task] = failed | known
            if not known_before:
                self._backoff.reset()
            self.next_look = clock.monotonic() + self._backoff.next()

    def _read(self, session: Session, task: int) -> None:
        """Asks what a task has failed with. Hooks of which the database does not tell are not called."""
        if not self._has_any:
            return
        try:
            found = results.failure(session, task)
        except (ConflictError, StatementRefused) as error:
            logger.error(
                "The on_failure hook of task %d is not called: what it failed with cannot be read: %s", task, error
            )
            return
        if found is not None and hooks_at("on_failure", self._app, found[0].name):
            self._calls.append(found)

    def drop(self) -> None:
        """The worker ends: says what is not called any more."""
        left = len(self._calls) + len(self._failed)
        if left:
            tasks = count(left, "failed task")
            logger.warning("The on_failure hooks of %s are not called: the worker ends.", tasks)
