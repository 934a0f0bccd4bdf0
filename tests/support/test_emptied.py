"""Leftovers of a test in a database that others get."""

import pytest

from .capture import listen
from .sql import execute, one, rows

pytestmark = pytest.mark.embedded

TABLE = "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY)"
LEFT = "SELECT RDB$RELATION_NAME FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = 'ORDERS'"


def leave(emptied, *statements):
    """Does as a test that gets a database. Returns the URL of that."""
    with emptied.app() as app:
        for statement in statements:
            execute(app, statement)
        return app.url


def test_tables_of_an_application_are_gone_with_their_triggers(emptied):
    for _ in range(2):
        with emptied.app() as app:
            assert rows(app, LEFT) == []
            execute(app, TABLE)
            listen(app, "ORDERS", insert=True)
            execute(app, "INSERT INTO ORDERS VALUES (1)")
            assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE") == 1
            used = app.url
    assert leave(emptied) == used


def test_a_database_with_rights_that_were_granted_is_not_lent_again(emptied):
    used = leave(emptied, "GRANT SELECT ON QUEUE_TASK TO ANN")
    assert leave(emptied) != used


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE QUEUE_TASK ADD MINE INTEGER",
        "CREATE INDEX MINE ON QUEUE_TASK (NAME)",
        "CREATE TRIGGER MINE FOR QUEUE_TASK BEFORE INSERT AS BEGIN END",
        "DROP INDEX QUEUE_TASK_DUE",
        "DROP TRIGGER QUEUE_TASK_ENDED",
    ],
)
def test_a_change_of_the_queue_is_refused(emptied, change):
    with emptied.app() as app, pytest.raises(Exception, match="This database is lent to other tests, too"):
        execute(app, change)
