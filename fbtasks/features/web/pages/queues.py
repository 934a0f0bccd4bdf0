"""Queues: what each holds, who serves it, and how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from werkzeug.wrappers import Response

from fbtasks.features.web.actions.things import queue_buttons
from fbtasks.features.web.pages.span import past, sparks
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.results import QueueRow

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context

PAGE: Final = 100
"""Queues of one page."""


def listing(context: Context) -> Response:
    """``/queues``: those behind the name in ``after``."""
    look, after = context.dashboard.looks.get(), context.request.args.get("after")
    rows = [row for row in look.queues if after is None or row.queue > after]
    shown = {row.queue for row in rows[:PAGE]}
    return context.page(
        "queues.html",
        "Queues",
        queues=rows[:PAGE],
        next=rows[PAGE - 1].queue if len(rows) > PAGE else None,
        counters=[row for row in look.counters if row.queue in shown],
        sparks={name: spark for name, spark in sparks(context).items() if name in shown},
        titles=list(dict.fromkeys(title for row in rows[:PAGE] for title in row.shown)),
    )


def show(context: Context, queue: str) -> Response:
    """``/queues/QUEUE``."""
    look = context.dashboard.looks.get()
    row = next((each for each in look.queues if each.queue == queue), None)
    if row is None:
        context.database.use(lambda session: check_queue(context.database, session, queue, context.app))
        row = QueueRow(queue=queue)
    return context.page(
        "queue.html",
        queue,
        row=row,
        counter=next((each for each in look.counters if each.queue == queue), None),
        workers=[worker for worker in look.workers if queue in worker.queues],
        buttons=queue_buttons(context, row),
        **past(context, queue),
    )
