"""How a child runs the tasks that its worker sends: one at a time, or side by side in threads."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

from fbtasks.run.interrupts import LOOK, PING, STOP, Interrupts, SignalInterrupts, ThreadInterrupts
from fbtasks.run.invocation import RunResult
from fbtasks.run.runner import Runner
from fbtasks.run.transactional import TransactionalRunner
from fbtasks.system.showing import brief
from fbtasks.system.threads import Endless, signals_to_read
from fbtasks.tasks.call import Claim
from fbtasks.worker.pools.child.link import Link, ending
from fbtasks.worker.pools.wire import Reported, receive_task

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class Server:
    """Runs the tasks of one worker; each subclass in its own way."""

    interrupts: Interrupts

    def __init__(self, app: FBTasks, link: Link, number: int) -> None:
        self.runner = Runner(app, interrupts=self.interrupts, reports=link.reports)
        self._link = link
        self.notes = [partial(link.status.begin_step, slot) for slot in range(link.slots)]
        """Has the worker know which of several calls a slot is in, and since when."""
        self._local = threading.local()
        self._counters = count(number * 10_000)
        self._transactional: list[TransactionalRunner] = []
        self._connected: dict[int, TransactionalRunner] = {}

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        raise NotImplementedError

    def heed(self, kind: str, task: int) -> None:
        """Does what the worker says about a running task: here, answers with its stack."""
        if kind == LOOK:
            try:
                found = self.interrupts.stack(task)
            except Exception as error:  # noqa: BLE001  # whatever has loaded the application's modules gives the lines
                found = f"Its stack cannot be read: {brief(error)}."
            self._link.say(Reported(task, "", found.encode()))

    def serve_slot(self, slot: int) -> None:
        """Takes one task after the other in this thread, until the sockets are closed."""
        link = self._link
        with ending(), suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
            while (claim := receive_task(link.tasks, wait=True)) is not None:
                link.status.begin(slot, claim.id)
                link.end(slot, self.runner.serve(self.run, slot, claim))
            link.check()

    def run(self, slot: int, claim: Claim) -> RunResult:
        """Runs one claim in this thread."""
        task = self.runner.app.tasks.get(claim.name)
        with ending():
            if task is not None and task.options.transactional:
                return self._run_transactional(slot, claim)
            return self.runner.run(claim, note=self.notes[slot])

    def _run_transactional(self, slot: int, claim: Claim) -> RunResult:
        runner: TransactionalRunner | None = getattr(self._local, "runner", None)
        if runner is None:
            runner = self._local.runner = TransactionalRunner(self.runner, self._who, next(self._counters))
            self._transactional.append(runner)
        self._connected[claim.id] = runner
        try:
            return runner.run(claim, self.notes[slot])
        finally:
            del self._connected[claim.id]

    def _who(self) -> int:
        return self._link.status.shared.worker_id

    def cancel_statement(self, task: int) -> None:
        """Ends the statement that a transactional task is in, which no exception would interrupt."""
        runner = self._connected.get(task)
        if runner is not None:
            runner.cancel_statement()

    def close(self) -> None:
        """Closes what transactional tasks had opened."""
        for runner in self._transactional:
            runner.close()


class ProcessServer(Server):
    """One task at a time, in the main thread, where signals interrupt it."""

    def __init__(self, app: FBTasks, link: Link, number: int) -> None:
        self.interrupts = SignalInterrupts(link.status.aimed_at)
        super().__init__(app, link, number)
        Endless(partial(self._hear, signals_to_read()), name="fbtasks-stop").start()

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        self.serve_slot(0)

    def _hear(self, read: int) -> None:
        # A signal's Python handler waits for the main thread, which may be inside the engine: this thread is not.
        with suppress(OSError):  # a task has closed all that it found open, and the process ends by that
            while numbers := os.read(read, 64):
                if signal.SIGUSR2 in numbers:
                    self.cancel_statement(self._link.status.aimed_at(STOP))


class ThreadServer(Server):
    """Tasks side by side in threads."""

    def __init__(self, app: FBTasks, link: Link, number: int) -> None:
        self.interrupts: ThreadInterrupts = ThreadInterrupts()
        super().__init__(app, link, number)

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        with ThreadPoolExecutor(self._link.slots, thread_name_prefix="task") as pool, ending():
            for slot in range(self._link.slots):
                pool.submit(self.serve_slot, slot)

    def heed(self, kind: str, task: int) -> None:
        """Interrupts the task, or answers."""
        if kind == PING:
            self.answer()
            return
        if kind == LOOK:
            super().heed(kind, task)
            return
        with suppress(RuntimeError):  # its event loop has just been closed
            self.interrupts.interrupt(task, kind)
        if kind == STOP:
            self.cancel_statement(task)

    def answer(self) -> None:
        """Answers the worker: code of Python runs here, whatever a task does in this process."""
        self._link.status.answer()
