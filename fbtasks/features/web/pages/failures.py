"""Failures in groups: one for each kind of error of a task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.features.web import store
from fbtasks.features.web.actions.many import failure_buttons
from fbtasks.queue import results

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context
    from fbtasks.features.web.store import Groups
    from fbtasks.firebird.session import Session


def groups(context: Context, queue: str | None = None, name: str | None = None) -> Groups:
    """Returns the groups of the newest failures, as they were within the last seconds."""
    return context.dashboard.kept(
        ("failures", queue, name),
        2.0,
        lambda: context.database.use(
            lambda session: store.failure_groups(session, context.options.arguments.told, queue=queue, name=name)
        ),
    )


def listing(context: Context) -> Response:
    """``/failures``."""
    args = context.request.args  # cut to what there can be
    queue = args.get("queue", "").encode("ascii", "replace").decode()[:63] or None
    name = args.get("name", "")[:255] or None
    found = groups(context, queue, name)
    return context.page(
        "failures.html", "Failures", queue=queue, name=name, groups=found.rows, looked_at=found.looked_at,
        until=found.until,
    )  # fmt: skip


def show(context: Context, group: str) -> Response:
    """``/failures/KEY``."""
    found = next((each for each in groups(context).rows if each.key == group), None)
    if found is None:
        raise NotFound("None of the newest failures is of this group: they were put back, or are older by now.")

    def read(session: Session) -> list[object]:
        return [row for number in found.ids if (row := results.find(session, number)) is not None]

    tasks = context.database.use(read)
    return context.page("failure.html", found.name, group=found, tasks=tasks, buttons=failure_buttons(context, found))
