"""Time limits of tasks: when they are over, and what becomes of a task then."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from fbtasks.errors import HeartbeatTimeout, TimeLimitExceeded
from fbtasks.run.invocation import ONCE, Invocation, invocation_of
from fbtasks.tasks.call import Claim, Failed, Outcome, Reason, Requeue, Several

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task

HOOKS: Final = 60.0
"""Seconds that the on_failure hooks of a task may take together."""


class Limits:
    """The limits of an app's tasks."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret

    def of(self, claim: Claim) -> tuple[float | None, float | None, float | None]:
        """Soft and hard limit of the claim's task, and for how long it may be silent, in seconds."""
        task = self._task(claim)
        if task is None:
            return None, None, None
        options = task.options
        return options.soft_time_limit, options.time_limit, options.heartbeat_timeout

    def is_transactional(self, claim: Claim) -> bool:
        """Whether the claim's task may have a transaction open."""
        task = self._task(claim)
        return task is not None and task.options.transactional

    def invocation(self, claim: Claim) -> Invocation:
        """How the claim's task is called."""
        task = self._task(claim)
        return ONCE if task is None else invocation_of(task)

    def exceeded(self, claim: Claim, step: int = 0) -> Outcome:
        """What becomes of a task that was stopped at its time_limit: another try when its policy says so.

        *step*: in which of its calls it was stopped.
        """
        task = self._task(claim)
        limit = 0.0 if task is None else task.options.time_limit or 0.0
        return self._ended(claim, step, TimeLimitExceeded(f"it was stopped at its time_limit of {limit:g} s"))

    def silent(self, claim: Claim, step: int = 0) -> Outcome:
        """The same of a task that was stopped since it has not said for too long that it is at work."""
        task = self._task(claim)
        limit = 0.0 if task is None else task.options.heartbeat_timeout or 0.0
        said = f"it was stopped, since it had not called self.heartbeat() for its heartbeat_timeout of {limit:g} s"
        return self._ended(claim, step, HeartbeatTimeout(said))

    def _ended(self, claim: Claim, step: int, error: TimeLimitExceeded) -> Outcome:
        if claim.members:
            return Several(tuple(self._ended(each, step, error) for each in claim.members))
        task, tries = self._task(claim), self.invocation(claim).tries(claim, step)
        kind = f"{type(error).__module__}.{type(error).__qualname__}"
        delay = None if task is None else task.policy.decide(error, tries + 1, claim.max_tries, self._rng)
        if delay is None:
            return Failed(kind, str(error))
        return Requeue(Reason.RETRY, delay, f"{kind}: {error}", kind)

    def _task(self, claim: Claim) -> Task[..., object] | None:
        return self._app.tasks.get(claim.name)
