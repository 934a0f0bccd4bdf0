"""What the soak knows of limits, unique calls, workflows and schedules; their tasks are in limited_tasks.py."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

LIMITS = {"alone": 1, "few": 3, "several": 8, "ordered": 1}
"""How many there are at once for each key, by the name of the limit."""
RATE = 200
"""How many of one kind begin in a second."""
BURST = RATE // 10
"""How many of them at once: those of a tenth of a second."""
COUNTED = frozenset({"alone", "few", "several", "gated", "ordered", "rated"})
"""Kinds with limits, of which each call is a task."""
STEPS = frozenset({"step", "member", "body"})
"""Kinds that are parts of workflows."""
APART = STEPS | {"once", "tick"}
"""Kinds for which the account of single tasks does not hold: calls are merged, or are not a producer's."""
LEFT = (
    "QUEUE_NOTE", "QUEUE_HOLD", "QUEUE_GATE", "QUEUE_LINK", "QUEUE_NODE", "QUEUE_GROUP",
    "QUEUE_REDIRECT", "QUEUE_PROGRESS",
)  # fmt: skip
"""Tables that have nothing in them when all tasks have ended and are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRows:
    """What the database has of limits and schedules, in one snapshot."""

    claims: Sequence[float] = ()
    """When the tasks with a rate were claimed that were claimed once, in seconds."""
    ticks: Sequence[float] = ()
    """For when the tasks of the schedule were enqueued, in seconds."""


def read(query):
    """The tables; *query* returns the rows of a statement."""
    claims = query("SELECT CLAIM_TIME FROM QUEUE_HISTORY WHERE NAME = 'soak.limited_tasks.rated' AND TRY_COUNT = 1 "
                   "AND CRASH_COUNT = 0 AND STATE = 10")  # fmt: skip
    ticks = query("SELECT START_TIME FROM QUEUE_TASK WHERE NAME = 'soak.limited_tasks.tick' "
                  "UNION ALL SELECT START_TIME FROM QUEUE_HISTORY WHERE NAME = 'soak.limited_tasks.tick'")  # fmt: skip
    return LimitRows(
        claims=sorted(_seconds(moment) for (moment,) in claims), ticks=sorted(_seconds(moment) for (moment,) in ticks)
    )


def _seconds(moment):
    return (moment - datetime(2000, 1, 1)).total_seconds()


def key_of(ref):
    """The key of a call of ``once``."""
    return ref.split("-")[1]


def lanes_of(kind, key):
    """The places that a run of *kind* has."""
    if kind == "gated":
        return [("alone", f"gated {key}"), ("few", key), ("several", "all")]
    return [(kind, "all" if kind == "several" else key)]
