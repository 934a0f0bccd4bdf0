"""What deletes many tasks, some at a time, reads them in the order of an index: not all of them for each some."""

from contextlib import closing
from datetime import timedelta

import pytest
from support.sql import plans

from fbtasks.queue import tasks
from fbtasks.states import State


@pytest.mark.parametrize(
    ("procedure", "call", "table", "index"),
    [
        (
            "FBTASKS_OPERATOR.PURGE",
            lambda t: t.call("FBTASKS_OPERATOR.PURGE", "default", 200),
            "QUEUE_TASK",
            "QUEUE_TASK_CLAIM",
        ),
        (
            "FBTASKS_UPKEEP.PRUNE",
            lambda t: tasks.prune(t, State.FAILED, timedelta(days=1)),
            "QUEUE_HISTORY",
            "QUEUE_HISTORY_STATE",
        ),
    ],
    ids=["purge", "prune"],
)
def test_they_are_read_in_the_order_of_the_index(app, procedure, call, table, index):
    app.migrate()
    with closing(app.database.open()) as session:
        session.run(call)
        (loop,) = [plan for plan in plans(session, procedure) if f'"{table}"' in plan and f'"{index}"' in plan]
    lines = loop.split(f'Table "{table}"')
    print(loop)
    assert f'-> Index "{index}"' in lines[1].splitlines()[1]  # and not by a bitmap of all that it finds there
    assert "Sort" not in lines[0]
