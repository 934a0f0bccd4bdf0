"""Time limits of tasks: when they are over, and what becomes of a task then."""

from __future__ import annotations

import random
from typing import Final

from fbtasks.app import FBTasks
from fbtasks.call import Claim, Failed, Outcome, Retry
from fbtasks.definition import Task
from fbtasks.errors import TimeLimitExceeded

HOOKS: Final = 60.0
"""Seconds that the on_failure hooks of a task may take together."""
_ERROR_TYPE = f"{TimeLimitExceeded.__module__}.{TimeLimitExceeded.__qualname__}"


class Limits:
    """The limits of an app's tasks."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app
        self._rng = random.Random()  # noqa: S311  # jitter, not a secret

    def of(self, claim: Claim) -> tuple[float | None, float | None]:
        """Soft and hard limit of the claim's task, in seconds."""
        task = self._task(claim)
        return (None, None) if task is None else (task.options.soft_time_limit, task.options.time_limit)

    def is_transactional(self, claim: Claim) -> bool:
        """Whether the claim's task may have a transaction open."""
        task = self._task(claim)
        return task is not None and task.options.transactional

    def exceeded(self, claim: Claim) -> Outcome:
        """What becomes of a task that was stopped at its time_limit: another try when its policy says so."""
        task = self._task(claim)
        limit = 0.0 if task is None else task.options.time_limit or 0.0
        error = TimeLimitExceeded(f"it was stopped at its time_limit of {limit:g} s")
        delay = None if task is None else task.policy.decide(error, claim.try_count + 1, claim.max_tries, self._rng)
        if delay is None:
            return Failed(_ERROR_TYPE, str(error))
        return Retry(delay, f"{_ERROR_TYPE}: {error}", _ERROR_TYPE)

    def _task(self, claim: Claim) -> Task[..., object] | None:
        return self._app.tasks.get(claim.name)
