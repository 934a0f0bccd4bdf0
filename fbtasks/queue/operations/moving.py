"""Moves waiting tasks from one queue into another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Session
from fbtasks.queue import codec
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.spool import Spool
from fbtasks.states import State
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

_MOST: Final = 500
"""Tasks that one transaction moves."""
_MOVED: Final = (State.READY, State.SCHEDULED, State.PARKED, State.HELD)
_DIGITS: Final = 19
_FROM_SOURCE: Final = "sources"
_WHY: Final = {
    State.RUNNING.name.lower(): "running",
    State.AWAITING.name.lower(): "awaiting: steps of workflows, which can be moved when they are ready",
    _FROM_SOURCE: "of sources: give on_change, on_event or poll_table another queue= in the code, and apply it",
}
"""Why tasks stay in their queue that were to leave it."""


@dataclass(frozen=True, slots=True)
class Left:
    """What is left in a queue."""

    tasks: dict[str, int]
    """How many tasks by state; those of sources are under ``sources``, whatever their state."""

    @property
    def text(self) -> str:
        """The same in words; empty: nothing is left."""
        return "; ".join(f"{number} {_WHY.get(name, name)}" for name, number in self.tasks.items())


class Move:
    """The waiting tasks of one queue on their way into another one."""

    def __init__(self, session: Session, queue: str, to: str, name: str | None) -> None:
        self._session = session
        self._from = queue
        self._to = to
        self._name = name
        self.is_full = False
        """Whether the other queue has no place for more."""

    def __len__(self) -> int:
        """How many there are to move."""
        with self._waiting() as ids:
            return len(ids)

    def run(self) -> Iterator[int]:
        """Moves them until none is left that no other transaction holds, or the other queue is full.

        Returns again and again how many more are there for good.
        """
        moved = 1
        while moved:
            moved = 0
            with self._waiting() as ids:
                for some in codec.chunks((b"%0*d" % (_DIGITS, each) for each in ids), _MOST * _DIGITS):
                    done, is_full = self._session.call("FBTASKS_OPERATOR.MOVE", some, self._from, self._to)
                    moved += done
                    yield done
                    if is_full:
                        self.is_full = True
                        return

    def _waiting(self) -> Spool[int]:
        def parts(state: State) -> Iterator[list[tuple[int]]]:
            return self._session.read_in_parts("movable", state, self._from, self._name, more=" ", size=_MOST)

        return Spool(number for state in _MOVED for rows in parts(state) for (number,) in rows)

    def left(self) -> Left:
        """Returns what the queue has by now of what was to be moved, with what came meanwhile."""
        found: dict[str, int] = {}
        for state, of_source, tasks in sorted(self._session.read("left_in_queue", self._from, self._name)):
            kept = _FROM_SOURCE if of_source and state != State.RUNNING else State(state).name.lower()
            found[kept] = found.get(kept, 0) + tasks
        return Left(found)


@contextmanager
def moving(
    database: Database, queue: str, to: str, name: str | None = None, app: FBTasks | None = None
) -> Iterator[Move]:
    """For the block: the tasks of *queue*, or those of a *name* in it, that can be moved into the queue *to*.

    Ready, scheduled, parked and held tasks keep their state, their time and their place in the line of a limit. Raises
    :class:`ConfigurationError` for a queue that is not known, as :func:`check_queue` does.
    """
    if queue == to:
        raise ConfigurationError(f"--from and --to are both {queue!r}: name two queues.")
    with database.session() as session:
        for each in (queue, to):
            check_queue(database, session, each, app)
        yield Move(session, queue, to, name)


def full(queue: str, moved: int, left: Left) -> str:
    """Returns what is said when *queue* has had no place for the last tasks."""
    rest = sum(tasks for name, tasks in left.tasks.items() if name not in _WHY)
    return (
        f"the queue {queue!r} is full: {count(moved, 'task')} moved, and {rest} left where they were. Move them "
        "when some have ended, or raise the max_length of the queue."
    )
