"""What an overview says in numbers, under names as Prometheus wants them: plain data, for whatever serves them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from fbtasks.queue.operations.overview import Overview
from fbtasks.queue.results import QueueRow
from fbtasks.states import State
from fbtasks.tasks.call import WorkerRow

STATES: Final = tuple(state.name.lower() for state in State if state.live)
"""States of tasks that have not ended, as :class:`QueueRow` counts them."""
_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "retried", "released")
_OF_WORKERS: Final = ("active", "draining", "dead")


class Family(NamedTuple):
    """A metric with its values: a counter when its name ends with ``_total``, else a gauge."""

    name: str
    help: str
    labels: tuple[str, ...]
    values: Mapping[tuple[str, ...], float]
    """By the values of the labels."""


def families(found: Overview) -> Iterator[Family]:
    """Returns the metrics of an overview whose counters are those since the queue was made.

    A queue of which there are counters alone has gauges of 0: one that vanished would raise no alert.
    """
    counters = [row for row in found.counters if row.queue]
    rows = {row.queue: QueueRow(queue=row.queue) for row in counters} | {row.queue: row for row in found.queues}
    queues = [rows[name] for name in sorted(rows)]
    states = Counter(map(_state, found.workers))
    yield Family(
        "fbtasks_queue_tasks",
        "Tasks that have not ended.",
        ("queue", "state"),
        {(row.queue, state): getattr(row, state) for row in queues for state in STATES},
    )
    yield Family(
        "fbtasks_queue_oldest_ready_seconds",
        "For how long the oldest ready task has waited for a worker; 0 while the queue is paused or closed.",
        ("queue",),
        {(row.queue,): row.waited(found.time) or 0.0 for row in queues},
    )
    yield Family(
        "fbtasks_queue_workers",
        "Workers that are alive and serve the queue.",
        ("queue",),
        {(row.queue,): row.workers for row in queues},
    )
    yield Family(
        "fbtasks_tasks_total",
        "Outcomes that workers have recorded since the queue was made.",
        ("queue", "outcome"),
        {(row.queue, outcome): getattr(row, outcome) for row in counters for outcome in _OUTCOMES},
    )
    yield Family(
        "fbtasks_task_run_seconds_total",
        "Seconds for which tasks have run, all tries together.",
        ("queue",),
        {(row.queue,): row.elapsed_ms / 1000 for row in counters},
    )
    yield Family(
        "fbtasks_conflicts_total",
        "Transactions of workers that met another one and were tried again.",
        (),
        {(): sum(row.conflicts for row in found.counters)},
    )
    yield Family(
        "fbtasks_workers", "Registered workers.", ("state",), {(state,): states[state] for state in _OF_WORKERS}
    )
    yield Family(
        "fbtasks_transaction_gap",
        "Transactions begun since the oldest one whose view of the database is still kept.",
        (),
        {(): found.transaction_gap},
    )


def _state(worker: WorkerRow) -> str:
    if not worker.alive:
        return "dead"
    return "draining" if worker.draining else "active"
