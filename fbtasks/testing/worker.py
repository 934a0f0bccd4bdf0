"""A worker in a process of its own, for a test."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any, Final

from fbtasks import FBTasks
from fbtasks import timing as clock
from fbtasks.errors import FBTasksError
from fbtasks.queue.operations.workers import list_workers
from fbtasks.url import URL_VARIABLE

_PATIENCE: Final = 60.0
"""Seconds for which a worker may start."""


class WorkerProcess(subprocess.Popen[bytes]):
    """``fbtasks worker``, on the database that the app has here. As a context manager it is stopped with the block."""

    def __init__(self, app: FBTasks, path: str, options: tuple[str, ...]) -> None:
        """*path*: the app as -A names it. Returns when the worker is registered. Raises :class:`FBTasksError`."""
        command = [sys.executable, "-m", "fbtasks", "worker", "-A", path, "-c", "1", "--grace", "5", *options]
        folders = os.pathsep.join(filter(None, sys.path))
        super().__init__(command, env={**os.environ, URL_VARIABLE: app.settings.url.reveal(), "PYTHONPATH": folders})
        # Reaped also while this thread waits inside the engine, which takes a zombie for alive.
        threading.Thread(target=self.wait, daemon=True).start()
        limit = clock.monotonic() + _PATIENCE
        while all(worker.pid != self.pid for worker in list_workers(app.database)):
            if self.poll() is not None or clock.monotonic() > limit:
                self.kill()
                raise FBTasksError(f"the worker has not started, its output says why: {' '.join(command[1:])}")
            clock.sleep(0.05)

    def __exit__(self, *error: Any) -> None:
        self.terminate()
        super().__exit__(*error)
