"""What is done with much at once: how long it takes, how much memory, and how long plain tasks wait beside it."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

BESIDE = "beside"
"""The queue of the plain tasks."""
PAUSE = 0.05
STARTING = 3.0
"""Seconds in which a worker does for the first time what it does now and then."""


@dataclass(frozen=True)
class Heavy:
    """A command that may have to do with all that waits. It is run once, and may leave nothing."""

    arguments: tuple[str, ...]
    fault: str = ""
    """What is known to be wrong: then it takes more than it may, and the test fails as soon as it does not."""

    def __str__(self):
        return " ".join(("fbtasks", *self.arguments))


class Weighed(NamedTuple):
    """What a command took."""

    heavy: Heavy
    seconds: float
    megabytes: float
    """The most memory that it had."""
    worker_megabytes: float
    """The same of the worker beside it."""
    waited: float
    """Seconds: the longest wait of a plain task, from the call until its end was known."""


def weigh(scene, heavy):
    """Runs a command as a process, with a worker and a producer of plain tasks beside it."""
    with _worker(scene) as worker, _plain_tasks(scene) as waits:
        seconds, megabytes = _run(scene.project, heavy.arguments)
        _until_one_more(waits)
        return Weighed(heavy, seconds, megabytes, _most_memory(worker.pid), max(waits))


def _run(project, arguments):
    began, megabytes = time.monotonic(), 0.0
    command = [sys.executable, "-m", "fbtasks", *arguments]
    with (project.folder / "printed").open("wb") as out:
        process = subprocess.Popen(command, cwd=project.folder, env=project.env, stdout=out, stderr=subprocess.STDOUT)
        while process.poll() is None:
            megabytes = max(megabytes, _most_memory(process.pid))
            time.sleep(0.01)
    assert process.returncode in (0, 1), (project.folder / "printed").read_text()[-2000:]
    return time.monotonic() - began, megabytes


@contextmanager
def _worker(scene):
    worker = scene.project.worker("-c", "1", "--pool", "threads", "-Q", BESIDE)
    try:
        scene.beside.apply_async(queue=BESIDE).get(timeout=60)
        yield worker
    finally:
        worker.terminate()
        worker.wait()


@contextmanager
def idle_worker(project):
    """For the block, a worker that has nothing to do and has started some seconds ago."""
    before = project.logs().count("is ready")
    worker = project.worker("-c", "1", "--pool", "threads", "-Q", "nothing")
    try:
        limit = time.monotonic() + 60
        while project.logs().count("is ready") == before:
            assert time.monotonic() < limit
            time.sleep(PAUSE)
        time.sleep(STARTING)
        yield worker
    finally:
        worker.terminate()
        worker.wait()


@contextmanager
def _plain_tasks(scene):
    """For the block, one plain task after the other. The block gets the list of how long they waited."""
    waits = []
    over = threading.Event()

    def go_on():
        while not over.wait(PAUSE):
            began = time.monotonic()
            scene.beside.apply_async(queue=BESIDE).get(timeout=600)
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield waits
    finally:
        over.set()
        thread.join()


def _until_one_more(waits):
    """Waits until another plain task has ended: one that the command has held up counts."""
    count, limit = len(waits), time.monotonic() + 600
    while len(waits) == count:
        assert time.monotonic() < limit
        time.sleep(PAUSE)


def _most_memory(pid):
    """Megabytes that a process has had at the most so far; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
