"""Names and texts that cannot be: refused in our words by SQL and by Python, before anything is written."""

import pytest
from firebird.driver import DatabaseError
from support.sql import execute, one

from fbtasks.errors import EnqueueError, FBTasksError
from fbtasks.features.sources import managing as subscriptions

HALF = "\ud800"
"""Half of a surrogate pair, which no text of a database can hold."""
BAD = [
    ("", "default", None), (" ", "default", None), ("a\nb", "default", None), ("a\0b", "default", None),
    ("a ", "default", None), (" a", "default", None),
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
