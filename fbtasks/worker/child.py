"""The main function of a child process: receives claims, runs them, sends outcomes back.

``python -m fbtasks.worker.child FD MODE APP WORKER_ID SLOT PLACES LEVEL``. The child ends when its socket does.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from fbtasks.app import FBTasks
from fbtasks.call import Claim, Finished
from fbtasks.errors import FBTasksError
from fbtasks.importing import import_app
from fbtasks.interrupts import STOP, NoInterrupts, SignalInterrupts, TaskStopped, ThreadInterrupts
from fbtasks.runner import Runner, TransactionalRunner
from fbtasks.worker.lifeline import follow_parent

Interruption = tuple[str, int]
"""What the worker sends besides claims: a kind (see ``interrupts``) and the task it is meant for."""


class Server:
    """Serves claims from one socket; each subclass in its own way."""

    interrupts: NoInterrupts

    def __init__(self, app: FBTasks, pipe: Connection[Any, Any], worker_id: int, slot: int, places: int) -> None:
        self._runner = Runner(app, interrupts=self.interrupts)
        self._pipe = pipe
        self._worker_id = worker_id
        self._places = places
        self._lock = threading.Lock()
        self._local = threading.local()
        self._slots = iter(range(slot * 10_000, slot * 10_000 + 10_000))
        self._transactional: list[TransactionalRunner] = []
        self._connected: dict[int, TransactionalRunner] = {}

    def serve(self) -> None:
        """Serves until the socket is closed."""
        raise NotImplementedError

    def run(self, claim: Claim) -> None:
        """Runs one claim in this thread and sends its outcome."""
        try:
            if self._is_transactional(claim):
                self._send(*self._run_transactional(claim))
            else:
                self._send(self._runner.run(claim), False)
        except TaskStopped:  # it came when the task had just ended; its outcome does not count any more
            os._exit(1)

    def _is_transactional(self, claim: Claim) -> bool:
        task = self._runner.app.tasks.get(claim.name)
        return task is not None and task.options.transactional

    def _run_transactional(self, claim: Claim) -> tuple[Finished, bool]:
        runner: TransactionalRunner | None = getattr(self._local, "runner", None)
        if runner is None:
            with self._lock:
                runner = self._local.runner = TransactionalRunner(self._runner, self._worker_id, next(self._slots))
                self._transactional.append(runner)
        self._connected[claim.id] = runner
        try:
            return runner.run(claim)
        finally:
            del self._connected[claim.id]

    def cancel_statement(self, task: int) -> None:
        """Ends the statement that a transactional task is in, which no exception would interrupt."""
        runner = self._connected.get(task)
        if runner is not None:
            runner.cancel_statement()

    def _send(self, finished: Finished, recorded: bool) -> None:
        with self._lock:
            self._pipe.send((finished, recorded))

    def _receive(self) -> Claim | Interruption | None:
        try:
            message: Claim | Interruption = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return message

    def close(self) -> None:
        """Closes what transactional tasks had opened."""
        for runner in self._transactional:
            runner.close()


class ProcessServer(Server):
    """One task at a time, in the main thread, where signals interrupt it."""

    def __init__(self, *arguments: Any) -> None:
        self.interrupts = SignalInterrupts()
        super().__init__(*arguments)
        self._current = 0
        read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        threading.Thread(target=self._hear, args=(read,), name="fbtasks-stop", daemon=True).start()

    def serve(self) -> None:
        """Serves until the socket is closed."""
        while isinstance(claim := self._receive(), Claim):
            self._current = claim.id
            self.run(claim)

    def _hear(self, read: int) -> None:
        # A signal's Python handler waits for the main thread, which may be inside the engine: this thread is not.
        while numbers := os.read(read, 64):
            if signal.SIGUSR2 in numbers:
                self.cancel_statement(self._current)


class ThreadServer(Server):
    """Tasks side by side in threads; the main thread hears what the worker says."""

    def __init__(self, *arguments: Any) -> None:
        self.interrupts: ThreadInterrupts = ThreadInterrupts()
        super().__init__(*arguments)

    def serve(self) -> None:
        """Serves until the socket is closed."""
        with ThreadPoolExecutor(self._places, thread_name_prefix="task") as pool:
            while (message := self._receive()) is not None:
                if isinstance(message, Claim):
                    pool.submit(self.run, message)
                else:
                    self._interrupt(*message)

    def _interrupt(self, kind: str, task: int) -> None:
        self.interrupts.interrupt(task, kind)
        if kind == STOP:
            self.cancel_statement(task)


class LoopServer(ThreadServer):
    """Coroutine functions side by side in one event loop; plain and transactional ones in threads."""

    def serve(self) -> None:
        """Serves until the socket is closed."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self._places + 1))
        running: set[asyncio.Task[None]] = set()
        while (message := await asyncio.to_thread(self._receive)) is not None:
            if isinstance(message, Claim):
                job = asyncio.create_task(self._run(message))
                running.add(job)
                job.add_done_callback(running.discard)
            else:
                self._interrupt(*message)

    async def _run(self, claim: Claim) -> None:
        if self._is_transactional(claim):
            await asyncio.to_thread(self.run, claim)
        else:
            self._send(await self._runner.run_async(claim), False)


SERVERS = {"processes": ProcessServer, "threads": ThreadServer, "asyncio": LoopServer}


def main(arguments: list[str]) -> int:
    """Runs the child."""
    fd, mode, app_path, worker_id, slot, places, level = arguments
    follow_parent()
    os.set_inheritable(int(fd), False)
    pipe: Connection[Any, Any] = Connection(int(fd))
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(processName)s %(message)s")
    try:
        app = import_app(app_path)
        app.load()
    except FBTasksError as error:
        pipe.send(str(error))
        return 1
    server = SERVERS[mode](app, pipe, int(worker_id), int(slot), int(places))
    try:
        pipe.send("ready")
        server.serve()
    except BrokenPipeError:  # the worker has gone, and this process goes with it
        return 1
    finally:
        server.close()
        app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
