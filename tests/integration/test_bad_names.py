"""Names and texts that cannot be: refused in our words by SQL and by Python, before anything is written."""

import pytest
from firebird.driver import DatabaseError
from support.sql import execute, one

from fbtasks.errors import EnqueueError, FBTasksError, TaskDefinitionError
from fbtasks.features.sources import managing as subscriptions
from fbtasks.queue import codec
from fbtasks.tasks.call import Call

HALF = "\ud800"
"""Half of a surrogate pair, which no text of a database can hold."""
BAD = [
    ("", "default", None), (" ", "default", None), ("a\nb", "default", None), ("a\0b", "default", None),
    ("a ", "default", None), (" a", "default", None), ("fbtasks.a", "default", None),
    ("a", "", None), ("a", "a ", None), ("a", "a,b", None), ("a", "a\tb", None),
    ("a", "default", ""), ("a", "default", "1"), ("a", "default", "x\ny"),
]  # fmt: skip
"""Name, queue and task_id of calls that Python refuses."""


def enqueued(app, name, queue, task_id):
    """Whether SQL enqueues a call."""
    try:
        execute(app, "SELECT ID FROM FBTASKS.ENQUEUE(?, '[]', '{}', NULL, ?, 0, ?)", name, queue, task_id)
    except DatabaseError as error:
        print(error)
        return False
    return True


def test_sql_enqueues_no_call_that_python_refuses(app):
    app.migrate()
    assert enqueued(app, "a", "default", "order-1")
    for name, queue, task_id in BAD:
        with pytest.raises(FBTasksError):
            app.send_task(name, queue=queue, task_id=task_id)
    assert [each for each in BAD if enqueued(app, *each)] == []
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1


def test_names_of_our_own_tasks_are_refused_by_every_door(app):
    """Those of callers, and what an operator runs by hand; handlers and schedules are named by the code of workers."""
    with pytest.raises(TaskDefinitionError, match=r"'fbtasks\.sql' must not begin with 'fbtasks\.'"):
        app.task(name="fbtasks.sql")(print)
    with pytest.raises(TaskDefinitionError, match=r"alias 'fbtasks\.old'"):
        app.task(name="new", aliases=["fbtasks.old"])(print)
    app.migrate()
    with app.database.session() as session:
        (schedule,) = session.sql(
            "INSERT INTO QUEUE_SCHEDULE (ID, NAME, APP, TASK, EVERY_MS, TZ, MISSED, QUEUE, PRIORITY, PAUSED, "
            "CONTENT_TYPE, PAYLOAD, DEFINITION, HASH, NEXT_TIME) VALUES (1, 's', 'a', 'fbtasks.sql', 1000, 'UTC', "
            "'one', 'default', 0, 0, 'application/json', '[[],{}]', '{}', '', CURRENT_DATE) RETURNING ID"
        )
        record = codec.pack_call(Call("fbtasks.sql", "default", "application/json", b"[[],{}]"))
        first, _, now = session.call("FBTASKS_WORKFLOWS_API.STEP_IDS", 1)
        step = b"%b%019d000000%b" % (codec.steps_at(now), first, record)
        for routine, *params in (
            ("FBTASKS_PRODUCER.ENQUEUE_PACKED", record),
            ("FBTASKS_PRODUCER.ENQUEUE_PACKED", step),
            ("FBTASKS_SCHEDULES_ADMIN.RUN_SCHEDULE", *schedule),
        ):
            with pytest.raises(FBTasksError, match=r"'fbtasks\.sql' must not begin with 'fbtasks\.'"):
                session.call(routine, *params)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_changes_of_250_columns_are_noted_or_refused_in_our_words(app):
    names = [f"C{number}" for number in range(250)]
    columns = ", ".join(f"{name} VARCHAR(20)" for name in names)
    execute(app, f"CREATE TABLE WIDE (ID INTEGER NOT NULL PRIMARY KEY, {columns})")
    app.on_change("WIDE", update=names, name="fed")(lambda change: None)
    done = subscriptions.apply(app.database, app.name, app.features["sources"].feeds())
    assert "BLOB_APPEND" not in str(done.problems)


def test_half_a_letter_in_a_condition_is_refused_in_our_words(app):
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, A VARCHAR(9))")
    try:
        app.on_change("T", insert=True, when=f"A = '{HALF}'", name="fed")(lambda change: None)
    except FBTasksError:
        return
    (problem,) = subscriptions.apply(app.database, app.name, app.features["sources"].feeds()).problems.values()
    assert "CREATE TRIGGER" not in problem


def test_half_a_letter_in_an_order_key_is_refused_in_our_words(app):
    with pytest.raises(EnqueueError):
        app.raise_event("paid", 1, order_key=f"key {HALF}")
