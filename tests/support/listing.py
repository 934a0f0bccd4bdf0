"""Tasks as operators list them."""

from fbtasks.queue.operations.tasks import Filter, list_tasks


def tasks_in(app, state, **wanted):
    """The tasks of *app* in one state, and whether there are more of them than that."""
    with list_tasks(app.database, state, Filter(**wanted)) as (rows, more):
        return list(rows), more
