"""Where tasks run: in child processes (one task each, threads, or an event loop), or in the worker itself."""

from __future__ import annotations

from typing import Final

from fbtasks.app import FBTasks
from fbtasks.errors import ConfigurationError
from fbtasks.worker.executors.base import Executor
from fbtasks.worker.executors.children import ChildExecutor, ChildOptions
from fbtasks.worker.executors.solo import SoloExecutor

__all__ = ["POOLS", "ChildOptions", "Executor", "make_executor"]

POOLS: Final = ("processes", "threads", "asyncio", "solo")


def make_executor(
    pool: str, app_path: str, app: FBTasks, concurrency: int, log: str, options: ChildOptions | None = None
) -> Executor:
    """The executor of that name. Raises :class:`ConfigurationError` for an unknown one."""
    if pool not in POOLS:
        raise ConfigurationError(f"unknown pool {pool!r}. Pools: {', '.join(POOLS)}.")
    if pool == "solo":
        return SoloExecutor(app)
    return ChildExecutor(pool, app_path, app, concurrency, log, options)
