"""How a worker works, as its command line says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fbtasks.queue.shares import Share

LEASE: Final = 30.0
POOLS: Final = ("processes", "threads", "asyncio", "solo")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """How a worker works."""

    name: str
    queues: tuple[str, ...]
    shares: Mapping[str, Share] = field(default_factory=dict)
    """What queues have of the worker; one that is not here weighs as much as any other, and has no limit here."""
    pool: str
    concurrency: int
    burst: bool = False
    grace: float = 30.0
    """Seconds that running tasks have to end in when the worker is asked to stop."""
    lease: float = LEASE
    """Seconds of silence after which other workers may take over what this one holds."""
    of_features: Mapping[str, Any] = field(default_factory=dict)
    """What the command line says to features, by the names of their options: of those alone that were given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """How its child processes are used."""

    max_tasks: int | None = None
    """Tasks after which a child is replaced."""
    max_memory: int | None = None
    """Bytes of memory above which a child that has served something is replaced once it is idle."""
    folder: str | None = None
    """The folder that they are started in, where they find the app's modules; None: the one that the worker is in."""
