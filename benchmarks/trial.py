"""A system at work: its producers, its worker, and what its tasks write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from array import array
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks import internals, processes
from benchmarks.apps import body
from benchmarks.apps.fbtasks_app import BROKER, QUEUE, TASK
from benchmarks.bench import Bench
from benchmarks.database import NotMeasured, wait_for
from benchmarks.stopping import held
from benchmarks.systems import System

ROOT: Final = Path(__file__).resolve().parents[1]
_STOP: Final = 30.0
"""Seconds that a worker has to stop."""
_LAST: Final = 1500
"""Characters of a log that an error shows."""


class Trial:
    """One system with an empty queue; its worker is ended with the block, and its tasks are deleted."""

    def __init__(self, bench: Bench, system: System, *, observed: bool = False, cleared: bool = True) -> None:
        """With *observed* the statements of its worker are counted, which fbtasks alone can.

        Unless *cleared*, what is in the tables stays there at the end of the block.
        """
        self._bench = bench
        self._folder = bench.new_folder()
        self._out = self._folder / "out"
        self._log = self._folder / "log"
        self._observed = self._folder / "statements"
        self._cleared = cleared
        self._system = system
        self._ours = ours = system.broker is None
        self._programs = Path(sys.executable).parent if ours else bench.peers.programs
        self._broker = bench.database.url if ours else bench.peers.broker(system)
        self._command = list(system.worker)
        if observed:
            place = self._command.index("fbtasks")
            self._command[place : place + 1] = ["benchmarks.internals", str(self._observed)]
        self._worker: subprocess.Popen[bytes] | None = None

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name not in ("FBTASKS_URL", "VIRTUAL_ENV")}
        return {
            **kept, "PYTHONPATH": str(ROOT), "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            body.OUT: str(self._out), BROKER: self._broker, TASK: self._system.task,
            **({QUEUE: self._bench.database.queue} if self._ours else {}),
        }  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        except NotMeasured:
            if error is None:
                raise
        if self._ours and self._cleared:
            self._bench.database.clear()

    def produce(self, what: str, *numbers: int) -> float:
        """Runs a producer (see ``apps.producer``). Returns the seconds that it measured."""
        command = [str(self._programs / "python"), "-m", "benchmarks.apps.producer", self._system.module, what]
        done = subprocess.run(
            [*command, *map(str, numbers)], env=self._environment(), cwd=self._folder, capture_output=True, text=True,
            timeout=300, preexec_fn=processes.die_with_parent(),
        )  # fmt: skip
        if done.returncode:
            raise NotMeasured(f"its producer failed: {done.stderr.strip()[-_LAST:]}")
        return float(done.stdout.splitlines()[-1])

    def start_worker(self) -> None:
        """Starts the worker, in a session of its own."""
        program, *arguments = self._command
        if self._ours:
            arguments += ["-Q", self._bench.database.queue]
        with self._log.open("wb") as log, held():
            self._worker = subprocess.Popen(
                [str(self._programs / program), *arguments], env=self._environment(), cwd=self._folder, stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                preexec_fn=processes.die_with_parent(signal.SIGTERM),
            )  # fmt: skip

    def stop(self) -> None:
        """Stops the worker and what it may have left behind.

        Raises :class:`NotMeasured` when the worker had ended by itself, or is one of fbtasks that did not stop well.
        """
        worker, self._worker = self._worker, None
        if worker is None:
            return
        failed = worker.poll() is not None
        if not failed:
            worker.terminate()
            with suppress(subprocess.TimeoutExpired):
                worker.wait(_STOP)
            failed = self._ours and worker.returncode != 0
        with suppress(ProcessLookupError):
            os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        if failed:
            raise NotMeasured(self._end())

    def _end(self) -> str:
        return f"its worker ended: {self._log.read_text(errors='replace').strip()[-_LAST:]}"

    def _family(self) -> list[int]:
        assert self._worker is not None
        return processes.family(self._worker.pid)

    def _running(self) -> bool:
        """True. Raises :class:`NotMeasured` when the worker has ended."""
        if self._worker is not None and self._worker.poll() is not None:
            raise NotMeasured(self._end())
        return True

    def stamps(self, count: int) -> array[float]:
        """When the no-op tasks ran, as soon as *count* have."""
        return self._read(self._out, count, 1)

    def pairs(self, count: int) -> list[tuple[float, float]]:
        """The number of each task that notes one, and when it ran, as soon as *count* have; in the order of time."""
        numbers = self._read(Path(f"{self._out}{body.PAIRS}"), count, 2)
        return sorted(zip(numbers[::2], numbers[1::2], strict=True), key=lambda pair: pair[1])

    def _read(self, file: Path, count: int, each: int) -> array[float]:
        size = 8 * each * count
        wait_for(lambda: self._running() and _size(file) >= size, f"the last of {count} tasks", pause=0.02)
        return array("d", file.read_bytes() if file.exists() else b"")

    def wait_settled(self) -> float:
        """Waits until fbtasks has written all outcomes. Returns the monotonic time."""
        drained = self._bench.database.drained
        wait_for(lambda: self._running() and drained(), "the outcomes of all tasks", pause=0.002)
        return time.monotonic()

    def memory(self) -> int:
        """Bytes of the worker and its children."""
        return processes.memory(self._family())

    def cpu_seconds(self) -> float:
        """Processor time of the worker and its children so far."""
        return processes.cpu_seconds(self._family())

    def statements(self) -> int:
        """The statements that the worker, observed, has executed so far."""
        return internals.statements(self._observed)

    def query_seconds(self, prefix: str) -> float:
        """The seconds that the worker, observed and stopped, spent in the queries whose names begin with *prefix*."""
        return internals.query_seconds(self._observed, prefix)

    def rest(self, seconds: float = 3.0) -> None:
        """Waits until the worker uses hardly any processor time, for so many *seconds* at most."""
        processes.rest(self._family, seconds)

    def start_at_rest(self) -> None:
        """Starts the worker, observed, and waits until it has connected and has come to rest."""
        self.start_worker()
        wait_for(
            lambda: self._running() and _size(self._observed) and self.statements(),
            "the first statement of a worker", pause=0.02,
        )  # fmt: skip
        self.rest(60.0)


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
