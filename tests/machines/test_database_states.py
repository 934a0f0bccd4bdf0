"""A database with triggers of the application's on its connections and transactions, and one that is read-only."""

from contextlib import closing

import pytest
from firebird.driver import DbAccessMode
from support.services import services_of
from support.sql import execute, one

from fbtasks import DatabaseUnavailable, FBTasks, StatementRefused
from fbtasks.firebird.session import READ, SNAPSHOT
from fbtasks.testing import drain

READ_ONLY = "SELECT RDB$GET_CONTEXT('SYSTEM', 'READ_ONLY') FROM RDB$DATABASE"


def kinds(app):
    """Whether transactions of the two kinds that only read are read-only."""
    with app.database.session() as session:
        for kind in (READ, SNAPSHOT):
            for _ in range(2):  # the second one is as the first has found that it must be
                with session.transaction(kind) as transaction:
                    found = transaction.sql(READ_ONLY)
            yield found[0][0]


@pytest.mark.parametrize("moment", ["START", "COMMIT"])
def test_a_trigger_of_transactions_may_write(url, moment):
    with closing(FBTasks("plain", url)) as app:
        assert list(kinds(app)) == ["TRUE", "TRUE"]
        execute(app, "CREATE TABLE LOGGED (N INTEGER)")
        execute(app, f"CREATE TRIGGER LOGS ON TRANSACTION {moment} AS BEGIN INSERT INTO LOGGED VALUES (1); END")
    with closing(FBTasks("logged", url)) as app:
        assert list(kinds(app)) == ["FALSE", "FALSE"]
        add = app.task(name="add")(lambda a, b: a + b)
        result = add.delay(2, 3)
        assert result.status == "PENDING"
        drain(app)
        assert result.get(timeout=10) == 5
        assert one(app, "SELECT COUNT(*) FROM LOGGED") > 0


def test_a_trigger_of_transactions_may_leave_out_those_that_read(url):
    """As docs/how-to/transactions.md says."""
    guard = "IF (RDB$GET_CONTEXT('SYSTEM', 'READ_ONLY') = 'FALSE') THEN"
    with closing(FBTasks("a", url)) as app:
        execute(app, "CREATE TABLE LOGGED (N INTEGER)")
        execute(app, f"CREATE TRIGGER LOGS ON TRANSACTION START AS BEGIN {guard} INSERT INTO LOGGED VALUES (1); END")
    with closing(FBTasks("b", url)) as app:
        assert list(kinds(app)) == ["TRUE", "TRUE"]
        assert one(app, "SELECT COUNT(*) FROM LOGGED") > 0


@pytest.mark.embedded("the trigger refuses the connection that drops the database, too")
def test_what_a_trigger_on_connect_raises_is_told(url):
    with closing(FBTasks("a", url)) as app:
        execute(app, "CREATE EXCEPTION NOT_NOW 'not now, @1'")
        execute(
            app,
            "CREATE TRIGGER GUARD ON CONNECT AS BEGIN"
            " IF (NOT EXISTS(SELECT 1 FROM QUEUE_TASK)) THEN EXCEPTION NOT_NOW USING ('friend'); END",
        )
    with closing(FBTasks("b", url)) as app, pytest.raises(DatabaseUnavailable) as caught:
        app.send_task("t")
    assert str(caught.value) == (
        f"{app.settings.url} refuses the connection: its trigger GUARD ON CONNECT has raised "
        "'NOT_NOW: not now, friend'. Connect when it lets you in, or change it (isql -nodbtriggers)."
    )


def test_a_database_that_is_read_only_is_read_and_told(url):
    with closing(FBTasks("a", url)) as app:
        result = app.send_task("t")
    with services_of(app.settings.url) as server:
        server.database.set_access_mode(database=app.settings.url.database, mode=DbAccessMode.READ_ONLY)
    with closing(FBTasks("b", url)) as app:
        assert app.AsyncResult(result.id).status == "PENDING"
        with pytest.raises(StatementRefused, match=r" is read-only, .* gfix -mode read_write makes"):
            app.send_task("t")
