"""Statements that a user types, on the engine itself: what may be run, and that nothing stays open behind it."""

import threading

import pytest
from support.sql import one, rows

from fbtasks import DatabaseError
from fbtasks.database.adhoc import Answer, Statements

REFUSED = "this statement would change the database, and `fbtasks sql` only reads: start it with --write."


@pytest.fixture
def statements(app):
    opened = []

    def start(*, write):
        app.migrate()
        opened.append(Statements(app.settings.url, write=write))
        return opened[-1]

    yield start
    for each in opened:
        each.close()


@pytest.mark.parametrize("write", [False, True])
def test_what_changes_the_database_needs_write(app, statements, write):
    """The engine keeps rows and schema from a read-only transaction; sequences, rights and connections it does not."""
    task = app.send_task("proj.add", (2, 3))
    with app.connect() as other, other.cursor() as cursor:
        prompt = statements(write=write)
        for statement in [
            "UPDATE QUEUE_TASK SET NAME = 'x'",
            "UPDATE QUEUE_TASK SET NAME = 'x' RETURNING ID",
            "INSERT INTO QUEUE_TASK_ID (TASK_HASH, TASK_ID, ID) VALUES (x'00', 'x', 1)",
            "DELETE FROM QUEUE_TASK_ID",
            "SELECT ID FROM FBTASKS.ENQUEUE('proj.sub')",
            "EXECUTE PROCEDURE FBTASKS.ENQUEUE('proj.sub')",
            "EXECUTE BLOCK AS BEGIN IN AUTONOMOUS TRANSACTION DO UPDATE QUEUE_TASK SET NAME = 'y'; END",
            "CREATE TABLE MINE (ID INTEGER)",
            "GRANT SELECT ON QUEUE_TASK TO PUBLIC",
            "/* a comment */ ALTER SEQUENCE QUEUE_PROCESS_SEQ RESTART WITH 1",
            "SET GENERATOR QUEUE_PROCESS_SEQ TO 4",
            "SET STATISTICS INDEX QUEUE_TASK_CLAIM",
            f"-- another connection\nDELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = {other.info.id}",
        ]:
            if write:
                prompt.run(statement)
            else:
                with pytest.raises(DatabaseError) as caught:
                    prompt.run(statement)
                assert str(caught.value) == REFUSED, statement
        if write:
            assert task.status == "PENDING"
            assert prompt.run("SELECT DISTINCT NAME FROM QUEUE_TASK").rows == (("y",),)
        else:
            assert cursor.execute("SELECT NAME FROM QUEUE_TASK").fetchall() == [("proj.add",)]
        assert prompt.run("SET ROLE NONE") == Answer()  # of this connection alone
        assert prompt.run("EXECUTE BLOCK RETURNS (A INTEGER) AS BEGIN A = 7; SUSPEND; END").rows == ((7,),)


def test_no_transaction_is_open_between_statements(app, statements):
    prompt = statements(write=True)
    found = prompt.run("SELECT CURRENT_CONNECTION FROM RDB$DATABASE").rows[0][0]
    assert prompt.run("INSERT INTO QUEUE_TASK_ID (TASK_HASH, TASK_ID, ID) VALUES (x'00', 'x', 1)").changed == 1
    with pytest.raises(DatabaseError, match="Table unknown"):
        prompt.run("SELECT * FROM NOSUCH")
    with pytest.raises(DatabaseError, match="violation of PRIMARY"):
        prompt.run("INSERT INTO QUEUE_TASK_ID (TASK_HASH, TASK_ID, ID) VALUES (x'00', 'x', 1)")
    prompt.run("SELECT RDB$FIELD_NAME FROM RDB$FIELDS", 3)  # the rest is left unread
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK_ID") == 1
    assert rows(app, "SELECT MON$STATE FROM MON$TRANSACTIONS WHERE MON$ATTACHMENT_ID = ?", found) == []
    assert one(app, "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = ?", found) == 1


def test_transactions_cannot_be_ruled(statements):
    prompt = statements(write=True)
    for statement, what in (("COMMIT", "commit"), ("SET TRANSACTION", "begin"), ("SAVEPOINT A", "go back to")):
        with pytest.raises(DatabaseError) as caught:
            prompt.run(statement)
        assert str(caught.value) == (
            f"each statement is a transaction of its own, and is committed when it has run: there is nothing to {what}."
        )


def test_rows_are_read_to_the_end_where_that_changes_something(app, statements):
    loop = (
        "EXECUTE BLOCK RETURNS (I INTEGER) AS BEGIN I = 0; WHILE (I < 5) DO BEGIN I = I + 1; "
        "INSERT INTO QUEUE_TASK_ID (TASK_HASH, TASK_ID, ID) VALUES (CRYPT_HASH(:I USING SHA256), :I, :I); SUSPEND; "
        "END END"
    )
    found = statements(write=True).run(loop, 2)
    assert found == Answer(("I",), ((1,), (2,)), 5, 5)
    found = statements(write=False).run("SELECT ID FROM QUEUE_TASK_ID ORDER BY ID", 2)
    assert found == Answer(("ID",), ((1,), (2,)), None, 0)


def test_a_statement_is_cancelled(statements, wait_for):
    prompt = statements(write=True)
    errors = []

    def run():
        try:
            prompt.run("EXECUTE BLOCK AS BEGIN WHILE (TRUE) DO BEGIN END END")
        except DatabaseError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()

    def cancelled():
        prompt.cancel()  # it may not have begun
        return errors

    assert wait_for(cancelled) == ["the statement was cancelled, and nothing of it remains."]
    thread.join()


def test_text_that_is_not_utf8_names_the_remedy(app, statements):
    prompt = statements(write=True)
    prompt.run("CREATE TABLE OLD (A VARCHAR(10) CHARACTER SET NONE)")
    prompt.run("INSERT INTO OLD VALUES (ASCII_CHAR(228))")
    with pytest.raises(DatabaseError, match=r"\?charset=WIN1252"):
        prompt.run("SELECT A FROM OLD")
