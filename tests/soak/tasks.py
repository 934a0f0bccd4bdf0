"""The app of the soak: one task of each kind, each of which records its starts and ends."""

import asyncio
import itertools
import os
import signal
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from fbtasks import FBTasks, current_request
from soak.ledger import Ledger
from soak.settings import Run
from soak.sources import BOUNDED, MAX_LENGTH

app = FBTasks("soak", include=("soak.handlers", "soak.limited_tasks"), auto_migrate=True)
for _queue, _when_full in BOUNDED.items():
    app.queue(_queue, max_length=MAX_LENGTH, **_when_full)

_run = Run.here()
_ledger = Ledger(_run.ledger, "task")
_worker = os.getppid()
"""Noted at import: when the worker has been killed, the parent is another."""
_count = itertools.count(1)


class Refusal(Exception):
    """Raised by tasks that are meant to raise."""


@contextmanager
def recorded(ref, kind, **fields):
    """Records the run of a task that belongs to *ref*, with *fields*; gives the run's own name."""
    request = current_request()
    run = f"{os.getpid()}.{next(_count)}"
    _ledger.write(
        "start",
        ref=ref,
        run=run,
        kind=kind,
        worker=_worker,
        id=request and request.id,
        tries=request and request.retries,
        **fields,
    )
    outcome = "raised"
    try:
        yield run
        outcome = "returned"
    finally:
        _ledger.write("end", ref=ref, run=run, outcome=outcome)


@app.task
def quick(ref, padding=""):
    with recorded(ref, "quick"):
        return ref + padding


@app.task(queue="rejecting")
def rejected(ref):
    with recorded(ref, "rejected"):
        time.sleep(0.05)


@app.task(queue="waiting")
def awaited(ref):
    with recorded(ref, "awaited"):
        time.sleep(0.05)


@app.task(ignore_result=True)
def ignored(ref):
    with recorded(ref, "ignored"):
        return ref


@app.task
def sleeping(ref, seconds):
    with recorded(ref, "sleeping"):
        time.sleep(seconds)


@app.task
async def coroutine(ref, seconds):
    with recorded(ref, "coroutine"):
        await asyncio.sleep(seconds)
        return ref


@app.task(max_retries=0)
def failing(ref):
    with recorded(ref, "failing"):
        raise Refusal(ref)


@app.task(bind=True, max_retries=3, autoretry_for=(Refusal,), default_retry_delay=0.1, retry_jitter=False)
def retrying(self, ref, times):
    with recorded(ref, "retrying"):
        if self.request.retries < times:
            raise Refusal(ref)


@app.task(bind=True, transactional=True)
def transactional(self, ref, seconds):
    with recorded(ref, "transactional") as run:
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO SOAK_EFFECT (TASK, RUN) VALUES (?, ?)", (ref, run))
        time.sleep(seconds)


def harms_again(ref, times):
    """Whether the task has done its harm less than *times* times; notes that it does."""
    with (_run.folder / "harm").open("a+") as file:
        file.seek(0)
        if file.read().split().count(ref) >= times:
            return False
        file.write(f"{ref}\n")
    return True


@app.task
def closing(ref, times):
    """Closes the pipes and sockets of its process, as often as *times* says; not where that is the worker's.

    Files stay open: the engine would write its pages into whatever file gets the number next.
    """
    with recorded(ref, "closing"):
        if "--pool\0solo" in Path("/proc/self/cmdline").read_text() or not harms_again(ref, times):
            return
        _ledger.write("fault", what="descriptors", target=os.getpid(), ref=ref, until=time.monotonic() + 2)
        for number in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):
                mode = os.fstat(number).st_mode
                if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                    os.close(number)
        time.sleep(0.1)


@app.task
def suicidal(ref, times, how):
    """Takes its own process away, as often as *times* says; on some pools that is the worker's."""
    with recorded(ref, "suicidal"):
        if not harms_again(ref, times):
            return
        _ledger.write("fault", what="self", target=os.getpid(), ref=ref)
        if how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(5)
