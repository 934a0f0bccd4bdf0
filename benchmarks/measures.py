"""What is measured by itself, most of it of fbtasks. Each gives a sample a round of its figures, ratios among them."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from typing import Final

from benchmarks.bench import Bench
from benchmarks.capture import capture
from benchmarks.ceiling import BATCH, timed
from benchmarks.figures import Sample
from benchmarks.stopping import held
from benchmarks.systems import fbtasks
from benchmarks.trial import Trial

Samples = Iterator[Sample]


def enqueue(bench: Bench) -> Samples:
    """One at a time beside a bare INSERT, in an open transaction, and in bulk beside the same in PSQL."""
    yield from _single(bench)
    yield from _open(bench)
    yield from _bulk(bench)
    bench.database.clear()


def _single(bench: Bench) -> Samples:
    """One durable enqueue after the other, and a bare INSERT and COMMIT of the same row, in turns of ten."""
    database, noop = bench.database, bench.database.app.tasks["noop"]
    now = database.now()
    noop.delay()
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(0, bench.scale.bare, 10):
        theirs += [timed(lambda: database.insert_bare("noop", now)) for _ in range(10)]
        ours += [timed(noop.delay) for _ in range(10)]
    yield Sample("enqueue/single", "enqueue, durable, one at a time", len(ours) / sum(ours), "tasks/s")
    yield Sample("enqueue/single/ratio", "enqueue, one at a time / bare INSERT + COMMIT (medians)",
                 median(theirs) / median(ours), "")  # fmt: skip


def _open(bench: Bench) -> Samples:
    """One call after the other in an open transaction of the application's, and its commit."""
    with held(), bench.database.app.connect() as connection:
        noop = bench.database.app.tasks["noop"].using(connection)
        connection.begin()
        begun = time.perf_counter()
        for _ in range(bench.scale.open):
            noop.delay()
        connection.commit()
        seconds = time.perf_counter() - begun
    yield Sample("enqueue/open", "enqueue in an open transaction", bench.scale.open / seconds, "tasks/s")


def _bulk(bench: Bench) -> Samples:
    """Many calls at once, in one transaction; and as many rows by PSQL, in batches."""
    noop, count = bench.database.app.tasks["noop"], bench.scale.bulk
    ours = timed(lambda: noop.delay_many([()] * count))
    theirs = sum(timed(lambda: bench.database.insert("noop", BATCH)) for _ in range(0, count, BATCH))
    yield Sample("enqueue/bulk", "enqueue in bulk", count / ours, "tasks/s")
    yield Sample("enqueue/insert", f"PSQL: insert, batches of {BATCH}", count / theirs, "tasks/s")
    yield Sample("enqueue/bulk/ratio", "enqueue in bulk / PSQL insert", theirs / ours, "")


def idle(bench: Bench) -> Samples:
    """What a worker costs that has nothing to do."""
    with Trial(bench, fbtasks("threads", 2), observed=True) as trial:
        _warm_up(bench, [trial])
        time.sleep(bench.scale.rest)
        begun, asked, cpu, memory = time.monotonic(), trial.statements(), trial.cpu_seconds(), trial.memory()
        time.sleep(bench.scale.idle)
        seconds = time.monotonic() - begun
        yield Sample("idle/cpu", "idle worker and children: processor", 100 * (trial.cpu_seconds() - cpu) / seconds,
                     "% of one core")  # fmt: skip
        yield Sample(
            "idle/statements", "idle worker: statements", 60 * (trial.statements() - asked) / seconds, "a minute"
        )
        yield Sample("idle/growth", f"idle worker and children: growth in {seconds:.0f} s",
                     (trial.memory() - memory) / 1024, "KiB")  # fmt: skip


def _warm_up(bench: Bench, fleet: list[Trial]) -> None:
    """Starts workers, lets them run some tasks, and waits until they are at rest."""
    for trial in fleet:
        trial.start_at_rest()
    bench.database.insert("noop", 40)
    for trial in fleet:
        trial.wait_settled()
        trial.rest()


def start(bench: Bench) -> Samples:
    """From the start of the process to the start of a task that waits; and the help."""
    command = [sys.executable, "-m", "fbtasks", "--help"]
    seconds = timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))
    yield Sample("start/help", "start of fbtasks --help", seconds, "s")
    bench.database.app.tasks["noop"].delay()
    with Trial(bench, fbtasks("threads", 2)) as trial:
        begun = time.monotonic()
        trial.start_worker()
        yield Sample("start/worker", "start of a worker to its first task", trial.stamps(1)[0] - begun, "s")
        trial.wait_settled()


def several_workers(bench: Bench) -> Samples:
    """One worker and four on the same backlog: no-op tasks, each of which notes its number, and tasks of 5 ms."""
    for key, task, count, what in (
        ("numbered", "stamp", bench.scale.fleet, "no-op tasks"),
        ("pause", "pause", bench.scale.pauses, "tasks of 5 ms"),
    ):
        rates = {}
        for number in (1, 4):
            label = f"{number} worker{'s' if number > 1 else ''} on {count:,} {what}"
            conflicts = bench.database.conflicts()
            with ExitStack() as stack:
                fleet = [stack.enter_context(Trial(bench, fbtasks("threads", 2), observed=True)) for _ in range(number)]
                _warm_up(bench, fleet)
                rates[number], missed = _numbered(bench, fleet, task, count)
                asked = sum(trial.statements() for trial in fleet)
                conflicts = bench.database.conflicts() - conflicts
            yield Sample(f"workers/{number}/{key}", label, rates[number], "tasks/s")
        yield Sample(f"workers/4/{key}/ratio", f"4 workers / 1, {what}", rates[4] / rates[1], "")
        yield Sample(f"workers/4/{key}/conflicts", f"{label}: conflicts", 100 * conflicts / asked, "% of statements")
        yield Sample(f"workers/4/{key}/twice", f"{label}: run twice or never", missed, "tasks")


def _numbered(bench: Bench, fleet: list[Trial], task: str, count: int) -> tuple[float, int]:
    """Tasks a second from the first to the last, and how many of them did not run once."""
    bench.database.insert(task, count, numbered=True)
    fleet[0].wait_settled()
    pairs = [pair for trial in fleet for pair in trial.pairs(0)]
    times = [ran for _, ran in pairs]
    ran = {number for number, _ in pairs}
    return count / (max(times) - min(times)), count - len(ran) + len(pairs) - len(ran)


def large_tables(bench: Bench) -> Samples:
    """What a claim costs while a backlog drains: with little else in the tables, with much, and under a snapshot."""
    database, scale = bench.database, bench.scale
    small = _claim_cost(bench, snapshot=False)
    try:
        database.fill_history("noop", scale.history)
        database.insert("noop", scale.scheduled, after=7 * 86_400)
        full = _claim_cost(bench, snapshot=False)
        held = _claim_cost(bench, snapshot=True)
    finally:
        database.clear()
    beside = f"{scale.history:,} finished and {scale.scheduled:,} scheduled"
    yield Sample("claim/small", "claim, in small tables", 1e6 * small, "us a task")
    yield Sample("claim/full", f"claim, beside {beside}", 1e6 * full, "us a task")
    yield Sample("claim/snapshot", "claim, the same, a snapshot held over the backlog", 1e6 * held, "us a task")
    yield Sample("claim/full/ratio", "claim in large tables / in small ones", full / small, "")
    yield Sample("claim/snapshot/ratio", "claim in large tables under a snapshot / in small ones", held / small, "")


def _claim_cost(bench: Bench, *, snapshot: bool) -> float:
    """The seconds that a worker spends in the statements that claim, for each task of a backlog that it drains."""
    count = bench.scale.claims
    bench.database.insert("noop", count)
    with ExitStack() as stack:
        if snapshot:
            stack.enter_context(bench.database.snapshot())
        trial = stack.enter_context(Trial(bench, fbtasks("threads", 10), observed=True, cleared=False))
        trial.start_worker()
        trial.stamps(count)
        trial.wait_settled()
        trial.stop()
        return trial.query_seconds("FBTASKS_WORKER.CLAIM") / count


MEASURES: Final[dict[str, Callable[[Bench], Samples]]] = {
    "enqueue": enqueue, "idle": idle, "start": start, "workers": several_workers, "claim": large_tables,
    "capture": capture,
}  # fmt: skip
