"""Workers: who is alive, and what each runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.features.web import search
from fbtasks.features.web.actions.things import worker_buttons
from fbtasks.features.web.query import Query
from fbtasks.queue.register import processes

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context


def listing(context: Context) -> Response:
    """``/workers``."""
    return context.page("workers.html", "Workers", workers=context.dashboard.looks.get().workers)


def show(context: Context, id: int) -> Response:
    """``/workers/ID``."""
    database = context.database
    worker = next((each for each in database.use(processes.workers) if each.id == id), None)
    if worker is None:
        raise NotFound("There is no such worker. One that has ended is registered no longer.")
    query = Query(state=("running",), worker=worker.name)
    page = database.use(lambda session: search.page(database, session, query, context.options.arguments))
    buttons = worker_buttons(context, worker)
    return context.page("worker.html", worker.name, worker=worker, tasks=page.rows, buttons=buttons)
