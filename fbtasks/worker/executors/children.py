"""Executors in child processes, so that user code can neither hold up the worker's heartbeat nor take it down.

``processes`` has one child for each place, ``threads`` and ``asyncio`` one child with all places in it. A task under
suspicion of having killed its process gets a process of its own for that one run.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from fbtasks import clock
from fbtasks.app import FBTasks
from fbtasks.call import Claim, Crashed, Finished, Outcome, Released
from fbtasks.errors import FBTasksError
from fbtasks.interrupts import SOFT, STOP
from fbtasks.worker.executors.process import Child, Run
from fbtasks.worker.limits import Limits

logger = logging.getLogger(__name__)
_START_LIMIT: Final = 60.0
_ROLLBACK: Final = 0.5
"""Seconds that a stopped task has to undo its open transaction in before its process is killed."""
_UNWIND: Final = 1.0
"""Seconds that a stopped task has to leave a process that it shares with others."""
_PAUSES: Final = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds before a child is started again after so many failures to start."""

Ended = tuple[Finished, bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """How children are used."""

    max_tasks: int | None = None
    """Tasks after which a child is replaced."""
    max_memory: int | None = None
    """Bytes of memory above which a child is replaced once it is idle."""


class ChildExecutor:
    """Spreads claims over child processes, holds them to their limits, and replaces what dies or is used up."""

    def __init__(
        self, mode: str, app_path: str, app: FBTasks, concurrency: int, level: str, options: ChildOptions | None = None
    ) -> None:
        self._mode = mode
        self._app_path = app_path
        self._crash_limit = app.settings.crash_limit
        self._limits = Limits(app)
        self._one = mode == "processes"
        self._count = concurrency if self._one else 1
        self._places = 1 if self._one else concurrency
        self._level = level
        self._options = options or ChildOptions()
        self._worker_id = 0
        self._children: list[Child] = []
        self._apart: list[Child] = []
        """Children of one suspect each, and those that are to end when what runs in them has ended."""
        self._ended: list[Ended] = []
        self._was_ready = False
        self._failures = 0
        self._spawn_at = 0.0

    def start(self, worker_id: int) -> None:
        """Starts the children. They become free when they have imported the app."""
        self._worker_id = worker_id
        self._replenish(clock.monotonic())

    def free(self) -> int:
        """Places without a claim."""
        alone = 0 if self._one else len([child for child in self._apart if child.one])
        return max(0, sum(child.free() for child in self._children) - alone)

    def busy(self) -> list[Claim]:
        """The claims in the children, without those that were stopped and have their outcome."""
        return [run.claim for child in self._all() for run in child.running.values() if run.outcome is None]

    def submit(self, claim: Claim) -> None:
        """Sends the claim to the child with the most room."""
        now = clock.monotonic()
        soft, hard = self._limits.of(claim)
        run = Run(claim, now, None if soft is None else now + soft, None if hard is None else now + hard)
        if claim.suspect and not self._one:
            child = Child("processes", self._app_path, self._worker_id, 9_000 + len(self._apart), 1, self._level)
            self._apart.append(child)
        else:
            child = max(self._children, key=Child.free)
        child.submit(run)

    def interrupt(self, task: int, outcome: Outcome) -> None:
        """Stops *task* and gives it *outcome*."""
        for child in self._all():
            run = child.running.get(task)
            if run is not None and run.outcome is None:
                self._stop(child, run, outcome)

    def filenos(self) -> list[int]:
        """Sockets and deaths of all children."""
        return [fileno for child in self._all() for fileno in child.filenos()]

    def deadline(self) -> float | None:
        """The next limit that a task reaches, or the next child that is to be started."""
        times = [
            moment
            for child in self._all()
            for run in child.running.values()
            for moment in (run.kill_at, None if run.outcome else run.hard_at, None if run.outcome else run.soft_at)
            if moment is not None
        ]
        if len(self._children) < self._count:
            times.append(self._spawn_at)
        return min(times, default=None)

    def collect(self) -> list[Ended]:
        """What has ended; for a child that died, a crash of what it ran.

        Raises :class:`FBTasksError` when the children cannot import the app and never could.
        """
        now = clock.monotonic()
        for child in self._all():
            heard, dead = child.read()
            for finished, recorded in heard:
                self._take(child, finished, recorded)
            if child not in self._all():  # what it said was the end of it
                continue
            if dead:
                self._bury(child)
            elif child.ready:
                self._was_ready, self._failures = True, 0
                self._retire_used_up(child)
            elif now > child.started + _START_LIMIT:
                child.message = f"a child process had not imported the app after {_START_LIMIT:g} seconds."
                self._bury(child)
        self._enforce(now)
        self._replenish(now)
        done, self._ended = self._ended, []
        return done

    def stop(self, *, kill: bool) -> None:
        """Closes the sockets, which ends idle children; with *kill*, at once."""
        for child in self._all():
            child.close(0.0 if kill or child.running or not child.ready else 10.0)
        self._children.clear()
        self._apart.clear()

    # One child

    def _all(self) -> list[Child]:
        return [*self._children, *self._apart]

    def _take(self, child: Child, finished: Finished, recorded: bool) -> None:
        run = child.running.pop(finished.claim.id, None)
        if run is None or run.outcome is None:
            self._ended.append((finished, recorded))
        elif child.one:  # stopped, and now out of its transaction
            self._ended.append((Finished(run.claim, run.outcome, run.elapsed), recorded))
            self._discard(child)

    def _retire_used_up(self, child: Child) -> None:
        """Replaces a child that has served its time, or that runs nothing that counts any more."""
        most, memory = self._options.max_tasks, self._options.max_memory
        used_up = most is not None and child.served >= most
        if child in self._apart or used_up or (memory is not None and not child.running and child.memory() > memory):
            if child in self._children:
                self._children.remove(child)
                self._apart.append(child)
            if all(run.outcome is not None for run in child.running.values()):
                self._discard(child)

    def _discard(self, child: Child) -> None:
        child.close(0.0 if child.running else 1.0)
        self._forget(child)

    def _bury(self, child: Child) -> None:
        """Deals with a child that died: what it ran has crashed, but for what it was stopped for."""
        child.close()
        how = child.how_it_ended()
        left = [run for run in child.running.values() if run.outcome is None]
        for run in child.running.values():
            if run.outcome is None:
                logger.error("The process of task %d (%s) ended %s.", run.claim.id, run.claim.name, how)
                self._ended.append((Finished(run.claim, self._crash(child, how, len(left) - 1), run.elapsed), False))
            elif child.one:
                self._ended.append((Finished(run.claim, run.outcome, run.elapsed), False))
        child.running.clear()
        if not child.ready and child in self._children:
            self._failed_to_start(child.message or f"a child process ended {how} while it imported the app.")
        self._forget(child)

    def _crash(self, child: Child, how: str, others: int) -> Outcome:
        if not child.ready:  # it died while it imported the app, before the task
            return Released()
        return Crashed(_why(how, others), others == 0, self._crash_limit)

    def _forget(self, child: Child) -> None:
        for siblings in (self._children, self._apart):
            if child in siblings:
                siblings.remove(child)

    def _failed_to_start(self, message: str) -> None:
        if not self._was_ready:
            raise FBTasksError(message)
        pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1
        self._spawn_at = clock.monotonic() + pause
        logger.error("A child process could not be replaced: %s Trying again in %g s.", message, pause)

    def _replenish(self, now: float) -> None:
        while len(self._children) < self._count and now >= self._spawn_at:
            slot = min(set(range(1, self._count + 1)) - {child.slot for child in self._children})
            self._children.append(Child(self._mode, self._app_path, self._worker_id, slot, self._places, self._level))

    # Limits

    def _enforce(self, now: float) -> None:
        for child in self._all():
            for run in list(child.running.values()):
                if run.kill_at is not None:
                    if now >= run.kill_at:
                        self._lose_patience(child, run)
                elif run.hard_at is not None and now >= run.hard_at and run.outcome is None:
                    logger.error("Task %d (%s) is stopped at its time_limit.", run.claim.id, run.claim.name)
                    self._stop(child, run, self._limits.exceeded(run.claim))
                elif run.soft_at is not None and now >= run.soft_at:
                    run.soft_at = None
                    child.interrupt(run.claim.id, SOFT)

    def _stop(self, child: Child, run: Run, outcome: Outcome) -> None:
        run.outcome = outcome
        now = clock.monotonic()
        if not child.one:
            self._ended.append((Finished(run.claim, outcome, run.elapsed), False))
            child.interrupt(run.claim.id, STOP)
            run.kill_at = now + _UNWIND
        elif self._limits.is_transactional(run.claim) and child.ready:
            child.interrupt(run.claim.id, STOP)  # its rows are free when it has rolled back
            run.kill_at = now + _ROLLBACK
        else:
            self._bury(child)

    def _lose_patience(self, child: Child, run: Run) -> None:
        run.kill_at = None
        if child.one:
            self._bury(child)
            return
        logger.warning(
            "Task %d (%s) does not stop; its process is killed when the other tasks in it have ended.",
            run.claim.id,
            run.claim.name,
        )
        if child in self._children:
            self._children.remove(child)
            self._apart.append(child)


def _why(how: str, others: int) -> str:
    if not others:
        return f"its process ended {how} while it ran"
    return f"the process that it shared with {others} other tasks ended {how}"
