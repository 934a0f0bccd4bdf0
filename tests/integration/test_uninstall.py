"""The queue is taken out of a database: all that migrations have made, and nothing of the application."""

import json
from contextlib import closing

import pytest
from support.databases import database
from support.draining import drain
from support.programs import command_line
from support.registering import register
from support.sql import execute, rows

from fbtasks import FBTasks, SchemaError
from fbtasks.database.review import uninstall
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

OBJECTS = """
SELECT 'relation', TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'package', TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'trigger', TRIM(RDB$TRIGGER_NAME) FROM RDB$TRIGGERS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'procedure', TRIM(RDB$PROCEDURE_NAME) FROM RDB$PROCEDURES WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'function', TRIM(RDB$FUNCTION_NAME) FROM RDB$FUNCTIONS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'exception', TRIM(RDB$EXCEPTION_NAME) FROM RDB$EXCEPTIONS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'sequence', TRIM(RDB$GENERATOR_NAME) FROM RDB$GENERATORS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'domain', TRIM(RDB$FIELD_NAME) FROM RDB$FIELDS WHERE COALESCE(RDB$SYSTEM_FLAG, 0) = 0
    AND RDB$FIELD_NAME NOT STARTING WITH 'RDB$'
UNION ALL SELECT 'role', TRIM(RDB$ROLE_NAME) FROM RDB$ROLES WHERE COALESCE(RDB$SYSTEM_FLAG, 0) = 0
UNION ALL SELECT 'right', TRIM(RDB$USER) FROM RDB$USER_PRIVILEGES WHERE RDB$USER STARTING WITH 'FBTASKS'
"""
APPLICATION = [
    "CREATE DOMAIN MONEY AS NUMERIC(18, 2)",
    "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, TOTAL MONEY)",
    "CREATE SEQUENCE ORDERS_SEQ",
    "CREATE TRIGGER ORDERS_ID FOR ORDERS ACTIVE BEFORE INSERT AS BEGIN NEW.TOTAL = 5; END",
    "CREATE TABLE QUEUE_OWN (ID INTEGER)",
    "INSERT INTO ORDERS (ID) VALUES (1)",
]


def run(url, *statements):
    with connections.connect(url) as connection:
        for statement in statements:
            connection.execute_immediate(statement)
            connection.commit()


def objects(url):
    with connections.connect(url) as connection, connection.cursor() as cursor:
        return {tuple(map(str.strip, row)) for row in cursor.execute(OBJECTS).fetchall()}


@pytest.fixture
def without(tmp_path):
    """A database with tables of an application, which had no queue before."""
    with database(tmp_path / "without.fdb") as url:
        run(url, *APPLICATION)
        with closing(FBTasks("shop", url, auto_migrate=True)) as app:
            yield app


@pytest.fixture
def shop(url):
    """A database with such tables and a queue."""
    run(DatabaseURL.parse(url), *APPLICATION)
    with closing(FBTasks("shop", url, auto_migrate=True)) as app:
        yield app


@pytest.mark.thorough
def test_the_database_is_as_it_was_before_and_may_have_a_queue_again(without, capsys):
    shop = without
    url, before = shop.settings.url, objects(shop.settings.url)
    shop.migrate()
    assert command_line("grant", "worker", "ANN", "--url", url.reveal()) == 0
    shop.task(name="add")(lambda n: n + 1)
    shop.task(name="fails", max_retries=0)(lambda: 1 / 0)
    result = shop.send_task("add", (1,))
    shop.send_task("fails")
    shop.add_periodic("add", every=3600, args=(1,))
    drain(shop)
    assert result.get(1) == 2
    shop.migrate()
    shop.close()
    assert objects(url) > before
    capsys.readouterr()
    assert command_line("uninstall", "--url", url.reveal(), "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert objects(url) == before
    assert told["discarded"] == {}
    assert {"QUEUE_TASK", "QUEUE_MSG"} < set(told["dropped"]["table"])
    assert told["dropped"]["role"] == ["FBTASKS_OPERATOR", "FBTASKS_PRODUCER", "FBTASKS_VIEWER", "FBTASKS_WORKER"]
    assert command_line("uninstall", "--url", url.reveal()) == 0
    assert capsys.readouterr().out == f"Nothing to uninstall: {url} has no queue.\n"
    with closing(FBTasks("again", url, auto_migrate=True)) as again:
        result = again.task(name="add")(lambda n: n + 1).delay(2)
        drain(again)
        assert result.get(1) == 3
        assert rows(again, "SELECT ID, TOTAL FROM ORDERS") == [(1, 5)]


def test_it_lists_what_it_drops_and_asks(project, app):
    app.send_task("one")
    app.close()
    refused = project.run("uninstall", "-y", check=False)
    assert refused.returncode == 1
    assert "has what was not done yet: 1 task." in refused.stderr
    asked = project.run("uninstall", "--discard", input="n\n", check=False)
    assert asked.returncode == 1
    assert "table: QUEUE_AUDIT, QUEUE_CANCEL, " in asked.stderr
    assert "Drop all of this, with 1 task, all results and failures?" in asked.stdout
    assert project.run("inspect", "ready").stdout.count("one") == 1
    assert "dropped. All else is as it was." in project.run("uninstall", "--discard", input="y\n").stdout
    assert project.run("inspect", "ready", check=False).returncode == 1


def test_what_has_not_been_done_is_counted(shop):
    shop.on_event("paid", name="paid")(lambda event: None)
    shop.raise_event("other")
    shop.send_task("x")
    assert uninstall.look(shop.database).unfinished == {"task": 1, "change": 1}


USERS = {
    "column AT_ of LOGGED": "CREATE TABLE LOGGED (N QUEUE_NAME, AT_ COMPUTED BY (QUEUE_NOW()))",
    "column N of LOGGED": "COMMENT ON TABLE LOGGED IS 'has two of them'",
    "constraint FEW of QUEUE_TASK": "ALTER TABLE QUEUE_TASK ADD CONSTRAINT FEW CHECK (ID > 0)",
    "constraint PARENT of CHILD": "CREATE TABLE CHILD (ID BIGINT CONSTRAINT PARENT REFERENCES QUEUE_TASK (ID))",
    "function TOLD": "CREATE FUNCTION TOLD (N QUEUE_TEXT) RETURNS INTEGER AS BEGIN RETURN 1; END",
    "index BY_NAME of QUEUE_TASK": "CREATE INDEX BY_NAME ON QUEUE_TASK (NAME)",
    "index LATE of QUEUE_HISTORY": "CREATE INDEX LATE ON QUEUE_HISTORY COMPUTED BY (QUEUE_NOW() - FINISH_TIME)",
    "index SOON of ORDERS": "CREATE INDEX SOON ON ORDERS COMPUTED BY (IIF(QUEUE_NOW() > DATE '2020-01-01', ID, 0))",
    "procedure SEND": "CREATE PROCEDURE SEND AS DECLARE N BIGINT; "
    "BEGIN SELECT ID FROM FBTASKS.ENQUEUE('a') INTO :N; END",
    "procedure TAKES": "CREATE PROCEDURE TAKES (N QUEUE_TEXT) AS BEGIN END",
    "trigger OWN of QUEUE_TASK": "CREATE TRIGGER OWN FOR QUEUE_TASK BEFORE INSERT AS BEGIN END",
    "trigger SENDS of ORDERS": "CREATE TRIGGER SENDS FOR ORDERS AFTER INSERT AS DECLARE N BIGINT; "
    "BEGIN SELECT ID FROM FBTASKS.ENQUEUE('a') INTO :N; END",
    "view WAITING": "CREATE VIEW WAITING AS SELECT ID FROM QUEUE_TASK",
}
"""What an application may make of the queue's objects, by what is said of it."""


def test_what_uses_the_queue_is_named_and_nothing_is_dropped(shop, monkeypatch):
    monkeypatch.setattr(uninstall, "_SHOWN", len(USERS))
    shop.migrate()
    run(shop.settings.url, *USERS.values())
    before = objects(shop.settings.url)
    with pytest.raises(SchemaError) as caught:
        uninstall.look(shop.database)
    assert f"objects of the application use the queue, and nothing was dropped: {', '.join(USERS)}. Drop" in str(
        caught.value
    )
    shop.close()
    assert objects(shop.settings.url) == before


def test_a_trigger_of_a_subscription_goes_before(shop, without, capsys):
    url = shop.settings.url.reveal()
    shop.on_change("ORDERS", insert=True, name="note")(lambda change: None)
    shop.migrate()
    with closing(shop.database.open()) as session:
        shop.features["sources"].deploy(session)
    shop.close()
    assert command_line("uninstall", "--url", url, "-y") == 1
    assert "trigger QUEUE_ON_1 of ORDERS" in capsys.readouterr().err
    assert command_line("subscriptions", "drop", "note", "-y", "--url", url) == 0
    assert command_line("uninstall", "--url", url, "-y") == 0
    assert objects(shop.settings.url) == objects(without.settings.url)


def test_it_is_refused_while_workers_live_or_programs_use_it(shop):
    register(shop, name="w@host")
    with pytest.raises(SchemaError, match="workers or consumers are at the queue: w@host"):
        uninstall.look(shop.database)
    execute(shop, "DELETE FROM QUEUE_PROCESS")
    found = uninstall.look(shop.database)
    with closing(FBTasks("other", shop.settings.url)) as other:
        other.send_task("x")
        with pytest.raises(SchemaError, match="others use the queue, and nothing was dropped"):
            uninstall.uninstall(shop.database, found)
        other.send_task("y")
    uninstall.uninstall(shop.database, found)


def test_an_app_that_knew_the_queue_says_that_there_is_none(shop, capsys):
    shop.send_task("x")
    shop.close()
    assert command_line("uninstall", "--discard", "-y", "--url", shop.settings.url.reveal()) == 0
    for _ in range(2):
        with pytest.raises(SchemaError, match=r"has no queue yet\. Run: fbtasks migrate"):
            shop.send_task("x")
    assert shop.migrate()
    shop.send_task("x")


def test_features_of_other_distributions_are_dropped_before(shop):
    execute(shop, "INSERT INTO QUEUE_FEATURE (NAME, VERSION) VALUES ('audit', 1)")
    with pytest.raises(SchemaError, match=r"other distributions: audit.*fbtasks features drop audit"):
        uninstall.look(shop.database)


def test_a_table_of_the_application_may_have_the_name_of_one_that_the_queue_lacks(tmp_path):
    """In a database without the feature: it was not made by a migration."""
    with database(tmp_path / "core.fdb") as url:
        run(url, "CREATE TABLE QUEUE_LIMIT (X INTEGER)")
        before = objects(url)
        with closing(FBTasks("core", url, features=())) as app:
            app.migrate()
            found = uninstall.look(app.database)
            assert "QUEUE_LIMIT" not in found.names["table"]
            uninstall.uninstall(app.database, found)
        assert objects(url) == before
