"""The main function of a child process: takes tasks, runs them, says what became of them.

``python -m fbtasks.worker.child PARENT FD TASKS BOARD MODE APP SLOT PLACES LOG``. It ends when its sockets do.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from queue import SimpleQueue
from typing import Final, TypeVar

from fbtasks import clock
from fbtasks.app import FBTasks
from fbtasks.call import Claim, Succeeded
from fbtasks.errors import FBTasksError
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.importing import import_app
from fbtasks.interrupts import STOP, NoInterrupts, SignalInterrupts, TaskStopped, ThreadInterrupts
from fbtasks.runner import Failure, Runner, RunResult
from fbtasks.threads import Background
from fbtasks.worker.channel import HOOK, SKIP, Assignment, Begun, Ended, NotNow, receive_task, say, words
from fbtasks.worker.child_status import ChildStatus
from fbtasks.worker.lifeline import die_with_parent, identities, leave
from fbtasks.worker.logs import LogOptions, set_up
from fbtasks.worker.processes import SCARCE
from fbtasks.worker.transactional import TransactionalRunner

logger = logging.getLogger(__name__)
T = TypeVar("T")
_LOOK: Final = 1.0
"""Seconds between looks whether the way to the worker is still there."""
_FULL: Final = 3
"""Looks in a row without memory before that is believed to last."""
_SPARE: Final = 1 << 20
"""Bytes of memory without which no process works."""


@contextmanager
def ending() -> Iterator[None]:
    """What escapes the block ends this process at once, so that its worker hears of it and no place is lost."""
    try:
        yield
    except TaskStopped:  # it came when the task had just ended; its outcome does not count any more
        os._exit(1)
    except BaseException:  # noqa: BLE001  # whatever it is, this process is not to go on without a place
        leave("an error outside of the tasks.")


def _is_memory_used_up() -> bool:
    try:
        bytearray(_SPARE)
    except MemoryError:
        return True
    return False


class Link:
    """The three ways that lead to the worker."""

    def __init__(self, pipe: int, tasks: int, status: int, places: int) -> None:
        for file in (pipe, tasks, status):
            os.set_inheritable(file, False)
        self.pipe = socket.socket(fileno=pipe)
        self.tasks = socket.socket(fileno=tasks)
        self.status = ChildStatus(places, status)
        self.places = places
        self._lock = threading.Lock()
        self._numbers = pipe, tasks
        self._files = identities(self._numbers)

    def check(self) -> None:
        """Ends this process when a task has closed the sockets, whatever their numbers stand for now."""
        if identities(self._numbers) != self._files:
            leave("a task has closed the file descriptors that lead to the worker.")

    def watch(self) -> None:
        """Looks from time to time whether this process can still serve; ends it when it cannot.

        What waits for a socket that was closed would wait without end; and without memory a place may be lost in a
        library that catches the error.
        """
        full = 0
        with ending():
            while True:
                time.sleep(_LOOK)
                self.check()
                full = full + 1 if _is_memory_used_up() else 0
                if full >= _FULL:
                    leave("its memory is used up.")

    def say(self, message: object) -> None:
        """Tells the worker; from any thread."""
        with self._lock:
            say(self.pipe, message)

    def begin(self, place: int, assignment: Assignment) -> Claim:
        """Notes that a task begins; and says so, where the worker wants to hear it."""
        number = assignment.number
        self.status.begin(place, number)
        if assignment.announce:
            self.say(Begun(number, clock.monotonic()))
        return assignment.claim

    def end(self, place: int, result: RunResult) -> None:
        """Says what became of a task. With hooks to be called this place waits to hear whether they are."""
        (claim, outcome, elapsed, recorded), failure, _ = result
        self.say(Ended(claim.id, outcome, elapsed, recorded, None if failure is None else place))
        if failure is None:
            self.status.end(place)

    def end_hooks(self, place: int, number: int) -> None:
        """Says that hooks have been called."""
        self.say(Ended(number, Succeeded(keep=False), 0.0, True))
        self.status.end(place)


class Server:
    """Runs the tasks of one worker; each subclass in its own way."""

    interrupts: NoInterrupts

    def __init__(self, app: FBTasks, link: Link, slot: int) -> None:
        self._runner = Runner(app, interrupts=self.interrupts)
        self._link = link
        self._lock = threading.Lock()
        self._local = threading.local()
        self._slots = iter(range(slot * 10_000, slot * 10_000 + 10_000))
        self._transactional: list[TransactionalRunner] = []
        self._connected: dict[int, TransactionalRunner] = {}

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        raise NotImplementedError

    def serve_place(self, place: int) -> None:
        """Takes one task after the other in this thread, until the sockets are closed."""
        link = self._link
        with ending(), suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
            while (assignment := receive_task(link.tasks, wait=True)) is not None:
                self._serve_one(place, assignment)
            link.check()

    def _serve_one(self, place: int, assignment: Assignment) -> None:
        claim = self._link.begin(place, assignment)
        if assignment.hooks is not None:
            self.call_hooks(place, assignment)
            return
        result = self.run(claim)
        self._link.end(place, result)
        if result.failure is not None:
            self.follow(place, result.failure)

    def follow(self, place: int, failure: Failure) -> None:
        """Waits until the outcome of a failed task is recorded, and calls its hooks, if the worker says so."""
        number = self.hear(place)
        self._link.status.begin(place, number)
        if number:
            self._call(place, number, failure)

    def hear(self, place: int) -> int:
        """Waits for the worker's word to this place: the number of a run of hooks, or 0 when they are not called."""
        raise NotImplementedError

    def call_hooks(self, place: int, assignment: Assignment) -> None:
        """Calls the hooks of a task that was not failed here."""
        claim, _, hooks = assignment
        if hooks is not None:
            self._call(place, hooks.number, self._runner.failure_of(claim, hooks.failed))

    def _call(self, place: int, number: int, failure: Failure) -> None:
        with suppress(TaskStopped):  # their time is over, as the worker knows
            self._runner.call_failure_hooks(failure, number)
        self._link.end_hooks(place, number)

    def run(self, claim: Claim) -> RunResult:
        """Runs one claim in this thread."""
        with ending():
            if self._is_transactional(claim):
                return self._run_transactional(claim)
            return self._runner.run(claim)

    def _is_transactional(self, claim: Claim) -> bool:
        task = self._runner.app.tasks.get(claim.name)
        return task is not None and task.options.transactional

    def _run_transactional(self, claim: Claim) -> RunResult:
        runner: TransactionalRunner | None = getattr(self._local, "runner", None)
        if runner is None:
            with self._lock:
                runner = self._local.runner = TransactionalRunner(self._runner, self._who, next(self._slots))
                self._transactional.append(runner)
        self._connected[claim.id] = runner
        try:
            return runner.run(claim)
        finally:
            del self._connected[claim.id]

    def _who(self) -> int:
        return self._link.status.worker_id

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

    def __init__(self, app: FBTasks, link: Link, slot: int) -> None:
        self.interrupts = SignalInterrupts(link.status.aimed_at)
        super().__init__(app, link, slot)
        self._words = words(link.pipe)
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        Background(target=self._hear, args=(read,), name="fbtasks-stop").start()

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        self.serve_place(0)

    def hear(self, place: int) -> int:  # noqa: ARG002  # there is one
        """The next word; 0 when there will be none."""
        return next((number for _, _, number in self._words), 0)

    def _hear(self, read: int) -> None:
        # A signal's Python handler waits for the main thread, which may be inside the engine: this thread is not.
        while numbers := os.read(read, 64):
            if signal.SIGUSR2 in numbers:
                self.cancel_statement(self._link.status.aimed_at(STOP))


class ThreadServer(Server):
    """Tasks side by side in threads; the main thread hears what the worker says."""

    def __init__(self, app: FBTasks, link: Link, slot: int) -> None:
        self.interrupts: ThreadInterrupts = ThreadInterrupts()
        super().__init__(app, link, slot)
        self._words: list[SimpleQueue[int]] = [SimpleQueue() for _ in range(link.places)]

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        with ThreadPoolExecutor(self._link.places, thread_name_prefix="task") as pool, ending():
            for place in range(self._link.places):
                pool.submit(self.serve_place, place)
            self._listen()

    def _listen(self) -> None:
        with ending():
            with suppress(ConnectionResetError):
                for kind, number, run in words(self._link.pipe):
                    self._heed(kind, number, run)
            self._link.check()
            for waiting in self._words:  # the worker will say no more
                waiting.put(0)

    def _heed(self, kind: str, number: int, run: int) -> None:
        if kind in (HOOK, SKIP):
            self._words[number].put(run)
            return
        with suppress(RuntimeError):  # its event loop has just been closed
            self.interrupts.interrupt(number, kind)
        if kind == STOP:
            self.cancel_statement(number)

    def hear(self, place: int) -> int:
        """The next word to this place."""
        return self._words[place].get()


class LoopServer(ThreadServer):
    """Coroutine functions side by side in one event loop; plain and transactional ones in threads."""

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        Background(target=self._listen, name="fbtasks-listen").start()
        with asyncio.Runner() as runner, ending():
            runner.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(self._link.places, thread_name_prefix="task")
        self._free = list(range(self._link.places))
        self._running: set[asyncio.Task[None]] = set()
        self._over = loop.create_future()
        self._taking = False
        self._take(loop)
        await self._over
        while self._running:
            await asyncio.wait(self._running)
        self._threads.shutdown()

    def _take(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins tasks as long as there are free places, and has itself called when there is more."""
        with ending():
            self._take_some(loop)

    def _take_some(self, loop: asyncio.AbstractEventLoop) -> None:
        link = self._link
        try:
            while self._free:
                assignment = receive_task(link.tasks, wait=False)
                if assignment is None:
                    raise EOFError
                place = self._free.pop()
                link.begin(place, assignment)
                job = loop.create_task(self._run(place, assignment))
                self._running.add(job)
                job.add_done_callback(self._running.discard)
        except BlockingIOError:
            if not self._taking:
                self._taking = True
                loop.add_reader(link.tasks, self._take, loop)
            return
        except (EOFError, ConnectionResetError):
            link.check()
            if not self._over.done():
                self._over.set_result(None)
        if self._taking:
            self._taking = False
            loop.remove_reader(link.tasks)

    async def _run(self, place: int, assignment: Assignment) -> None:
        with ending(), suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
            if assignment.hooks is not None:
                await self._in_thread(partial(self.call_hooks, place, assignment))
            else:
                await self._run_task(place, assignment.claim)
        self._free.append(place)
        if not self._taking and not self._over.done():
            self._take(asyncio.get_running_loop())

    async def _run_task(self, place: int, claim: Claim) -> None:
        if self._is_coroutine(claim):
            result = await self._runner.run_async(claim)
        else:
            result = await self._in_thread(partial(self.run, claim))
        self._link.end(place, result)
        if result.failure is not None:
            await self._in_thread(partial(self.follow, place, result.failure))

    def _is_coroutine(self, claim: Claim) -> bool:
        task = self._runner.app.tasks.get(claim.name)
        return task is not None and task.is_async and not task.options.transactional

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs *work*, which raises nothing, in a thread, and returns what it returns.

        Used in place of ``asyncio.to_thread``, which loses the returned value without an error when memory is used up.
        """
        loop, context = asyncio.get_running_loop(), copy_context()
        done: asyncio.Future[T] = loop.create_future()

        def run() -> None:
            with ending():
                loop.call_soon_threadsafe(done.set_result, context.run(work))

        self._threads.submit(run)
        while not done.done():
            with suppress(asyncio.CancelledError):  # meant for a task that has just ended: a limit that came too late
                await asyncio.wait([done])
        return done.result()


SERVERS: dict[str, Callable[[FBTasks, Link, int], Server]] = {
    "processes": ProcessServer,
    "threads": ThreadServer,
    "asyncio": LoopServer,
}


def _is_shortage(error: BaseException | None) -> bool:
    """Whether *error* comes of a shortage of the machine, which may be over in a moment."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SCARCE):
            return True
        error = error.__cause__ or error.__context__
    return False


def main(arguments: list[str]) -> int:
    """Runs the child."""
    parent, *files, mode, app_path, slot, places, log = arguments
    die_with_parent(int(parent))
    mutex_repair.exit_when_engine_hangs()
    pipe, tasks, status = map(int, files)
    link = Link(pipe, tasks, status, int(places))
    try:
        app = import_app(app_path)
        app.database.keep(lambda: link.status.database)
        app.load()
        import_module("fbtasks.formats")  # now, and not when the first task is to run
        set_up(LogOptions.of(log))
    except FBTasksError as error:
        link.say(NotNow(str(error)) if _is_shortage(error) else str(error))
        return 1
    server = SERVERS[mode](app, link, int(slot))
    try:
        Background(target=link.watch, name="fbtasks-watch").start()
        link.say("ready")
        with ending():
            server.serve()
    except BrokenPipeError:  # the worker has gone, and this process goes with it
        return 1
    finally:
        server.close()
        app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
