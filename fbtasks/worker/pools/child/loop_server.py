"""How a child runs coroutine functions: side by side in one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from fbtasks.tasks.call import Claim
from fbtasks.worker.pools.child.link import ending
from fbtasks.worker.pools.child.servers import ThreadServer
from fbtasks.worker.pools.wire import receive_task

logger = logging.getLogger(__name__)
T = TypeVar("T")


class LoopServer(ThreadServer):
    """Coroutine functions side by side in one event loop; plain and transactional ones in threads."""

    def serve(self) -> None:
        """Serves until the sockets are closed."""
        with asyncio.Runner() as runner, ending():
            self._loop = loop = runner.get_loop()
            loop.set_exception_handler(self._failed)
            serving = loop.create_task(self._serve())
            while not serving.done():
                try:
                    loop.run_until_complete(serving)
                except (SystemExit, KeyboardInterrupt) as error:
                    # Raised in a job of a task, which has it as its own, or in a callback. Others run in this loop too.
                    logger.warning("%s was raised in the event loop, which goes on.", type(error).__name__)
            serving.result()

    def answer(self) -> None:
        """Answers the worker from the event loop, which says how tasks end: if it still runs."""
        with suppress(RuntimeError):  # it has just been closed
            self._loop.call_soon_threadsafe(super().answer)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Says what no task caught, as the loop does; ends this process when a task has closed the loop's sockets."""
        self._link.check()
        loop.default_exception_handler(context)

    async def _serve(self) -> None:
        self._threads = ThreadPoolExecutor(self._link.slots, thread_name_prefix="task")
        self._free: asyncio.Queue[int] = asyncio.Queue()
        for slot in range(self._link.slots):
            self._free.put_nowait(slot)
        running: set[asyncio.Task[None]] = set()
        while True:
            slot = await self._free.get()  # what has no slot yet may be taken back
            if (claim := await self._receive()) is None:
                break
            self._link.status.begin(slot, claim.id)
            job = asyncio.create_task(self._run(slot, claim))
            running.add(job)
            job.add_done_callback(running.discard)
        self._link.check()
        while running:
            await asyncio.wait(running)
        self._threads.shutdown()

    async def _receive(self) -> Claim | None:
        """The next task; None when there will be none."""
        loop, tasks = asyncio.get_running_loop(), self._link.tasks
        while True:
            try:
                return receive_task(tasks, wait=False)
            except BlockingIOError:
                ready = loop.create_future()
                loop.add_reader(tasks, ready.set_result, None)
                try:
                    await ready
                finally:
                    loop.remove_reader(tasks)
            except ConnectionResetError:
                return None

    async def _run(self, slot: int, claim: Claim) -> None:
        task = self.runner.app.tasks.get(claim.name)
        with ending(), suppress(BrokenPipeError, ConnectionResetError):  # the worker has gone
            if task is not None and task.is_async and not task.options.transactional:
                result = await self.runner.run_async(claim, self.notes[slot])
                if result.retried:
                    await self._in_thread(partial(self.runner.tell_retried, result))
            else:
                result = await self._in_thread(partial(self.runner.serve, self.run, slot, claim))
            self._link.end(slot, result)
        self._free.put_nowait(slot)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        """Runs *work*, which raises nothing, in a thread, and returns what it returns.

        Used instead of ``asyncio.to_thread``, which loses the returned value without an error when memory is used up.
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
