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
from fbtasks.runner import Runner, TransactionalRunner


class Server:
    """Serves claims from one socket in one of the three ways."""

    def __init__(self, app: FBTasks, pipe: Connection[Any, Any], worker_id: int, slot: int, places: int) -> None:
        self._runner = Runner(app)
        self._pipe = pipe
        self._worker_id = worker_id
        self._slot = slot
        self._places = places
        self._sending = threading.Lock()
        self._local = threading.local()
        self._slots = iter(range(slot * 10_000, slot * 10_000 + 10_000))
        self._transactional: list[TransactionalRunner] = []

    def run(self, claim: Claim) -> None:
        """Runs one claim in this thread and sends its outcome."""
        task = self._runner.app.tasks.get(claim.name)
        if task is not None and task.options.transactional:
            self._send(*self._own_transactional().run(claim))
        else:
            self._send(self._runner.run(claim), False)

    def _own_transactional(self) -> TransactionalRunner:
        runner: TransactionalRunner | None = getattr(self._local, "runner", None)
        if runner is None:
            with self._sending:
                runner = self._local.runner = TransactionalRunner(self._runner, self._worker_id, next(self._slots))
                self._transactional.append(runner)
        return runner

    def _send(self, finished: Finished, recorded: bool) -> None:
        with self._sending:
            self._pipe.send((finished, recorded))

    def processes(self) -> None:
        """One task at a time, in the main thread."""
        while (claim := self._receive()) is not None:
            self.run(claim)

    def threads(self) -> None:
        """Tasks side by side in threads."""
        with ThreadPoolExecutor(self._places, thread_name_prefix="task") as pool:
            while (claim := self._receive()) is not None:
                pool.submit(self.run, claim)

    def asyncio(self) -> None:
        """Coroutine functions side by side in one event loop; plain and transactional ones in threads."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(self._places + 1))
        running: set[asyncio.Task[None]] = set()
        while (claim := await asyncio.to_thread(self._receive)) is not None:
            job = asyncio.create_task(self._run_async(claim))
            running.add(job)
            job.add_done_callback(running.discard)

    async def _run_async(self, claim: Claim) -> None:
        task = self._runner.app.tasks.get(claim.name)
        if task is not None and task.options.transactional:
            await asyncio.to_thread(self.run, claim)
        else:
            self._send(await self._runner.run_async(claim), False)

    def _receive(self) -> Claim | None:
        try:
            claim: Claim = self._pipe.recv()
        except (EOFError, OSError):
            return None
        return claim

    def close(self) -> None:
        """Closes what transactional tasks had opened."""
        for runner in self._transactional:
            runner.close()


def main(arguments: list[str]) -> int:
    """Runs the child."""
    fd, mode, app_path, worker_id, slot, places, level = arguments
    _outlive_signals()
    pipe: Connection[Any, Any] = Connection(int(fd))
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(processName)s %(message)s")
    try:
        app = import_app(app_path)
        app.load()
    except FBTasksError as error:
        pipe.send(str(error))
        return 1
    server = Server(app, pipe, int(worker_id), int(slot), int(places))
    pipe.send("ready")
    try:
        getattr(server, mode)()
    finally:
        server.close()
        app.close()
    return 0


def _outlive_signals() -> None:
    """Leaves SIGINT and SIGTERM to the worker, which decides when a child ends; and ends when the worker does."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: None)  # a handler, not SIG_IGN: what tasks start gets the default back
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if os.getppid() == 1:
            os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
