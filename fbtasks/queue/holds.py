"""Reads what holds tasks back: the lanes of limits and subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple

from fbtasks.database.values import as_utc
from fbtasks.firebird.session import Session
from fbtasks.states import State

_NUMBERS: Final = 1000
"""Tasks that are asked for in one statement."""


class Hold(NamedTuple):
    """A lane that has not let a held task in."""

    stage: int
    """Its place among those of the task; -1: the lane of a source, which comes before limits."""
    owner: int
    """The limit or the subscription."""
    lane: int


def holds(session: Session, tasks: Sequence[int]) -> dict[int, list[Hold]]:
    """Returns what held tasks have still to pass, by the tasks: each waits for the first."""
    found: dict[int, list[Hold]] = {}
    for at in range(0, len(tasks), _NUMBERS):
        numbers = ",".join(str(int(task)) for task in tasks[at : at + _NUMBERS])
        rows = session.read("holds", more=f" T.ID IN ({numbers}) ORDER BY T.ID, H.STEP")
        for task, state, stage, owner, lane in rows:
            if state != State.HELD:  # by now
                continue
            of_task = found.setdefault(task, [])
            if owner is not None:
                of_task.append(Hold(stage, owner, lane))
    return found


class Gate(NamedTuple):
    """A lane as it stands."""

    halted: bool = False
    """Whether it is shut since its holder failed."""
    holder: int | None = None
    used: int = 0
    """How many tasks a limit has let in, as far as notes have been read."""
    wakes: datetime | None = None
    """When it is looked at next, if that is later than now."""


def gate(session: Session, hold: Hold) -> Gate:
    """Returns how a lane stands; one without a row has let nothing in."""
    for halted, holder, used, wakes in session.read("gate", hold.owner, hold.lane):
        return Gate(bool(halted), holder, used, None if wakes is None else as_utc(wakes))
    return Gate()


def let_in(session: Session, hold: Hold, query: str = "lane_holders") -> list[int]:
    """Returns the tasks that are in at a lane; with another *query* some of them."""
    return sorted(task for (task,) in session.read(query, hold.owner, hold.lane))
