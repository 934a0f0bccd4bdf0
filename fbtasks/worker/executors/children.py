"""Executors in child processes, so that user code can neither hold up the worker's heartbeat nor take it down.

``processes`` has one child for each place, ``threads`` and ``asyncio`` one child with all places in it. Children are
started as new interpreters (never forked: an open connection must not be inherited) and spoken to over a socket.
"""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final

from fbtasks import clock
from fbtasks.call import Claim, Failed, Finished
from fbtasks.errors import FBTasksError

logger = logging.getLogger(__name__)
_START_LIMIT: Final = 60.0


class Child:
    """One child process and what it is running."""

    def __init__(self, mode: str, app_path: str, worker_id: int, slot: int, places: int, level: str) -> None:
        ours, theirs = socket.socketpair()
        self.running: dict[int, tuple[Claim, float]] = {}
        command = [
            sys.executable,
            "-m",
            "fbtasks.worker.child",
            str(theirs.fileno()),
            mode,
            app_path,
            str(worker_id),
            str(slot),
            str(places),
            level,
        ]
        self.process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, process_group=0)
        theirs.close()
        self.pipe: Connection[object, object] = Connection(ours.detach())

    def wait_ready(self) -> None:
        """Waits until the child has imported the app. Raises :class:`FBTasksError` when it cannot."""
        if not self.pipe.poll(_START_LIMIT):
            self.kill()
            raise FBTasksError(f"a child process had not imported the app after {_START_LIMIT:g} seconds.")
        try:
            message = self.pipe.recv()
        except EOFError:
            self.kill()
            raise FBTasksError("a child process ended while it imported the app; see its messages above.") from None
        if message != "ready":
            self.kill()
            raise FBTasksError(str(message))

    def receive(self) -> tuple[Finished, bool]:
        """The next outcome, as child.py sends it."""
        message: Any = self.pipe.recv()
        finished, recorded = message
        return finished, recorded

    def kill(self) -> None:
        """Stops the child at once and reaps it."""
        with suppress(OSError):
            self.process.kill()
        self.process.wait()
        self.pipe.close()


class ChildExecutor:
    """Spreads claims over child processes and replaces those that die."""

    def __init__(self, mode: str, app_path: str, concurrency: int, level: str) -> None:
        self._mode = mode
        self._app_path = app_path
        self._count = concurrency if mode == "processes" else 1
        self._places = 1 if mode == "processes" else concurrency
        self._level = level
        self._worker_id = 0
        self._children: list[Child] = []

    def start(self, worker_id: int) -> None:
        """Starts the children, side by side, and waits until each is ready."""
        self._worker_id = worker_id
        self._children = [self._spawn(slot) for slot in range(1, self._count + 1)]
        for child in self._children:
            child.wait_ready()

    def _spawn(self, slot: int) -> Child:
        return Child(self._mode, self._app_path, self._worker_id, slot, self._places, self._level)

    def free(self) -> int:
        """Places without a claim."""
        return sum(self._places - len(child.running) for child in self._children)

    def busy(self) -> list[Claim]:
        """The claims in the children."""
        return [claim for child in self._children for claim, _ in child.running.values()]

    def submit(self, claim: Claim) -> None:
        """Sends the claim to the child with the most room."""
        child = min(self._children, key=lambda c: len(c.running))
        child.running[claim.id] = (claim, clock.monotonic())
        with suppress(OSError):  # a child that has just died is dealt with in collect()
            child.pipe.send(claim)

    def filenos(self) -> list[int]:
        """The sockets of all children."""
        return [child.pipe.fileno() for child in self._children]

    def collect(self) -> list[tuple[Finished, bool]]:
        """Outcomes that have arrived; for a child that died, a crash of what it ran."""
        done: list[tuple[Finished, bool]] = []
        for place, child in enumerate(self._children):
            try:
                while child.pipe.poll():
                    finished, recorded = child.receive()
                    child.running.pop(finished.claim.id, None)
                    done.append((finished, recorded))
            except (EOFError, OSError):
                done.extend(self._buried(child))
                self._children[place] = self._spawn(place + 1)
                self._children[place].wait_ready()
        return done

    def _buried(self, child: Child) -> list[tuple[Finished, bool]]:
        child.kill()
        code = child.process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        ended = []
        for claim, since in child.running.values():
            logger.error("The process of task %s (%s) ended by %s.", claim.id, claim.name, how)
            message = f"its process ended by {how} while it ran"
            outcome = Failed("fbtasks.errors.WorkerLost", message)
            ended.append((Finished(claim, outcome, clock.monotonic() - since), False))
        child.running.clear()
        return ended

    def stop(self, *, kill: bool) -> None:
        """Closes the sockets, which ends idle children; with *kill*, at once."""
        for child in self._children:
            if kill or child.running:
                child.kill()
                continue
            child.pipe.close()
            try:
                child.process.wait(10)
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
        self._children.clear()
