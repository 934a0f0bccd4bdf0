"""The first page: what waits, runs and fails, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import nlargest
from typing import TYPE_CHECKING, Any, Final, TypeVar

from werkzeug.wrappers import Response

from fbtasks.features.web.pages.span import past, sparks
from fbtasks.queue import results
from fbtasks.queue.operations.workers import MAX_AGE, get_health
from fbtasks.queue.results import Filter
from fbtasks.states import State
from fbtasks.system.showing import with_app

if TYPE_CHECKING:
    from fbtasks.feature import Problem
    from fbtasks.features.web.context import Context

T = TypeVar("T")
MOST: Final = 50
"""Lines of each list of the page, which is fetched again and again."""
LIVE: Final = ("ready", "running", "scheduled", "held", "parked")
ENDED: Final = ("succeeded", "failed")


def show(context: Context) -> Response:
    """``/``."""
    database, dashboard = context.database, context.dashboard
    look = dashboard.looks.get()
    health = dashboard.kept("health", 5.0, lambda: get_health(database, MAX_AGE))
    alive = [worker for worker in look.workers if worker.alive]
    counts = {row.queue: row.succeeded + row.failed for row in look.counters}
    queues, left = _most(look.queues, lambda row: (sum(getattr(row, name) for name in LIVE), counts.get(row.queue, 0)))
    shown = {row.queue for row in queues}
    wrong = list(health.wrong())
    since = past(context)
    names, left_names = _most(since["names"], lambda row: row.succeeded + row.failed + row.retried)
    return context.page(
        "overview.html",
        "Overview",
        queues=queues,
        left={"queues": left, "findings": max(0, len(wrong) - MOST), "names": left_names},
        totals={name: sum(getattr(row, name) for row in look.queues) for name in LIVE}
        | {name: sum(getattr(row, name) for row in look.counters) for name in ENDED},
        counters=[row for row in look.counters if row.queue in shown],
        sparks={name: spark for name, spark in sparks(context).items() if name in shown},
        workers=len(alive),
        running=sum(worker.running for worker in alive),
        slots=sum(worker.concurrency for worker in alive),
        findings=[_finding(context, problem) for problem in wrong[:MOST]],
        remarks=[_finding(context, problem) for problem in health.remarks[:MOST]],
        failures=database.use(lambda session: list(results.listing(session, State.FAILED, Filter(limit=8)))),
        **since | {"names": names},
    )


def _most(rows: Sequence[T], key: Callable[[T], Any]) -> tuple[list[T], int]:
    """Returns the :data:`MOST` of *rows* with the largest *key*, in the order of *rows*, and how many are left."""
    if len(rows) <= MOST:
        return list(rows), 0
    chosen = set(nlargest(MOST, range(len(rows)), key=lambda at: key(rows[at])))
    return [row for at, row in enumerate(rows) if at in chosen], len(rows) - MOST


def _finding(context: Context, problem: Problem) -> str:
    told = context.options.arguments.told(problem.private)
    said = str(problem).replace(problem.private, told) if told else str(problem)
    return with_app(said, context.app_path)
