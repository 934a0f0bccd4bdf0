"""What the processes of a soak tell each other through the environment."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

MARK = "FBTASKS_SOAK_RUN"
"""In the environment of every process of a soak: how orphans are recognised."""


@dataclass(frozen=True, slots=True)
class Run:
    """One soak as its processes see it."""

    folder: Path
    until: float
    """When producers and operators stop, by the monotonic clock."""
    kinds: frozenset[str] = frozenset()
    """What harm is done; see ``soak.faults.KINDS``."""

    @property
    def ledger(self):
        return self.folder / "ledger"

    @property
    def pause(self):
        """While this file is there, producers wait: the queue is long enough."""
        return self.folder / "pause"

    def going_on(self):
        return time.monotonic() < self.until

    def environment(self):
        """For the processes that belong to it."""
        kinds = ",".join(sorted(self.kinds))
        return {MARK: str(self.folder), "FBTASKS_SOAK_UNTIL": repr(self.until), "FBTASKS_SOAK_KINDS": kinds}

    @classmethod
    def here(cls):
        """The run that this process belongs to."""
        kinds = frozenset(os.environ.get("FBTASKS_SOAK_KINDS", "").split(","))
        return cls(Path(os.environ[MARK]), float(os.environ.get("FBTASKS_SOAK_UNTIL", "inf")), kinds)
