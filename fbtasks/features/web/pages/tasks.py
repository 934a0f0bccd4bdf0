"""Tasks: the search, and one task with all that is known of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from werkzeug.wrappers import Response

from fbtasks.errors import ConfigurationError
from fbtasks.features.web import search, store
from fbtasks.features.web.actions.many import bulk_buttons, parse
from fbtasks.features.web.actions.one import task_buttons
from fbtasks.features.web.query import Query
from fbtasks.features.web.showing import links_of
from fbtasks.features.web.store import Try
from fbtasks.queue.operations.tasks import get_task
from fbtasks.sheet import Private, TaskRef
from fbtasks.states import State
from fbtasks.system.showing import with_app
from fbtasks.tasks.call import TaskRow

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context
    from fbtasks.firebird.session import Session

PAGE: Final = 50
COUNTED: Final = ("waiting", *(each.name.lower() for each in State if each.live))


def listing(context: Context) -> Response:
    """``/tasks?q=``: the address is the saved view."""
    text, database = context.request.args.get("q", ""), context.database
    try:
        query = parse(context, text)
        cursor = context.request.args.get("after")
        page = database.use(
            lambda session: search.page(database, session, query, context.options.arguments, cursor, PAGE)
        )
    except ConfigurationError as error:
        return context.page("tasks.html", "Tasks", 400, q=text, problem=str(error), counts={}, page=None)
    context.query, context.names = query, {*context.app.tasks, *(row.name for row in page.rows)}
    return context.page(
        "tasks.html", "Tasks", q=str(query), problem="", counts=_counts(context, query), page=page,
        buttons=bulk_buttons(context, page.rows),
    )  # fmt: skip


def _counts(context: Context, query: Query) -> dict[str, int]:
    """Returns how many tasks are in each state; none where a query asks for more than a state and a queue."""
    if query != Query(state=query.state, queue=query.queue):
        return {}
    rows = [row for row in context.dashboard.looks.get().queues if query.queue in ("", row.queue)]
    return {name: sum(getattr(row, name) for row in rows) for name in COUNTED}


def show(context: Context, id: str) -> Response:
    """``/tasks/ID``."""
    found = get_task(context.database, id)
    row, payloads = found.row, context.options.arguments
    task = context.app.tasks.get(row.name)

    def read(session: Session) -> tuple[list[Try], dict[str, Any]]:
        sheets = context.dashboard.sheets.items()
        related = {name: cells for name, sheet in sheets if (cells := sheet.of_task(session, row.id))}
        return store.tries(session, row.id), related

    tries, related = context.database.use(read)
    return context.page(
        "task.html",
        f"{row.id} {row.name}",
        task=row,
        arguments=[each._asdict() for each in payloads.of_call(found.arguments, task)],
        result=None if (shown := payloads.of_result(found.result)) is None else shown.text,
        traceback=Private(found.traceback),
        tries=tries,
        timeline=_timeline(row, tries, context.now),
        why=[with_app(reason, context.app_path) for reason in found.why],
        facts={name: Private(text) for name, (text, _) in found.facts.items() if text and name not in related},
        merged=None if found.asked_for is None else TaskRef(found.asked_for),
        related={context.dashboard.sheets[name].title or name.capitalize(): cells for name, cells in related.items()},
        links=links_of(context.options.links, row.name, payloads.values(found.arguments, row.name)),
        buttons=task_buttons(context, found),
    )


def _timeline(row: TaskRow, tries: list[Try], now: datetime) -> list[tuple[str, datetime, datetime]]:
    """Returns what was done of a task and when, one after the other; of a wait only if it took some time."""
    found, at = [], row.raise_time
    if row.start_time > at and not tries:
        found.append(("scheduled", at, min(row.start_time, now)))
        at = row.start_time
    for each in tries:
        if each.start is not None and each.end is not None:
            found += [("waited", at, each.start), (each.kind, each.start, each.end)]
            at = each.end
    end = row.finish_time or now
    if row.claim_time is not None and (row.state is State.RUNNING or row.finish_time is not None):
        began = row.claim_time  # the task may have waited a moment in its worker
        if row.elapsed_ms is not None:
            began = max(began, end - timedelta(milliseconds=row.elapsed_ms))
        found += [("waited", at, began), (row.state.name.lower(), began, end)]
    else:
        found.append(("waited", at, end))
    return [part for part in found if part[0] not in ("scheduled", "waited") or part[2] > part[1]]
