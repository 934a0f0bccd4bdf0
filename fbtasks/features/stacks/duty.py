"""Answers operators who ask for the stack of a running task: has its process say it."""

from __future__ import annotations

import math
from typing import Final

from fbtasks import timing as clock
from fbtasks.feature import Duty, Worker
from fbtasks.firebird.session import Session
from fbtasks.tasks.call import Said

PATIENCE: Final = 4.0
"""Seconds that a process has to answer in."""
LOOK: Final = 5.0
"""Seconds between looks where no events of the database arrive."""


class Answers(Duty):
    """The questions for the stacks of tasks of one worker."""

    name = "answering for the stacks of tasks"
    events = ("fbtasks:stack",)
    while_draining = True

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._is_asked = False
        self._next_look = clock.monotonic() + LOOK
        self._processes: dict[int, tuple[int, float]] = {}
        """For tasks whose processes were asked: the pid, and when it is not waited for any longer."""
        self._answers: dict[int, str] = {}

    def heard(self) -> None:
        """Somebody asks."""
        self._is_asked = True

    def told(self, said: Said) -> None:
        """The process of a task answers."""
        if said.id in self._processes:
            text = said.data.decode("utf-8", "replace")
            self._answers[said.id] = text or "Its function is not being called: it begins, or its end is recorded."

    def due(self) -> float:
        """Returns when its time comes."""
        if self._is_asked or self._answers:
            return 0.0
        look = math.inf if self._worker.events_arrive() else self._next_look
        return min([look, *(until for _, until in self._processes.values())])

    def do(self, session: Session) -> bool:
        """Asks the processes of tasks, and writes what they have answered."""
        now = clock.monotonic()
        self._is_asked, self._next_look = False, now + LOOK  # an event that comes meanwhile has it look again
        for (task,) in session.read("FBTASKS_STACKS.ASKED", self._worker.id):
            if task not in self._processes:
                self._ask(task)
        for task, (pid, until) in self._processes.items():
            if now >= until:
                self._answers.setdefault(task, _silent(pid))
        while self._answers:
            task, answer = self._answers.popitem()
            self._processes.pop(task, None)
            session.call("FBTASKS_STACKS.REPLY", task, answer)
        return False

    def _ask(self, task: int) -> None:
        pid = self._worker.look(task, "stacks")
        if pid is None:
            self._answers[task] = "It has not begun: it waits in its worker for another task to end."
        else:
            self._processes[task] = pid, clock.monotonic() + PATIENCE


def _silent(pid: int) -> str:
    return (
        f"Its process {pid} has not answered in {PATIENCE:g} s. It is stopped, or in code that keeps Python's global "
        f"lock (GIL), as some extensions do. On its machine, from outside: py-spy dump --native --pid {pid}"
    )
