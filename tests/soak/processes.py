"""The processes of a soak: workers by the command line, started again when they end, and what they leave behind."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from soak.ledger import Ledger
from soak.settings import Run

POOLS = {"processes": 3, "threads": 8, "asyncio": 3, "solo": 1}
ZONES = ("Europe/Vienna", "UTC", "Pacific/Pago_Pago")
"""Of the processes, in turn: one that is started again may come to another. Producers' sessions are in a fourth."""
ORPHANED = 3.0
"""Seconds that a child has to follow its worker."""
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


def adopt_orphans():
    """Makes this process the parent of whatever its descendants leave behind, so that it can see and reap it."""
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def children_of(pid):
    """The processes whose parent is *pid* now."""
    found = []
    for entry in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in entry.read_text().split()]
    return found


def command_of(pid):
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return ""


@dataclass(slots=True)
class Worker:
    """One worker process, and what was done to it."""

    name: str
    pool: str
    process: subprocess.Popen[bytes]
    log: Path
    started: float
    fate: str | None = None
    """The signal that is expected to end it."""
    stopped_until: float | None = None

    @property
    def pid(self):
        return self.process.pid

    def ready(self):
        with suppress(OSError):
            return " is ready." in self.log.read_text(errors="replace")
        return False


class Reaper(threading.Thread):
    """Reaps in a thread of its own, so that nothing the supervisor waits for can keep a zombie."""

    def __init__(self, fleet):
        super().__init__(daemon=True)
        self._fleet = fleet

    def run(self):
        while True:
            with self._fleet.spawning:
                self._fleet.reap()
            time.sleep(0.01)


@dataclass(slots=True)
class Fleet:
    """One worker for each pool, kept running."""

    run: Run
    ledger: Ledger
    url: str
    options: tuple[str, ...] = ()
    pools: tuple[str, ...] = tuple(POOLS)
    workers: dict[str, Worker] = field(default_factory=dict)
    restarts: int = 0
    _due: dict[str, float] = field(default_factory=dict)
    _orphans: dict[int, float] = field(default_factory=dict)
    _others: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _count: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    spawning: threading.Lock = field(default_factory=threading.Lock)

    reaper: Reaper = field(init=False)

    def __post_init__(self):
        self.reaper = Reaper(self)

    def environment(self):
        tests = str(Path(__file__).resolve().parents[1])
        zone = ZONES[len(self._processes) % len(ZONES)]
        return {**os.environ, **self.run.environment(), "FBTASKS_URL": self.url, "PYTHONPATH": tests, "TZ": zone}

    def start(self, pool):
        self._count += 1
        name = f"{pool}-{self._count}"
        log = self.run.folder / "logs" / f"{name}.log"
        command = [sys.executable, "-m", "fbtasks", "worker", "-A", "soak.tasks", "-c", str(POOLS[pool])]
        command += ["--pool", pool, "-n", name, *self.options]
        worker = Worker(name, pool, self.spawn(command, log), log, time.monotonic())
        self.workers[pool] = worker
        self.ledger.write("worker", what="started", name=name, target=worker.pid)
        return worker

    def spawn(self, command, log):
        with log.open("wb") as file, self.spawning:
            process = subprocess.Popen(
                command, cwd=self.run.folder, env=self.environment(), stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._processes.append(process)
            return process

    def other(self, name, *command):
        """Starts a producer or an operator."""
        log = self.run.folder / "logs" / f"{name}.log"
        self._others[name] = self.spawn([sys.executable, "-m", *command], log)

    def tend(self, delay=0.0):
        """Reaps what has ended, and starts again what is due; *delay* is for those that are found dead now."""
        for pool, worker in list(self.workers.items()):
            if worker.process.poll() is not None:
                self._note_end(worker)
                del self.workers[pool]
                self._due[pool] = time.monotonic() + delay
        for pool, due in list(self._due.items()):
            if time.monotonic() >= due:
                del self._due[pool]
                self.restarts += 1
                self.start(pool)

    def _note_end(self, worker):
        code = worker.process.returncode
        own = self._took_itself(worker)
        expected = worker.fate is not None or own
        if worker.fate == "SIGTERM" and code not in (0, -signal.SIGTERM) and not (own and code == -signal.SIGKILL):
            expected = False
        log = () if expected else tuple(worker.log.read_text(errors="replace").splitlines()[-15:])
        self.ledger.write(
            "worker", what="ended", name=worker.name, target=worker.pid, code=code, asked=worker.fate, own=own,
            expected=expected, log=log,
        )  # fmt: skip
        if not expected:
            self.ledger.write("fault", what="exit", target=worker.pid)

    def _took_itself(self, worker):
        """Whether a task took its own process away, and that was the worker's."""
        with suppress(OSError):
            return '"what": "self"' in (self.run.ledger / f"task-{worker.pid}.jsonl").read_text()
        return False

    def reap(self):
        """Reaps whatever has ended at once: while it is a zombie, other engines on the file take it for alive."""
        processes = self._processes[:]
        for process in processes:
            process.poll()
        own = {process.pid for process in processes if process.returncode is None}
        now = time.monotonic()
        for pid in children_of(os.getpid()):
            if pid in own:
                continue
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == pid:
                    self._orphans.pop(pid, None)
                    continue
            since = self._orphans.setdefault(pid, now)
            if now - since > ORPHANED:
                self.ledger.write("worker", what="orphan", target=pid, command=command_of(pid))
                os.kill(pid, signal.SIGKILL)
                self._orphans[pid] = float("inf")

    def end_others(self, seconds):
        """Waits for producers and operators, which end by themselves."""
        limit = time.monotonic() + seconds
        for name, process in self._others.items():
            while process.poll() is None and time.monotonic() < limit:
                self.tend()
                time.sleep(0.05)
            if process.poll() is None:
                self.ledger.write("worker", what="hung", name=name, target=process.pid)
                process.kill()
            code = process.wait()
            if code not in (0, -signal.SIGKILL):
                text = tuple((self.run.folder / "logs" / f"{name}.log").read_text(errors="replace").splitlines()[-15:])
                self.ledger.write(
                    "worker", what="ended", name=name, target=process.pid, code=code, expected=False, log=text
                )

    def terminate(self, seconds):
        """Asks all workers to end, and kills those that do not."""
        self._due.clear()
        for worker in self.workers.values():
            if worker.process.poll() is None:
                worker.fate = worker.fate or "SIGTERM"
                self.ledger.write("fault", what="SIGTERM", target=worker.pid, until=time.monotonic() + seconds)
                worker.process.terminate()
        limit = time.monotonic() + seconds
        while self.workers and time.monotonic() < limit:
            for pool, worker in list(self.workers.items()):
                if worker.process.poll() is not None:
                    self._note_end(worker)
                    del self.workers[pool]
            time.sleep(0.02)
        for worker in self.workers.values():
            self.ledger.write("worker", what="hung", name=worker.name, target=worker.pid)
            worker.process.kill()
            worker.process.wait()
        self.workers.clear()

    def kill_all(self):
        """Ends whatever is left, however the soak ended."""
        for process in [w.process for w in self.workers.values()] + list(self._others.values()):
            if process.poll() is None:
                process.kill()
                process.wait()
        for _ in range(20):
            left = children_of(os.getpid())
            for pid in left:
                with suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            if not left:
                return
            time.sleep(0.05)
