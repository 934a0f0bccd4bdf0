"""What all measurements of a run share: the database, other systems' servers, a folder, and how much to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from benchmarks.database import BenchDatabase
from benchmarks.figures import Sample
from benchmarks.peers import Peers


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured in a round."""

    share: float = 1.0
    """Of the backlog of each drain."""
    singles: int = 200
    stamps: int = 150
    """Tasks of a latency."""
    ceiling: int = 6_000
    bare: int = 200
    open: int = 2_000
    bulk: int = 10_000
    idle: float = 12.0
    """Seconds for which a worker is watched that has nothing to do."""
    rest: float = 10.0
    """Seconds before that: its polls grow rarer while events are known to arrive."""
    fleet: int = 8_000
    """No-op tasks for several workers."""
    pauses: int = 800
    """Tasks of 5 ms for them."""
    claims: int = 8_000
    """Tasks that are claimed beside large tables."""
    history: int = 50_000
    scheduled: int = 20_000
    messages: int = 150
    changes: int = 500
    """Changes of a table that are handled, as many as in the article."""
    rows: int = 500
    """Rows that one transaction writes, captured and not."""

    def share_of(self, backlog: int) -> int:
        """The tasks of a drain."""
        return max(self.singles + 100, int(backlog * self.share))


FULL = Scale()
QUICK = Scale(
    share=0.05, singles=50, stamps=50, ceiling=1_000, bare=50, open=200, bulk=1_000, idle=2.0, rest=0.0, fleet=1_000,
    pauses=100, claims=1_000, history=5_000, scheduled=2_000, messages=50, changes=100, rows=100,
)  # fmt: skip


class Bench:
    """The database and what is beside it."""

    def __init__(self, database: BenchDatabase, peers: Peers, folder: Path, scale: Scale) -> None:
        self.database = database
        self.peers = peers
        self.scale = scale
        self._folder = folder
        self._folders = 0

    def new_folder(self) -> Path:
        """A folder for one worker and what its tasks write."""
        self._folders += 1
        folder = self._folder / f"run{self._folders}"
        folder.mkdir()
        return folder


class Member(Protocol):
    """What can be measured beside something else."""

    @property
    def key(self) -> str:
        """Its name in figures."""

    @property
    def label(self) -> str:
        """Its name for people."""

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """Its samples, each with the key that other members use for the same thing. Raises NotMeasured."""
