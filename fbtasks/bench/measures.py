"""The measurements. Each gives samples; a run repeats them in turns and takes the medians."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass

from fbtasks.bench import processes
from fbtasks.bench.figures import Sample, percentile
from fbtasks.bench.place import Place, Worker, wait_for
from fbtasks.store import tasks
from fbtasks.store.bench import Bare, held_snapshot

POOLS = ("threads", "asyncio", "processes")
CONCURRENCIES = (2, 10)
BATCH = 200
"""Rows in one transaction of the ceiling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured."""

    ceiling: int = 10_000
    singles: int = 400
    open: int = 4_000
    bulk: int = 20_000
    drain: int = 20_000
    """Tasks of a drain, or fewer where they would take longer than ``seconds``."""
    seconds: float = 6.0
    """About how long a drain may take."""
    latency: float = 10.0
    """Seconds of latency measured at each rate."""
    idle: float = 60.0
    """Seconds for which a worker is watched that has nothing to do."""
    rest: float = 20.0
    """Seconds before that: its polls grow rarer while events are known to arrive."""
    starts: int = 3
    backlog: int = 100_000
    """Tasks for several workers, and for claims in large tables; fewer where that takes longer than ``patience``."""
    patience: float = 60.0
    """About how many seconds one of these may take."""
    pauses: int = 2_000
    history: int = 1_000_000
    scheduled: int = 100_000
    concurrencies: tuple[int, ...] = CONCURRENCIES


FULL = Scale()
QUICK = Scale(
    ceiling=2_000, singles=100, open=500, bulk=2_000, drain=2_000, seconds=1.0, latency=2.0, idle=5.0, rest=0.0,
    starts=1, backlog=5_000, patience=3.0, pauses=200, history=20_000, scheduled=5_000, concurrencies=(2,),
)  # fmt: skip
Samples = Iterator[Sample]
Measure = Callable[[Place, Scale], Iterable[Sample]]


def ceiling(place: Place, scale: Scale) -> Samples:
    """The same life of a task in pure PSQL."""
    bench, count = place.bench, scale.ceiling
    insert = claim_delete = claim_move = 0.0
    parts = {"claim": 0.0, "delete": 0.0, "move": 0.0}
    with place.registered() as worker_id:
        for finish, name in ((bench.delete, "delete"), (bench.move, "move")):
            for _ in range(count // BATCH):
                insert += _timed(lambda: bench.insert("noop", BATCH))
            spent = 0.0
            for _ in range(count // BATCH):
                begun = time.perf_counter()
                batch = bench.claim(worker_id, BATCH)
                claimed = time.perf_counter() - begun
                finish(batch)
                finished = time.perf_counter() - begun - claimed
                parts["claim"] += claimed
                parts[name] += finished
                spent += claimed + finished
            if name == "delete":
                claim_delete = spent
            else:
                claim_move = spent
    for key, label, tasks_done, seconds in (
        ("insert", "PSQL: insert", 2 * count, insert),
        ("claim", "PSQL: claim", 2 * count, parts["claim"]),
        ("delete", "PSQL: finish by delete", count, parts["delete"]),
        ("move", "PSQL: finish by move", count, parts["move"]),
        ("claim+delete", "PSQL: claim and delete", count, claim_delete),
        ("claim+move", "PSQL: claim and move", count, claim_move),
    ):
        yield Sample(f"ceiling/{key}", f"{label}, batches of {BATCH}", tasks_done / seconds, "tasks/s")
    place.clear()


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def enqueue_single(place: Place, scale: Scale) -> Samples:
    """One durable enqueue after the other, and a bare INSERT and COMMIT of the same row, in turns of ten."""
    noop = place.app.tasks["noop"]
    call = noop.call((), {})
    bare = Bare(place.session)
    now = place.session.run(tasks.database_time)
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(max(1, scale.singles // 10)):
        theirs += [_timed(lambda: bare.insert(call, now)) for _ in range(10)]
        ours += [_timed(noop.delay) for _ in range(10)]
    bare.close()
    yield Sample("enqueue/single", "enqueue, durable, one at a time", len(ours) / sum(ours), "tasks/s")
    yield Sample("enqueue/bare", "bare INSERT + COMMIT of the same row", len(theirs) / sum(theirs), "tasks/s")
    ratio = statistics.median(theirs) / statistics.median(ours)
    yield Sample("enqueue/ratio", "enqueue, one at a time / bare INSERT + COMMIT (medians)", ratio, "")
    place.clear()


def enqueue_open(place: Place, scale: Scale) -> Samples:
    """One call after the other in an open transaction of the application's, and its commit."""
    with place.app.connect() as connection:
        noop = place.app.tasks["noop"].using(connection)
        connection.begin()
        begun = time.perf_counter()
        for _ in range(scale.open):
            noop.delay()
        connection.commit()
        seconds = time.perf_counter() - begun
    yield Sample("enqueue/open", "enqueue in an open transaction", scale.open / seconds, "tasks/s")
    place.clear()


def enqueue_bulk(place: Place, scale: Scale) -> Samples:
    """Many calls at once, in one transaction."""
    noop = place.app.tasks["noop"]
    seconds = _timed(lambda: noop.delay_many([()] * scale.bulk))
    yield Sample("enqueue/bulk", "enqueue in bulk", scale.bulk / seconds, "tasks/s")
    place.clear()


def drain_of(pool: str, concurrency: int, *, kept: bool) -> Measure:
    """No-op tasks on one pool: from the start of the first, by a worker at rest, until nothing is left."""

    def measure(place: Place, scale: Scale) -> Samples:
        name = ("kept_" if kept else "") + ("noop_async" if pool == "asyncio" else "noop")
        with Worker(place, pool, concurrency) as worker:
            worker.settle()
            count = _affordable(place, worker, name, scale.drain, scale.seconds)
            seconds = drain(place, worker, name, count)
            pids = processes.family(worker.pid)
            memory = processes.memory(pids[:1]), processes.memory(pids[1:])
        results = "kept" if kept else "ignored"
        key = f"{pool}/{concurrency}/{results}"
        label = f"{pool}, {concurrency} at once, results {results}"
        yield Sample(f"drain/{key}", f"drain, {label}", count / seconds, "tasks/s")
        if processes.known() and not kept:
            key, label = f"{pool}/{concurrency}", f"{pool}, {concurrency} at once"
            yield Sample(f"memory/{key}/worker", f"memory of the worker, {label}", memory[0] / 2**20, "MiB")
            yield Sample(f"memory/{key}/children", f"memory of its children, {label}", memory[1] / 2**20, "MiB")
        place.clear()

    return measure


def drain(place: Place, worker: Worker, name: str, count: int) -> float:
    """The seconds that a worker at rest takes for *count* tasks and their outcomes."""
    worker.forget()
    place.backlog(name, count)
    wait_for(lambda: worker.said("last"), "the last of the tasks", pause=0.005)
    wait_for(place.drained, "the last outcomes")
    return time.monotonic() - worker.marks()["first"]


def _affordable(place: Place, worker: Worker, name: str, most: int, seconds: float) -> int:
    """How many tasks the worker does in about so many *seconds*, at most *most*; found out with a few of them."""
    few = max(100, most // 100)
    count = min(most, max(few, int(seconds * few / drain(place, worker, name, few))))
    worker.rest()
    return count


def latency(place: Place, scale: Scale) -> Samples:
    """From the call of delay() to the start of the function, for a worker with nothing else to do."""
    stamp = place.app.tasks["stamp"]
    with Worker(place, "threads", 2) as worker:
        worker.settle()
        sent = 0
        for rate in (10, 100):
            count = int(rate * scale.latency)
            begun = time.monotonic()
            for number in range(count):
                time.sleep(max(0.0, begun + number / rate - time.monotonic()))
                stamp.delay(time.monotonic())
            sent += count
            wait_for(lambda: len(_stamps(worker)) >= sent, "tasks that were sent", pause=0.01)  # noqa: B023
            times = [1000 * seconds for seconds in _stamps(worker)[-count:]]
            for key, value in (
                ("p50", percentile(times, 0.5)), ("p99", percentile(times, 0.99)), ("max", max(times)),
            ):  # fmt: skip
                yield Sample(f"latency/{rate}/{key}", f"latency at {rate} tasks/s, {key}", value, "ms")
    place.clear()


def _stamps(worker: Worker) -> list[float]:
    found = []
    for line in worker.lines():
        first, _, second = line.partition(" ")
        if first[:1].isdigit():
            found.append(float(second))
    return found


def idle(place: Place, scale: Scale) -> Samples:
    """What a worker costs that has nothing to do."""
    with Worker(place, "threads", 2) as worker:
        worker.settle()
        time.sleep(scale.rest)
        pids = processes.family(worker.pid)
        before = time.monotonic(), worker.statements(), processes.cpu_seconds(pids), processes.memory(pids)
        time.sleep(scale.idle)
        seconds = time.monotonic() - before[0]
        cpu = (processes.cpu_seconds(pids) - before[2]) / seconds
        count = (worker.statements() - before[1]) / seconds * 60
        growth = processes.memory(pids) - before[3]
    if processes.known():
        yield Sample("idle/cpu", "idle worker and children: processor", 100 * cpu, "% of one core")
        yield Sample("idle/growth", f"idle worker and children: growth in {seconds:.0f} s", growth / 1024, "KiB")
    yield Sample("idle/statements", "idle worker: statements", count, "a minute")


def start(place: Place, scale: Scale) -> Samples:
    """From the start of the process to the first line of a task that waits; and the help."""
    for _ in range(scale.starts):
        yield Sample(
            "start/help", "start of fbtasks --help", _run_time([sys.executable, "-m", "fbtasks", "--help"]), "s"
        )
        place.app.tasks["mark"].delay("first")
        with Worker(place, "threads", 2) as worker:
            worker_begun = time.monotonic()
            wait_for(lambda: worker.said("first"), "a worker's first task")
            yield Sample(
                "start/worker", "start of a worker to its first task", worker.marks()["first"] - worker_begun, "s"
            )
            wait_for(place.drained, "a worker's first outcome")
    place.clear()


def _run_time(command: list[str]) -> float:
    return _timed(lambda: subprocess.run(command, stdout=subprocess.DEVNULL, check=True))


def several_workers(place: Place, scale: Scale) -> Samples:
    """One worker and four on the same backlog: no-op tasks, each counted, and tasks of 5 ms."""
    with Worker(place, "threads", 2) as worker:
        worker.settle()
        backlog = _affordable(place, worker, "noop", scale.backlog, scale.patience)
    for name, count in (("numbered", backlog), ("pause", scale.pauses)):
        what = "no-op tasks" if name == "numbered" else "tasks of 5 ms"
        for workers in (1, 4):
            key, label = (
                f"workers/{workers}/{name}",
                f"{workers} workers on {count:,} {what}".replace("1 workers", "1 worker"),
            )
            seconds, numbers, asked, conflicts = _fleet(place, workers, name, count)
            yield Sample(key, label, count / seconds, "tasks/s")
            if workers == 4:
                yield Sample(f"{key}/conflicts", f"{label}: conflicts", 100 * conflicts / asked, "% of statements")
                if numbers is not None:
                    twice = len(numbers) - len(set(numbers)) + (count - len(set(numbers)))
                    yield Sample(f"{key}/twice", f"{label}: run twice or never", twice, "tasks")
        place.clear()


def _fleet(place: Place, workers: int, name: str, count: int) -> tuple[float, list[int] | None, int, int]:
    """Seconds, the numbers that ran, statements and conflicts of several workers on one backlog."""
    out = place.file()
    before = place.bench.conflicts()
    with ExitStack() as stack:
        fleet = [stack.enter_context(Worker(place, "threads", 2, out=out)) for _ in range(workers)]
        for worker in fleet:
            worker.settle()
        place.backlog(name, count, numbered=True)
        first = fleet[0]

        def empty() -> bool:
            for worker in fleet:
                worker.check()
            return place.drained()

        wait_for(lambda: first.said("last"), "the last of the tasks", pause=0.02)
        wait_for(empty, "the last outcomes", pause=0.02)
        seconds = time.monotonic() - first.marks()["first"]
        asked = sum(worker.statements() for worker in fleet)
    lines = [line for line in out.read_text().splitlines() if line.isdigit()]
    numbers = [int(line) for line in lines] if name == "numbered" else None
    return seconds, numbers, asked, place.bench.conflicts() - before


def large_tables(place: Place, scale: Scale) -> Samples:
    """What a claim costs while a backlog drains: with little else in the tables, with much, and under a snapshot."""
    with Worker(place, "threads", 10) as worker:
        worker.settle()
        count = _affordable(place, worker, "noop", scale.backlog, scale.patience)
    empty = _claim_cost(place, count, snapshot=False)
    place.bench.fill_history("noop", scale.history)
    place.bench.insert("noop", scale.scheduled, after=7 * 86_400)
    full = _claim_cost(place, count, snapshot=False)
    held = _claim_cost(place, count, snapshot=True)
    yield Sample("claim/backlog", "claims measured over a backlog of", count, "tasks")
    yield Sample("claim/empty", "claim, in small tables", 1e6 * empty, "us a task")
    yield Sample(
        "claim/full", f"claim, {scale.history:,} finished and {scale.scheduled:,} scheduled", 1e6 * full, "us a task"
    )
    yield Sample("claim/snapshot", "claim, the same, a snapshot held over the backlog", 1e6 * held, "us a task")
    yield Sample("claim/full/ratio", "claim in large tables / in small ones", full / empty, "")
    yield Sample("claim/snapshot/ratio", "claim in large tables under a snapshot / in small ones", held / empty, "")
    place.clear()


def _claim_cost(place: Place, count: int, *, snapshot: bool) -> float:
    """The seconds that a worker spends in the statements that claim, for each task of a backlog that it drains."""
    place.backlog("noop", count)
    with ExitStack() as stack:
        if snapshot:
            other = place.app.database.open()
            stack.callback(other.close)
            stack.enter_context(held_snapshot(other))
        worker = stack.enter_context(Worker(place, "threads", 10))
        wait_for(lambda: worker.said("last"), "the last of the tasks")
        wait_for(place.drained, "the last outcomes")
        worker.stop()
        seen: dict[str, dict[str, list[float]]] = json.loads(worker.seen().read_text())
    return sum(seconds for name, (_, seconds) in seen["queries"].items() if name.startswith("claim")) / count


def _parts() -> dict[str, Measure]:
    drains = {
        f"drain {pool} {concurrency} {'kept' if kept else 'ignored'}": drain_of(pool, concurrency, kept=kept)
        for pool in POOLS
        for concurrency in CONCURRENCIES
        for kept in (False, True)
    }
    return {
        "ceiling": ceiling,
        "enqueue single": enqueue_single, "enqueue open": enqueue_open, "enqueue bulk": enqueue_bulk, **drains,
        "latency": latency, "idle": idle, "start": start, "workers": several_workers, "large": large_tables,
    }  # fmt: skip


PARTS = _parts()
ONCE = frozenset({"latency", "idle", "start", "workers", "large"})
"""Parts that are long, or many samples by themselves: measured in the last round alone, after which no other part meets
the garbage that the large tables leave."""
