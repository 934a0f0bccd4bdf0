"""Many workers on one embedded file beside other heavy work: what runs twice, and who is taken for dead."""

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from support.sql import one

from fbtasks import FBTasks

SOURCE = """
import os, time
from fbtasks import FBTasks

app = FBTasks("proj")

@app.task(ignore_result=True)
def nap(number, seconds):
    with open("ledger", "a") as file:
        file.write(f"{number}\\n")
    time.sleep(seconds)
"""
BUSY = "while True: pass"
DISK = """
import os
block = os.urandom(1 << 20)
while True:
    with open("written", "wb") as file:
        for _ in range(64):
            file.write(block)
            os.fsync(file.fileno())
"""
EVENTS = {
    "taken for dead": r"is dead: ",
    "registered again": r"was taken for dead and its tasks",
    "stale outcomes": r"was dropped: claim",
}
"""What the workers' logs are searched for."""


@dataclass
class Found:
    """What became of the tasks, and of the workers."""

    run: int
    """How many of them began at all."""
    again: int
    """Begins of tasks that had begun before."""
    left: int
    """Tasks that had not ended."""
    ended: int
    """Workers that ended by themselves."""
    said: dict[str, int]
    """Lines of the workers' logs, by the names of EVENTS."""


class Crowd:
    """Workers of one project in *folder*, on the embedded file at *url*, which have started."""

    def __init__(self, folder, url, workers, *options):
        self.folder = folder
        self.url = url
        self._stack = ExitStack()
        (folder / "proj.py").write_text(SOURCE)
        self.app = FBTasks("proj", url)
        self._stack.callback(self.app.close)
        self.app.migrate()
        env = {**os.environ, "FBTASKS_URL": url, "PYTHONPATH": str(folder)}
        self.logs = [folder / f"crowd{n}.log" for n in range(workers)]
        self.processes = []
        for number, path in enumerate(self.logs):
            command = [sys.executable, "-m", "fbtasks", "worker", "-A", "proj", "-c", "1", "-n", f"w{number}", *options]
            self.processes.append(self._start(self._stack, command, path, env=env))

    def _start(self, stack, command, path, **options):
        """A process that is killed, with all of its children, when *stack* ends."""
        with path.open("ab") as log:
            process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, process_group=0, **options)
        stack.callback(process.wait)
        stack.callback(_kill_group, process.pid)
        return process

    def wait_until_ready(self, seconds=150.0):
        """Returns when all workers are ready."""
        until = time.monotonic() + seconds
        while any(b" is ready." not in path.read_bytes() for path in self.logs):
            assert time.monotonic() < until, self.text()[-4000:]
            time.sleep(0.2)

    def text(self):
        """The logs of all workers."""
        return "\n".join(path.read_text(errors="replace") for path in self.logs)

    @contextmanager
    def beside(self, busy, disk):
        """For the block, *busy* processes compute, and *disk* ones write to the disk."""
        with ExitStack() as stack:
            for number in range(busy):
                self._start(stack, [sys.executable, "-c", BUSY], self.folder / f"busy{number}.log")
            for number in range(disk):
                self._start(stack, [sys.executable, "-c", DISK], self.folder / f"disk{number}.log")
            yield

    def run(self, tasks, seconds, most):
        """Sends *tasks* tasks of *seconds* each. Returns what there was to see when all had ended, or after *most*."""
        began = time.monotonic()
        calls = [self.app.enqueuer.make_call("proj.nap", (n, seconds), {}) for n in range(tasks)]
        for at in range(0, tasks, 100):
            self.app.enqueuer.enqueue(calls[at : at + 100])
        while self._left() and time.monotonic() - began < most:
            time.sleep(1.0)
        path = self.folder / "ledger"
        lines = path.read_text().splitlines() if path.exists() else []
        text = self.text()
        return Found(
            run=len(set(lines)),
            again=len(lines) - len(set(lines)),
            left=self._left(),
            ended=sum(process.poll() is not None for process in self.processes),
            said={name: len(re.findall(pattern, text)) for name, pattern in EVENTS.items()},
        )

    def _left(self):
        return one(self.app, "SELECT COUNT(*) FROM QUEUE_TASK")

    def close(self):
        """Ends all processes."""
        self._stack.close()


def _kill_group(group):
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
