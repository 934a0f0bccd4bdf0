"""Packages are made under a new number and put into use; what has the former ones goes on, and then they go."""

from contextlib import closing

import pytest
from support.programs import command_line
from support.sql import execute, one, rows

from fbtasks import FBTasks, SchemaError
from fbtasks.database import generations, grants, packages
from fbtasks.database.schema import ours
from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded
from fbtasks.url import DatabaseURL

PACKAGES = "SELECT TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_WORKER_'"


@pytest.fixture
def next_text(monkeypatch):
    """Makes packages of another text with the next migration, of this schema."""

    def change():
        text = packages.packages()
        more = text["FBTASKS_UPKEEP"][0]._replace(
            name="ONE_MORE", head="PROCEDURE ONE_MORE", body="\nBEGIN\nEND", private=False
        )
        changed = {**text, "FBTASKS_UPKEEP": (*text["FBTASKS_UPKEEP"], more)}
        monkeypatch.setattr(packages, "packages", lambda *_: changed)
        generations.fingerprint.cache_clear()

    yield change
    monkeypatch.undo()
    generations.fingerprint.cache_clear()


def names(app):
    return sorted(name for (name,) in rows(app, PACKAGES))


@pytest.fixture
def migrated(url, capsys):
    """Runs ``fbtasks migrate``. Returns what it says."""

    def run():
        capsys.readouterr()
        assert command_line("migrate", "--url", url) == 0
        return capsys.readouterr().out.removeprefix(f"{DatabaseURL.parse(url)}: ")

    return run


@pytest.mark.thorough
def test_what_was_connected_before_goes_on_and_claims_nothing_more(app, next_text, url, migrated):
    add = app.task(name="add")(lambda a, b: a + b)
    running, waiting = add.delay(1, 2), add.delay(3, 4)
    former = app.database.open()
    sql = app.connect()
    cursor = sql.cursor()
    enqueue = cursor.prepare("SELECT ID FROM FBTASKS.ENQUEUE('add', '[5, 6]')")
    cursor.execute(enqueue).fetchall()
    sql.commit()
    (claim,) = former.run(lambda t: tasks.claim(t, 1, "default", 1))
    with closing(app.database.open()) as session:
        grants.grant(session, "worker", "ANN")
    app.migrate()
    assert migrated() == "up to date.\n"
    assert names(app) == ["FBTASKS_WORKER_1"]
    next_text()
    assert migrated() == "made the packages anew, and all else is up to date.\n"
    held = "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$USER_PRIVILEGES WHERE RDB$USER = 'FBTASKS_WORKER'"
    assert {("FBTASKS_WORKER_1",), ("FBTASKS_WORKER_2",)} <= set(rows(app, held))
    assert one(app, "SELECT NUMBER FROM QUEUE_GENERATION") == 2
    assert names(app) == ["FBTASKS_WORKER_1", "FBTASKS_WORKER_2"]
    assert former.run(lambda t: tasks.claim(t, 1, "default", 10)) == []
    former.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Succeeded("application/json", b"3"))]))
    assert running.get(timeout=0) == 3
    cursor.execute(enqueue).fetchall()
    sql.commit()
    app.close()
    with closing(FBTasks("later", url)) as later, closing(later.database.open()) as session:
        assert session.run(lambda t: tasks.claim(t, 1, "default", 10))[0].id == int(waiting.id)
        assert one(later, "SELECT COUNT(*) FROM QUEUE_TASK") == 3
        assert generations.drop_former(session) == 0, "a connection from before may call them"
        cursor.close()
        sql.close()
        former.close()
        assert generations.drop_former(session) > 20
        assert names(later) == ["FBTASKS_WORKER_2"]
    assert migrated() == "up to date.\n"


@pytest.mark.thorough
def test_what_a_cut_migration_has_left_goes_with_the_next(app, next_text, monkeypatch):
    app.migrate()
    next_text()
    with closing(app.database.open()) as session, monkeypatch.context() as patched:
        patched.setattr(packages, "triggers", lambda *_: ("CREATE OR ALTER TRIGGER NONSENSE",))
        with pytest.raises(Exception, match=r"NONSENSE|Unexpected end"):
            generations.renew(session, ours()[1:])
    assert one(app, "SELECT NUMBER FROM QUEUE_GENERATION") == 1
    assert names(app) == ["FBTASKS_WORKER_1", "FBTASKS_WORKER_2"]
    app.close()
    app.migrate()
    app.close()
    app.migrate()
    assert names(app) == ["FBTASKS_WORKER_3"]


def test_a_release_leaves_the_packages_of_a_later_one_in_use(app, next_text):
    app.migrate()
    next_text()
    execute(app, "INSERT INTO QUEUE_SCHEMA VALUES (999, 'later', CURRENT_TIMESTAMP)")
    with pytest.raises(SchemaError, match="Upgrade fbtasks here"):
        app.migrate()
    execute(app, "DELETE FROM QUEUE_SCHEMA WHERE VERSION = 999")
    assert one(app, "SELECT NUMBER FROM QUEUE_GENERATION") == 1
    assert names(app) == ["FBTASKS_WORKER_1"]
