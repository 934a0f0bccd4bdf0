"""A worker in the process of a test."""

import threading
from contextlib import contextmanager

from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor


@contextmanager
def opened(app, executor=None, **given):
    """The loop of a worker of *app* that has registered. Its options are those that are *given*, else those here."""
    options = {"name": "w", "queues": ("default",), "pool": "solo", "concurrency": 1, **given}
    loop = Loop(app, executor or SoloExecutor(app), WorkerOptions(**options))
    try:
        loop.start()
        yield loop
    finally:
        loop.close()


@contextmanager
def running(loop):
    """For the block, *loop* works in a thread, which is yielded."""
    thread = threading.Thread(target=loop.run, kwargs={"listen": False})
    thread.start()
    try:
        yield thread
    finally:
        loop.drain.begin()
        thread.join(20)
