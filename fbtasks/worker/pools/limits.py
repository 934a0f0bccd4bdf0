"""What becomes of a task whose time limit is over."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from fbtasks.errors import TimeLimitExceeded
from fbtasks.run.invocation import invocation_of
from fbtasks.system.showing import name_of
from fbtasks.tasks.call import Claim, Failed, Outcome, Reason, Requeue, Several

if TYPE_CHECKING:
    from fbtasks.app import Task

HOOKS: Final = 60.0
"""Seconds that the on_failure hooks of a task may take together."""
_RNG: Final = random.Random()  # noqa: S311  # jitter, not a secret


def stopped(task: Task[..., object], claim: Claim, step: int, error: TimeLimitExceeded) -> Outcome:
    """What becomes of *claim*, stopped for *error* in its call number *step*: another try where its task says so."""
    if claim.members:
        return Several(tuple(stopped(task, each, step, error) for each in claim.members))
    tries = invocation_of(task).tries(claim, step) + 1
    delay = task.policy.decide(error, tries, claim.max_tries, _RNG)
    kind = name_of(type(error))
    if delay is None:
        return Failed(kind, str(error))
    return Requeue(Reason.RETRY, delay, f"{kind}: {error}", kind)
