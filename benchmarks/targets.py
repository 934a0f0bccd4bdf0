"""What fbtasks sets out to reach, judged on the readings of all rounds of one run."""

from __future__ import annotations

from benchmarks.changes import FIVE_PROCESSES, FIVE_PROCESSES_AGAIN, HANDLED, ONE_WORKER
from benchmarks.figures import Target

IGNORED_TO_KEPT = 1.67
"""Drains whose results are kept shall be at least 0.6 times as fast as those whose results are
ignored."""


def targets(*, embedded: bool) -> list[Target]:
    """All targets: the comparisons with other systems, then those of fbtasks alone."""
    return [
        *(
            Target(f"drain, {pool} {number} / Celery {theirs} {number}", f"celery-redis/{theirs}/{number}/drain/ratio",
                   least=least)
            for pool, theirs, least in (("threads", "threads", 10), ("processes", "prefork", 4))
            for number in (2, 10)
        ),
        Target("drain, asyncio 10 / PgQueuer, batches of 10", "pgqueuer/asyncio/10/drain/ratio", least=1.5),
        *(
            Target(f"latency p50, {pool} 2 / Celery {theirs} 2", f"celery-redis/{theirs}/2/latency p50/ratio", most=2.5)
            for pool, theirs in (("threads", "threads"), ("processes", "prefork"))
        ),
        Target("kombu, publish to ack / SQLAlchemy on SQLite", "kombu/sqlite/publish to ack/ratio", least=5),
        *(
            Target(f"changes of a table, {what}", f"{other.key}/{HANDLED}/ratio", least=10)
            for what, other in (
                ("in total order / log table, one worker", ONE_WORKER),
                ("one worker with five processes / log table, five processes", FIVE_PROCESSES),
                ("five workers / log table, five processes", FIVE_PROCESSES_AGAIN),
            )
        ),
        *(
            Target(f"capture of four columns, {what} / the row alone", f"capture/{key}/ratio", most=1.2)
            for key, what in (("many", "rows of one transaction"), ("single", "a transaction for each row"))
        ),
        Target("drain and outcomes, asyncio 10 / PSQL claim and delete", "ceiling/settled/ratio", least=0.5),
        *(
            Target(f"drain and outcomes, {pool} {number}, results ignored / kept",
                   f"fbtasks/{pool}/{number}/kept/settled/ratio", most=IGNORED_TO_KEPT)
            for pool, number in (("threads", 2), ("asyncio", 10), ("processes", 2))
        ),
        Target("enqueue, one at a time / bare INSERT + COMMIT", "enqueue/single/ratio", least=0.9),
        Target("enqueue in an open transaction, tasks/s", "enqueue/open", least=4_000),
        Target("enqueue in bulk / PSQL insert", "enqueue/bulk/ratio", least=0.35),
        Target("latency, threads 2, p50, ms", "fbtasks/threads/2/latency p50", most=5),
        Target("latency, threads 2, p99, ms", "fbtasks/threads/2/latency p99", most=20),
        Target("claim in large tables, a snapshot held / in small ones", "claim/snapshot/ratio", most=1.3),
        Target("4 workers: tasks run twice or never", "workers/4/numbered/twice", most=0),
        *_several(embedded=embedded),
        Target("idle worker: processor, % of one core", "idle/cpu", most=1),
        Target("idle worker: statements a minute", "idle/statements", most=40),
        Target("start of a worker to its first task, s", "start/worker", most=1.0),
        Target("start of fbtasks --help, s", "start/help", most=0.25),
    ]  # fmt: skip


def _several(*, embedded: bool) -> list[Target]:
    conflicts, speed = "workers/4/numbered/conflicts", "4 workers / 1 worker"
    if embedded:
        return [
            Target("4 workers: conflicts, % of statements (embedded)", conflicts, most=0),
            Target(f"{speed}, no-op tasks (embedded)", "workers/4/numbered/ratio", least=0.5),
        ]
    return [
        Target("4 workers: conflicts, % of statements (server)", conflicts, most=0.1),
        Target(f"{speed}, tasks of 5 ms (server)", "workers/4/pause/ratio", least=1.0),
    ]
