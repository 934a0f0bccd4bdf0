"""What the database can do at most: the life of a task in pure PSQL."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.bench import Bench
from benchmarks.figures import Sample

BATCH = 200
"""Rows in one transaction."""


def timed(work: Callable[[], object]) -> float:
    """The seconds that *work* takes."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


class Ceiling:
    """Tasks are claimed and finished by deleting them, then as many by moving them to the history."""

    key = "ceiling"
    label = f"PSQL, batches of {BATCH}"

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """What a drain with its outcomes is to be compared with is "settled": claim and delete."""
        count, database = bench.scale.ceiling, bench.database
        seconds: dict[str, float] = {}
        with database.registered() as worker_id:
            for name, finish in (("delete", database.delete), ("move", database.move)):
                for _ in range(0, count, BATCH):
                    database.insert("noop", BATCH)
                claims = finishes = 0.0
                for _ in range(0, count, BATCH):
                    begun = time.perf_counter()
                    batch = database.claim(worker_id, BATCH)
                    claimed = time.perf_counter()
                    finish(batch)
                    claims += claimed - begun
                    finishes += time.perf_counter() - claimed
                seconds[f"claim and {name}"] = claims + finishes
                seconds[f"finish by {name}"] = finishes
        database.clear()
        yield Sample("settled", "claim and delete", count / seconds.pop("claim and delete"), "tasks/s")
        for what, spent in seconds.items():
            yield Sample(what, what, count / spent, "tasks/s")
