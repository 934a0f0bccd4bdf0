"""One child process of a worker, and what it is running."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fbtasks import clock
from fbtasks.call import Claim, Finished, Outcome
from fbtasks.interrupts import SOFT, STOP

logger = logging.getLogger(__name__)
_SIGNALS = {SOFT: signal.SIGUSR1, STOP: signal.SIGUSR2}
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def reap(process: subprocess.Popen[bytes]) -> None:
    """Has *process* reaped as soon as it dies, whatever this thread is doing then.

    The engine takes a zombie for alive, and waits for its locks: a thread that waits for them inside the engine would
    wait for itself.
    """
    threading.Thread(target=process.wait, name=f"reaper-{process.pid}", daemon=True).start()


@dataclass(slots=True)
class Run:
    """One claim in a child. Times are monotonic."""

    claim: Claim
    since: float
    soft_at: float | None = None
    hard_at: float | None = None
    kill_at: float | None = None
    """When patience with a task that was told to stop ends."""
    outcome: Outcome | None = None
    """What it was stopped for; whatever the child says of it no longer counts."""

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return clock.monotonic() - self.since


class Child:
    """A new interpreter at the other end of a socket; never a fork, which would inherit open connections."""

    def __init__(self, mode: str, app_path: str, worker_id: int, slot: int, places: int, level: str) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "fbtasks.worker.child", str(theirs.fileno()), mode, app_path]
        command += [str(worker_id), str(slot), str(places), level]
        self.slot = slot
        self.one = mode == "processes"
        self.places = places
        self.running: dict[int, Run] = {}
        self.served = 0
        self.ready = False
        self.message = ""
        """Why it cannot become ready, as the child says."""
        self.started = clock.monotonic()
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0)
        theirs.close()
        reap(self.process)
        self.pipe: Connection[object, object] = Connection(ours.detach())
        self._death = os.pidfd_open(self.process.pid) if hasattr(os, "pidfd_open") else None

    def free(self) -> int:
        """Places without a claim."""
        return self.places - len(self.running) if self.ready else 0

    def submit(self, run: Run) -> None:
        """Sends a claim. A child that has just died is found out by the next :meth:`read`."""
        self.running[run.claim.id] = run
        self.served += 1
        with suppress(OSError):
            self.pipe.send(run.claim)

    def interrupt(self, task: int, kind: str) -> None:
        """Has an exception raised inside *task*."""
        with suppress(OSError):
            if self.one:
                os.kill(self.process.pid, _SIGNALS[kind])
            else:
                self.pipe.send((kind, task))

    def read(self) -> tuple[list[tuple[Finished, bool]], bool]:
        """What the child has said since the last time, and whether it is dead."""
        heard: list[tuple[Finished, bool]] = []
        dead = self.process.poll() is not None  # asked first: what it said before it died is still read
        try:
            while self.pipe.poll():
                message: Any = self.pipe.recv()
                if message == "ready":
                    self.ready = True
                    for run in self.running.values():
                        run.since = clock.monotonic()
                elif isinstance(message, str):
                    self.message = message
                else:
                    heard.append(message)
        except (EOFError, OSError):
            dead = True
        return heard, dead

    def filenos(self) -> list[int]:
        """Readable when the child has said something or has died."""
        return [self.pipe.fileno()] if self._death is None else [self.pipe.fileno(), self._death]

    def memory(self) -> int:
        """Bytes of memory that the child has in use; 0 where that cannot be known."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def close(self, patience: float = 0.0) -> None:
        """Ends the child, at the latest after *patience* seconds, with all that it has started; reaps it."""
        if patience:
            with suppress(OSError):
                self.pipe.close()  # an idle child ends by itself
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(patience)
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with suppress(OSError):
            self.pipe.close()
        if self._death is not None:
            os.close(self._death)
            self._death = None

    def how_it_ended(self) -> str:
        """The signal or the exit code of a child that was reaped."""
        code = self.process.returncode
        if code >= 0:
            return f"with exit code {code}"
        with suppress(ValueError):
            return f"by signal {-code} ({signal.Signals(-code).name})"
        return f"by signal {-code}"
