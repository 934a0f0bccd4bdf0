"""Databases that can hold the queue, those that cannot, and how its tables are made in one."""

import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from fbtasks import FBTasks, SchemaError
from fbtasks.database import migrate
from fbtasks.database.database import Database
from fbtasks.database.packages import queries
from fbtasks.database.schema import Made, made, ours, steps
from fbtasks.firebird import connections, library
from fbtasks.firebird.identity import ask
from fbtasks.url import DatabaseURL


@pytest.mark.embedded("a server's database is made by its administrator")
def test_dialect_1_is_refused_and_left_as_it_is(tmp_path, monkeypatch):
    from firebird.driver import create_database, driver_config

    url = DatabaseURL(database=str(tmp_path / "old.fdb"))
    library.load(url, lambda: None)
    monkeypatch.setattr(driver_config.db_defaults.db_sql_dialect, "value", 1)
    monkeypatch.setattr(driver_config.db_defaults.sql_dialect, "value", 1)
    create_database(url.database, user="SYSDBA").close()
    monkeypatch.undo()
    app = FBTasks("a", str(url))
    with pytest.raises(SchemaError) as caught:
        app.task(name="t")(lambda: 1).delay()
    assert str(caught.value) == (
        f"{url} has SQL dialect 1; fbtasks needs dialect 3. Use another database for the queue, or change the dialect "
        "with gfix."
    )
    with connections.connect(url) as connection, connection.cursor() as cursor:  # the app would refuse it
        sql = "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME STARTING WITH 'QUEUE_'"
        assert cursor.execute(sql).fetchone()[0] == 0


@pytest.mark.parametrize(("version", "ok"), [("3.0", False), ("4.0", False), ("5.0", True), ("6.0", True)])
def test_a_database_older_than_firebird_5_is_refused(monkeypatch, version, ok):
    """Seen with a server of version 3.0.11 as well; here the connection stands in for it."""
    closed = []
    text = f"LI-V{version}.11.33703 Firebird {version}".encode()
    unknown = b"\x03\x05\x00\x90\x12\x00\x00\x14"  # what an old one answers to a question that it does not know
    answer = (
        b"\x67" + (len(text) + 2).to_bytes(2, "little") + b"\x01" + bytes([len(text)]) + text + 3 * unknown + b"\x01"
    )

    def get_info(wanted, buffer):
        buffer[: len(answer)] = answer

    old = SimpleNamespace(_att=SimpleNamespace(get_info=get_info), close=lambda: closed.append(1))
    url = DatabaseURL.parse("firebird://ann:secret@db.example//srv/x.fdb")
    assert ask(old).version == float(version)
    if ok:
        return
    monkeypatch.setattr(connections, "_probe", lambda *_: None)
    monkeypatch.setattr(connections, "_attach", lambda *_: old)
    with pytest.raises(SchemaError) as caught:
        connections.connect(url)
    assert str(caught.value).startswith(
        f"firebird://ann:***@db.example:3050//srv/x.fdb is served by Firebird {version}; fbtasks needs Firebird 5"
    )
    assert closed == [1]


@pytest.mark.embedded("a server's database is made by its administrator")
@pytest.mark.no_database
def test_a_queue_is_made_beside_other_tables_but_not_in_their_place_nor_unasked(url, tmp_path):
    for path, table in ((url, "CUSTOMER"), (f"firebird://{tmp_path}/theirs.fdb", "QUEUE_TASK")):
        with connections.connect(DatabaseURL.parse(path), create=True, page_size=4096) as connection:
            connection.execute_immediate(f"CREATE TABLE {table} (X INTEGER)")
            connection.commit()
    with pytest.raises(SchemaError, match="QUEUE_TASK"):
        FBTasks("a", f"firebird://{tmp_path}/theirs.fdb").send_task("t")
    with closing(FBTasks("a", url, auto_migrate=False)) as app:
        with pytest.raises(SchemaError) as caught:
            app.send_task("t")
        assert str(caught.value) == f"{app.settings.url} has no queue yet. Run: fbtasks migrate --url {url}"
    with closing(FBTasks("a", url)) as app:
        assert app.send_task("t").id == "1"


def test_what_others_have_in_use_is_waited_for_and_then_named(app, monkeypatch):
    other, session = app.database.open(), app.database.open()
    change = f"DROP PACKAGE BODY FBTASKS_WORKER_{session.generation}"
    other.call("FBTASKS_WORKER.UNREGISTER", 1)
    monkeypatch.setattr(migrate, "_PATIENCE", 0.1)
    with pytest.raises(SchemaError, match=r"FBTASKS_WORKER_1.* is in use.*Stop the workers and programs that do"):
        migrate._change(session, [change])
    monkeypatch.setattr(migrate, "_PATIENCE", 20.0)
    timer = threading.Timer(0.3, other.close)
    timer.start()
    migrate._change(session, [change])
    timer.join()
    session.close()


@pytest.mark.no_database
def test_who_is_overtaken_goes_on_with_another_connection(url, monkeypatch):
    """The engine takes the number of a table that was refused for the next one, which that connection does not find."""
    url += "" if url.endswith("/queue.fdb") else "2"  # on a server the queue is there already
    beside = connections.connect(DatabaseURL.parse(url), create=True)
    first, second = FBTasks("first", url), FBTasks("second", url)
    with closing(first.database._open()) as session, session.transaction_beside() as making:
        making.begin()
        making.script(queries()["schema_create"])
        opened = []

        def open_and_note(charset=None):
            opened.append(charset)
            if len(opened) == 2:  # the second app has met the table that is being made
                making.commit()
                first.migrate()
            return Database._open(second.database, charset)

        monkeypatch.setattr(second.database, "_open", open_and_note)
        assert second.migrate() == []
        assert len(opened) == 3  # the third one deploys
    second.close()
    first.close()
    beside.drop_database()


@pytest.mark.no_database
def test_all_that_migrations_of_ours_create_is_known_by_its_name():
    created = [each for part in ours() for step in steps(part) for each in step.statements if each.startswith("CREATE")]
    assert created
    assert [each for each in created if not list(made(each))] == []


@pytest.mark.no_database
def test_what_a_statement_creates_is_found_however_it_is_written():
    assert list(made("create table costs (\n    id bigint constraint costs_id primary key\n)")) == [
        Made("TABLE", "COSTS"),
        Made("CONSTRAINT", "COSTS_ID"),
    ]
    assert list(made("CREATE UNIQUE DESCENDING INDEX A ON B (C)")) == [Made("INDEX", "A")]
    assert list(made("CREATE ROLE A")) == []
