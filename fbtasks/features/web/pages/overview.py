"""The first page: what waits, runs and fails, and what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def show(context: Context) -> Response:
    """``/``."""
    database, dashboard = context.database, context.dashboard
    look = dashboard.looks.get()
    health = dashboard.kept("health", 5.0, lambda: get_health(database, MAX_AGE))
    alive = [worker for worker in look.workers if worker.alive]
    return context.page(
        "overview.html",
        "Overview",
        queues=look.queues,
        counters=look.counters,
        sparks=sparks(context),
        workers=len(alive),
        running=sum(worker.running for worker in alive),
        slots=sum(worker.concurrency for worker in alive),
        findings=[_finding(context, each) for each in health.wrong()],
        remarks=[_finding(context, each) for each in health.remarks],
        failures=database.use(lambda session: list(results.listing(session, State.FAILED, Filter(limit=8)))),
        **past(context),
    )


def _finding(context: Context, problem: Problem) -> str:
    told = context.options.arguments.told(problem.private)
    said = str(problem).replace(problem.private, told) if told else str(problem)
    return with_app(said, context.app.path)
