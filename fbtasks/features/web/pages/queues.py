"""Queues: what each holds, who serves it, and how it went."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug.wrappers import Response

from fbtasks.features.web.actions.things import queue_buttons
from fbtasks.features.web.pages.span import past, sparks
from fbtasks.queue.operations.queues import check_queue
from fbtasks.queue.results import QueueRow

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context


def listing(context: Context) -> Response:
    """``/queues``."""
    look = context.dashboard.looks.get()
    titles = list(dict.fromkeys(title for row in look.queues for title in row.shown))
    return context.page(
        "queues.html",
        "Queues",
        queues=look.queues,
        counters=look.counters,
        sparks=sparks(context),
        titles=titles,
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
