"""`fbtasks migrate --anew`: the queue of any version is dropped and made again, beside what the application has."""

import pytest
from support.sql import execute, one, rows

from fbtasks import FBTasks, SchemaError
from fbtasks.database import migrate
from fbtasks.database.schema import steps

OWN = "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0"


@pytest.fixture
def former(app):
    """A queue of a version before there were packages, with procedures that call each other."""
    app.migrate()
    for statement in (
        "CREATE PROCEDURE QUEUE_ENQUEUE_V1 AS BEGIN END",
        "CREATE PROCEDURE QUEUE_CLAIM_V1 AS BEGIN EXECUTE PROCEDURE QUEUE_ENQUEUE_V1; END",
        "ALTER PROCEDURE QUEUE_ENQUEUE_V1 AS BEGIN EXECUTE PROCEDURE QUEUE_CLAIM_V1; END",
        "CREATE TABLE MINE (ID INTEGER NOT NULL PRIMARY KEY)",
        "CREATE TABLE QUEUE_OF_MINE (ID INTEGER)",
        "CREATE TRIGGER QUEUE_ON_7 FOR MINE AFTER INSERT AS BEGIN INSERT INTO QUEUE_CHANGE (ID) VALUES (1); END",
        "INSERT INTO QUEUE_SCHEMA (VERSION, NAME, APPLIED_TIME) VALUES (84, 'progress', QUEUE_NOW())",
        "DELETE FROM QUEUE_SCHEMA WHERE VERSION > 84",
        "INSERT INTO MINE (ID) SELECT 1 FROM RDB$DATABASE WHERE 1 = 0",
    ):
        execute(app, statement)
    app.close()
    return FBTasks("former", app.settings.url)


def test_a_former_version_is_refused_with_the_remedy(former):
    with pytest.raises(SchemaError, match=r"version 84.* fbtasks migrate --anew"):
        former.task(name="t")(print).delay()


def test_it_is_made_anew_beside_what_the_application_has(former, project):
    said = project.run("migrate", "--anew").stdout
    assert f"migrated to version {', '.join(str(n) for n in dict.fromkeys(step.version for step in steps()))}" in said
    assert rows(former, "SELECT ID FROM MINE") == []
    assert one(former, "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME IN ('MINE', 'QUEUE_OF_MINE')") == 2
    assert one(former, "SELECT COUNT(*) FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = 'QUEUE_ON_7'") == 0
    assert former.task(name="t")(print).delay().state == "PENDING"


def test_while_tasks_live_nothing_is_dropped(app, project):
    app.task(name="t")(print).delay()
    before = one(app, OWN)
    app.close()
    found = project.run("migrate", "--anew", check=False)
    assert found.returncode == 1
    assert "it holds 1 task." in found.stderr
    assert one(app, OWN) == before


def test_what_depends_on_it_is_named(app, project):
    app.migrate()
    execute(
        app,
        "CREATE PROCEDURE MINE AS BEGIN EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('paid'); END",
    )
    app.close()
    found = project.run("migrate", "--anew", check=False)
    assert found.returncode == 1
    assert "since these of the application depend on it: procedure MINE." in found.stderr
    with app.database.session() as session:
        assert migrate.current_version(session) == migrate.latest_version()
