"""Executors in child processes, so that user code can neither hold up the worker's heartbeat nor take it down.

``processes`` has one child for each slot, ``threads`` and ``asyncio`` one child with all slots in it. A task under
suspicion of having killed its process gets a process of its own for that one run.
"""

from __future__ import annotations

import heapq
import logging
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.errors import HeartbeatTimeout, TimeLimitExceeded
from fbtasks.run.interrupts import SOFT, STOP
from fbtasks.run.invocation import invocation_of
from fbtasks.system.showing import kind_of, name_of
from fbtasks.tasks.call import RELEASED, Claim, Crashed, Failed, Finished, Outcome, Reason, Requeue, Said, Several
from fbtasks.worker.options import ChildOptions
from fbtasks.worker.pools.base import Executor
from fbtasks.worker.pools.channel import LONGEST
from fbtasks.worker.pools.process import Child, Run
from fbtasks.worker.pools.starting import Starter
from fbtasks.worker.pools.wire import Ended, Reported

if TYPE_CHECKING:
    from fbtasks.app import FBTasks, Task
    from fbtasks.worker.pools.processes import Process

logger = logging.getLogger(__name__)
_RNG: Final = random.Random()  # noqa: S311  # jitter, not a secret
_START_LIMIT: Final = 60.0
_ROLLBACK: Final = 0.5
"""Seconds that a stopped task has to undo its open transaction in before its process is killed."""
_UNWIND: Final = 1.0
"""Seconds that a stopped task has to leave a process that it shares with others."""
_LEISURE: Final = 10.0
"""Seconds that idle children have together to end in when the worker stops."""
_GLANCE: Final = 0.1
"""Seconds between looks whether they are to be waited for any longer."""
_AGAIN: Final = 0.1
"""Seconds before a child that did not read is spoken to again."""
_PAUSE: Final = 1.0
"""Seconds before claims are sent again when one could not be."""

_AHEAD: Final = 0.02
"""Seconds of work that a child may have waiting, so that it need not wait for the worker."""
_MOST_AHEAD: Final = 400
_GROWTH: Final = 4
"""As many times the tasks that have ended may wait in a child: a guess from few of them is not trusted far."""
_MEMORY: Final = 10
"""As many tasks the time that a task takes is an average of, roughly."""
_OVERHEAD: Final = 50e-6
"""Seconds that a task takes beside its own."""
_PATIENCE: Final = 0.01
"""Seconds that a task may wait in a child behind longer ones, before it is taken back for others."""


class ChildExecutor(Executor):
    """Spreads claims over child processes, holds them to their limits, and replaces what dies or is used up."""

    def __init__(
        self, mode: str, app_path: str, app: FBTasks, concurrency: int, log: str, options: ChildOptions | None = None
    ) -> None:
        self._mode = mode
        self._crash_limit = app.settings.crash_limit
        self._tasks = app.tasks
        self._one = mode == "processes"
        self._count = concurrency if self._one else 1
        self._slots = 1 if self._one else concurrency
        most = max([1, *(task.options.batching[0] for task in app.tasks.values() if task.options.batching is not None)])
        self._options = options or ChildOptions()
        longest = most * (app.settings.payload_limit + LONGEST)
        self._starter = Starter(app_path, log, longest, self._options.folder)
        self._children: list[Child] = []
        self._ended: list[Finished] = []
        self._returned: list[Claim] = []
        self._said: list[Said] = []
        self._average = 0.0
        """Seconds that a task has taken of late."""
        self._timed = 0
        """How many tasks have been timed."""
        self._submit_at = 0.0

    def start(self) -> None:
        """Starts the children. They become free when they have imported the app."""
        self._replenish(clock.monotonic())

    def serve(self, worker_id: int, database: bytes = b"") -> None:
        """As this worker, and in this database, transactional tasks record their outcomes."""
        self._starter.worker_id, self._starter.database = worker_id, database
        for child in self._children:
            child.status.shared.worker_id, child.status.database = worker_id, database

    def free(self) -> int:
        """Claims that can be submitted: for slots without one, and to wait a moment where tasks are short."""
        if clock.monotonic() < self._submit_at:
            return 0
        return max(0, sum(map(self._room, self._children)) - self._alone())

    def capacity(self) -> int:
        """Slots, and what may wait in the children."""
        return sum(child.slots + self._ahead(child) for child in self._children if not child.apart)

    def idle(self) -> int:
        """Slots without a claim."""
        free = sum(max(0, child.slots - len(child.running)) for child in self._children if self._room(child))
        return max(0, free - self._alone())

    def _alone(self) -> int:
        """Slots that suspects take up, each in a process of its own."""
        return 0 if self._one else sum(child.one for child in self._children)

    def _room(self, child: Child) -> int:
        if not child.ready or child.apart or (child.stuck and len(child.running) >= child.slots):
            return 0
        room = child.slots + self._ahead(child) - len(child.running)
        most = self._options.max_tasks
        return max(0, room if most is None else min(room, most - child.served))

    def _ahead(self, child: Child) -> int:
        """How many tasks may wait in the child."""
        short = int(_AHEAD * child.slots / (self._average + _OVERHEAD * child.slots))
        return min(_MOST_AHEAD, _GROWTH * self._timed, short)

    def busy(self) -> list[Claim]:
        """The claims in the children, without those that were stopped and whose outcome has been given."""
        return [
            run.claim
            for child in self._children
            for run in [*child.running.values()]  # at once: any thread may ask
            if child.one or run.outcome is None
        ]

    def submit(self, claims: Sequence[Claim]) -> list[Claim]:
        """Spreads the claims over the children. Returns those that cannot be taken now.

        A child is sent all that it gets one after the other, so that it is woken once. Where tasks run side by side in
        one, a suspect gets a new one, which takes it when it is ready.
        """
        if claims[0].suspect and not self._one:
            return [] if self._send_alone(claims[0]) else [*claims]
        sent = set[int]()
        for child, share in self._spread(claims):
            for claim in share:
                if not self._submit_to(child, claim):
                    return [each for each in claims if each.id not in sent]
                sent.add(claim.id)
        return []

    def _spread(self, claims: Sequence[Claim]) -> Iterator[tuple[Child, list[Claim]]]:
        """Each claim goes to the child with the most room then. Yields the children with the claims of each."""
        rooms = [(-self._room(child), number) for number, child in enumerate(self._children)]
        heapq.heapify(rooms)
        shares: list[list[Claim]] = [[] for _ in rooms]
        for claim in claims:
            room, number = rooms[0]
            shares[number].append(claim)
            heapq.heapreplace(rooms, (room + 1, number))
        return zip(self._children, shares, strict=True)

    def _submit_to(self, child: Child, claim: Claim) -> bool:
        """Sends the claim to *child*; to another one while an earlier run of it, which was stopped, goes on there."""
        if claim.id in child.running:
            others = (each for each in self._children if self._room(each) and claim.id not in each.running)
            if (other := next(others, None)) is None:
                return False
            child = other
        return self._send(child, self._run_of(claim))

    def _send_alone(self, claim: Claim) -> bool:
        if clock.monotonic() < self._starter.next_start:
            return False
        child = self._starter.start("processes", 9_000 + len(self._children), 1)
        if child is None:
            self._submit_at = self._starter.next_start
            return False
        child.apart = True
        self._children.append(child)
        return self._send(child, self._run_of(claim))

    def _run_of(self, claim: Claim) -> Run:
        options = self._tasks[claim.name].options
        return Run(
            claim,
            clock.monotonic(),
            options.soft_time_limit or math.inf,
            options.time_limit or math.inf,
            options.heartbeat_timeout or math.inf,
        )

    def _send(self, child: Child, run: Run) -> bool:
        try:
            return child.submit(run)
        except OSError as error:
            logger.error("%s could not be sent to a child process: %s. Trying again in %g s.", run, error, _PAUSE)
            self._submit_at = clock.monotonic() + _PAUSE
            return False

    def take_said(self) -> list[Said]:
        """Returns the messages of tasks to features since the last call."""
        taken, self._said = self._said, []
        return taken

    def take_back(self) -> list[Claim]:
        """Claims that were submitted and have not begun, and are better given to others."""
        returned, self._returned = self._returned, []
        return returned

    def take_all_back(self) -> list[Claim]:
        """All claims that were submitted and have not begun."""
        for child in self._children:
            self._take_back(child)
        return self.take_back()

    def interrupt(self, task: int, outcome: Outcome) -> None:
        """Stops *task* and gives it *outcome*."""
        for child in self._children:
            run = child.running.get(task)
            if run is None or run.outcome is not None:
                continue
            self._take_back(child)
            if task in child.running:
                if self._still_runs(child, run):
                    self._stop(child, run, outcome)
            else:
                self._returned = [claim for claim in self._returned if claim.id != task]
                self._ended.append(Finished(run.claim, outcome))

    def look(self, task: int, feature: str) -> int | None:
        """Has the child say the stack of *task* to *feature*."""
        for child in self._children:
            for run in child.running.values():
                if any(part.id == task for part in run.claim.parts) and run.claim.id in child.status.running():
                    run.asker = feature
                    child.look(run)
                    return child.process.pid
        return None

    def filenos(self) -> list[int]:
        """Sockets and deaths of all children."""
        return [fileno for child in self._children for fileno in child.filenos()]

    def deadline(self) -> float:
        """The next limit that a task reaches, the next look at what waits, or the next child that is to be started."""
        times = [run.due for child in self._children for run in child.running.values() if run.due < math.inf]
        times += [clock.monotonic() + _PATIENCE for child in self._children if self._has_waiting(child)]
        if self._missing():
            times.append(self._starter.next_start)
        times += [child.next_look for child in self._children]
        if any(child.unsent for child in self._children):
            times.append(clock.monotonic() + _AGAIN)
        if self._submit_at > clock.monotonic():
            times.append(self._submit_at)
        return min(times, default=math.inf)

    def collect(self) -> list[Finished]:
        """Returns the claims that have ended; those that a dead child ran have crashed.

        Raises :class:`FBTasksError` when the children cannot import the app and never could.
        """
        now = clock.monotonic()
        for child in [*self._children]:
            child.speak()
            if self._hear(child):
                self._end(child)
            elif child.is_to_end:
                self._end(child, killed=True)
            elif child.ready:
                self._retire_used_up(child)
                self._look_at_waiting(child, now)
            elif now > child.started + _START_LIMIT:
                child.message = f"a child process had not imported the app after {_START_LIMIT:g} seconds."
                self._end(child)
        self._enforce(now)
        self._replenish(now)
        done, self._ended = self._ended, []
        return done

    def stop(self, hurry: Callable[[], bool]) -> list[Finished]:
        """Ends the children: idle ones by closing their sockets, others at once. Returns what became of all claims."""
        idle = []
        for child in self._children:
            self._hear(child)
            self._take_back(child)
            if child.ready and not child.running:
                child.hang_up()
                idle.append(child)
        _wait_for_idle([child.process for child in idle], hurry)
        for child in [*self._children]:
            self._end(child, killed=True)
        done = [*self._ended, *(Finished(claim, RELEASED) for claim in self.take_back())]
        self._ended = []
        return done

    def _take_back(self, child: Child) -> None:
        self._returned += [run.claim for run in child.take_back()]

    # One child

    def _hear(self, child: Child) -> bool:
        """Takes in what the child has said since the last time. Returns whether it is dead."""
        was_ready = child.ready
        said, dead = child.read()
        if child.ready and not was_ready:
            self._starter.ready()
        for each in said:
            if isinstance(each, Ended):
                self._take(child, each)
            else:
                self._note(child, each)
        return dead

    def _note(self, child: Child, said: Reported) -> None:
        run = child.running.get(said.task)
        if run is not None:
            for claim in run.claim.parts:
                self._said.append(Said(claim.id, claim.claim_id, said.feature or run.asker, said.data))

    def _still_runs(self, child: Child, run: Run) -> bool:
        """Whether the child has not said by now that it has ended."""
        self._hear(child)
        return child.running.get(run.claim.id) is run

    def _take(self, child: Child, ended: Ended) -> None:
        run = child.running.pop(ended.task, None)
        if run is None:
            return
        if run.outcome is None:
            self._timed += 1
            self._average += (ended.elapsed - self._average) / min(self._timed, _MEMORY)
            self._ended.append(Finished(run.claim, ended.outcome, ended.elapsed, ended.recorded))
        elif child.one:  # stopped, and now out of its transaction, which may have been committed before
            outcome = ended.outcome if ended.recorded else run.outcome
            self._ended.append(Finished(run.claim, outcome, run.elapsed, ended.recorded))
            child.apart = child.is_to_end = True

    def _has_waiting(self, child: Child) -> bool:
        return child.ready and not child.stuck and len(child.running) > child.slots

    def _look_at_waiting(self, child: Child, now: float) -> None:
        """Takes back what waits in a child for longer than is worth it."""
        if self._has_waiting(child):
            begun = child.status.running().values()
            patience = max(_PATIENCE, 2 * self._average)
            if len(begun) == child.slots and now - max(begun) > patience:
                child.stuck = True
                self._take_back(child)

    def _retire_used_up(self, child: Child) -> None:
        """Replaces a child that has served its time, or that runs nothing that counts any more."""
        most, memory = self._options.max_tasks, self._options.max_memory
        used_up = most is not None and child.served >= most
        if memory is not None and child.served and not child.running:  # a new one may be larger from the start
            used_up = used_up or child.memory() > memory
        child.apart = child.apart or used_up
        if child.apart and not any(run.outcome is None or run.due < math.inf for run in child.running.values()):
            self._end(child, killed=True, patience=1.0)

    def _end(self, child: Child, *, killed: bool = False, patience: float = 0.0) -> None:
        """Ends a child, an idle one after *patience*, and says what became of all that it had.

        What it has not said the end of keeps the outcome that it was stopped for. The rest has crashed if it had begun,
        or is given back if the child did not die of itself but is *killed*.
        """
        self._take_back(child)
        child.look_again()
        child.kill(0.0 if child.running else patience)
        self._hear(child)
        how = child.how_it_ended()
        since = child.status.running()
        to_blame = child.to_blame()  # also what was stopped and goes on
        for task, run in child.running.items():
            run.since = since.get(task, run.since)
            if run.outcome is not None:
                if not child.one:  # it was said when it was stopped
                    continue
                outcome = run.outcome
            elif killed or not child.ready or task not in to_blame:
                outcome = RELEASED
            else:
                outcome = self._crash(how, len(to_blame) - 1)
            if run.outcome is None:
                outcome = self._ended_by(child, run, outcome)
            self._ended.append(Finished(run.claim, outcome, run.elapsed))
        if child.ready and not killed and not to_blame:
            logger.error("A child process that ran no task ended %s.", how)
        child.running.clear()
        child.close()
        self._children.remove(child)
        if not killed and not child.ready:
            self._starter.failed(child, how)

    def _crash(self, how: str, others: int) -> Outcome:
        why = f"its process ended {how} while it ran"
        if others:
            shared = "another task" if others == 1 else f"{others} other tasks"
            why = f"the process that it shared with {shared} ended {how}"
        return Crashed(why, not others, self._crash_limit)

    def _replenish(self, now: float) -> None:
        while (missing := self._missing()) and now >= self._starter.next_start:
            number = min(missing)
            child = self._starter.start(self._mode, number, self._slots)
            if child is None:
                return
            self._children.append(child)

    def _missing(self) -> set[int]:
        """The numbers of the children that there should be and are not."""
        return set(range(1, self._count + 1)) - {child.number for child in self._children if not child.apart}

    # Limits

    def _enforce(self, now: float) -> None:
        for child in [*self._children]:
            for run in [run for run in child.running.values() if now >= run.due]:
                if run.claim.id in child.running:  # else it has ended meanwhile, perhaps with its child
                    self._enforce_on(child, run, now)

    def _enforce_on(self, child: Child, run: Run, now: float) -> None:
        if run.outcome is None:  # its time runs from now on when it has not begun; the status may be of an earlier run
            if run.quiet < math.inf:
                run.beaten = max(run.beaten, child.status.beaten(run.claim.id))
            run.begin(max(run.since, child.status.running().get(run.claim.id, now)))
        if now < run.due or not self._still_runs(child, run):
            return
        if run.outcome is not None:
            self._lose_patience(child, run)
        elif now >= run.since + run.hard:
            self._stop(child, run, TimeLimitExceeded(f"it was stopped at its time_limit of {run.hard:g} s"))
        elif now >= run.silent_at:
            timeout = f"its heartbeat_timeout of {run.quiet:g} s"
            error = HeartbeatTimeout(f"it was stopped, since it had not called self.heartbeat() for {timeout}")
            self._stop(child, run, error)
        else:
            self._tell_late(child, run, now)

    def _tell_late(self, child: Child, run: Run, now: float) -> None:
        """Tells a task that its soft limit is over; the next of its calls, if there is one, has a time of its own."""
        if not run.is_told:
            child.interrupt(run, SOFT)
        run.is_told = True
        run.begin(run.since)
        if invocation_of(self._tasks[run.claim.name]).several:
            run.due = min(run.due, now + run.soft)

    def _ended_by(self, child: Child, run: Run, why: Outcome | TimeLimitExceeded) -> Outcome:
        """The outcome of a run that ends by *why* in the call that it is in."""
        task, step = self._tasks[run.claim.name], child.status.step_of(run.claim.id)
        outcome = _stopped(task, run.claim, step, why) if isinstance(why, TimeLimitExceeded) else why
        return invocation_of(task).ended(run.claim, outcome, step)

    def _stop(self, child: Child, run: Run, why: Outcome | TimeLimitExceeded) -> None:
        now = clock.monotonic()
        run.since = max(run.since, child.status.running().get(run.claim.id, 0.0))
        outcome = self._ended_by(child, run, why)
        if not child.one:
            run.outcome = outcome
            self._ended.append(Finished(run.claim, outcome, run.elapsed))
            child.interrupt(run, STOP)
            run.due = now + _UNWIND
        elif self._tasks[run.claim.name].options.transactional and child.ready:
            run.outcome = outcome
            child.interrupt(run, STOP)  # its rows are free when it has rolled back
            run.due = now + _ROLLBACK
        else:
            child.kill()
            if self._still_runs(child, run):  # else it has ended by itself a moment ago, as it said
                run.outcome = outcome
            self._end(child, killed=True)

    def _lose_patience(self, child: Child, run: Run) -> None:
        run.due = math.inf
        if child.one:
            self._end(child, killed=True)
            return
        logger.warning("%s does not stop; its process is killed when the other tasks in it have ended.", run)
        child.ask(run)
        child.apart = True
        self._take_back(child)


def _wait_for_idle(processes: Sequence[Process], hurry: Callable[[], bool]) -> None:
    """Waits for the end of idle children, up to :data:`_LEISURE` for all together. Says so when it takes long."""
    began = clock.monotonic()
    said = False
    for process in processes:
        while not process.wait(_GLANCE) and clock.monotonic() < began + _LEISURE and not hurry():
            if not said and clock.monotonic() > began + _LEISURE / 10:
                said = True
                logger.warning(
                    "Waiting up to %g s for the end of child processes that run no task (pid %s): one that they have "
                    "run has left a thread or an exit handler. A second signal stops them.",
                    _LEISURE,
                    ", ".join(str(each.pid) for each in processes if not each.ended),
                )


def _stopped(task: Task[..., object], claim: Claim, step: int, error: TimeLimitExceeded) -> Outcome:
    """Returns the outcome of *claim*, stopped for *error* in its call number *step*: a retry where its task says so."""
    if claim.members:
        return Several(tuple(_stopped(task, each, step, error) for each in claim.members))
    tries = invocation_of(task).tries(claim, step) + 1
    delay = task.policy.decide(error, tries, claim.max_tries, _RNG)
    kind = name_of(type(error))
    if delay is None:
        return Failed(kind, str(error))
    return Requeue(Reason.RETRY, delay, f"{kind_of(kind)}: {error}", kind)
