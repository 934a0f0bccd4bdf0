"""``fbtasks migrate --sql``: the script makes what the migration makes, and to print it changes nothing.

Run with isql of Firebird 3.0.11 as well, on the engine of version 5; here the statements are split as isql splits them.
"""

import json
import os
import re
import shutil
from contextlib import closing

import pytest
from support.draining import drain
from support.programs import command_line
from support.sql import adopt_file

from fbtasks import FBTasks, SchemaError
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.embedded("it compares files, which the same statements make on a server")

CATALOG = {
    "columns": "SELECT RDB$RELATION_NAME, RDB$FIELD_NAME, RDB$FIELD_POSITION, RDB$FIELD_SOURCE, RDB$NULL_FLAG,"
    " RDB$DEFAULT_SOURCE FROM RDB$RELATION_FIELDS WHERE RDB$SYSTEM_FLAG = 0",
    "domains": "SELECT RDB$FIELD_NAME, RDB$FIELD_TYPE, RDB$FIELD_LENGTH, RDB$FIELD_SUB_TYPE, RDB$CHARACTER_SET_ID,"
    " RDB$COLLATION_ID, RDB$NULL_FLAG, RDB$VALIDATION_SOURCE, RDB$DEFAULT_SOURCE, RDB$COMPUTED_SOURCE"
    " FROM RDB$FIELDS F WHERE RDB$SYSTEM_FLAG = 0 AND (RDB$FIELD_NAME NOT STARTING WITH 'RDB$' OR EXISTS("
    "SELECT 1 FROM RDB$RELATION_FIELDS WHERE RDB$FIELD_SOURCE = F.RDB$FIELD_NAME))",
    "relations": "SELECT RDB$RELATION_NAME, RDB$VIEW_SOURCE, RDB$RELATION_TYPE FROM RDB$RELATIONS"
    " WHERE RDB$SYSTEM_FLAG = 0",
    "triggers": "SELECT RDB$TRIGGER_NAME, RDB$RELATION_NAME, RDB$TRIGGER_TYPE, RDB$TRIGGER_SOURCE, RDB$SQL_SECURITY,"
    " RDB$TRIGGER_INACTIVE FROM RDB$TRIGGERS WHERE RDB$SYSTEM_FLAG = 0",
    "packages": "SELECT RDB$PACKAGE_NAME, RDB$PACKAGE_HEADER_SOURCE, RDB$PACKAGE_BODY_SOURCE, RDB$VALID_BODY_FLAG,"
    " RDB$SQL_SECURITY FROM RDB$PACKAGES WHERE RDB$SYSTEM_FLAG = 0",
    "functions": "SELECT RDB$FUNCTION_NAME, RDB$FUNCTION_SOURCE FROM RDB$FUNCTIONS"
    " WHERE RDB$SYSTEM_FLAG = 0 AND RDB$PACKAGE_NAME IS NULL",
    "indexes": "SELECT I.RDB$INDEX_NAME, I.RDB$RELATION_NAME, I.RDB$UNIQUE_FLAG, I.RDB$INDEX_TYPE, S.RDB$FIELD_NAME,"
    " S.RDB$FIELD_POSITION, I.RDB$EXPRESSION_SOURCE, I.RDB$CONDITION_SOURCE FROM RDB$INDICES I"
    " LEFT JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME WHERE I.RDB$SYSTEM_FLAG = 0",
    "constraints": "SELECT RDB$CONSTRAINT_NAME, RDB$CONSTRAINT_TYPE, RDB$RELATION_NAME FROM RDB$RELATION_CONSTRAINTS",
    "exceptions": "SELECT RDB$EXCEPTION_NAME, RDB$MESSAGE FROM RDB$EXCEPTIONS",
    "sequences": "SELECT RDB$GENERATOR_NAME, RDB$INITIAL_VALUE FROM RDB$GENERATORS WHERE RDB$SYSTEM_FLAG IN (0, 6)",
    "rights": "SELECT RDB$USER, RDB$PRIVILEGE, RDB$GRANT_OPTION, RDB$RELATION_NAME, RDB$FIELD_NAME, RDB$USER_TYPE,"
    " RDB$OBJECT_TYPE FROM RDB$USER_PRIVILEGES",
    "schema": "SELECT VERSION, NAME FROM QUEUE_SCHEMA",
    "steps": "SELECT FEATURE, VERSION, STEP FROM QUEUE_SCHEMA_STEP",
    "features": "SELECT NAME, VERSION, HOOKS, PACKAGE FROM QUEUE_FEATURE",
    "generation": "SELECT NUMBER, HASH, GEN_ID(QUEUE_GENERATION_SEQ, 0) FROM QUEUE_GENERATION",
    "collected": "SELECT NO_, TABLE_NAME FROM QUEUE_COLLECTED",
    "dispatch": "SELECT SUBSCRIPTION_ID FROM QUEUE_DISPATCH",
    "identity": "SELECT COUNT(*) FROM QUEUE_IDENTITY",
}
"""All that migrations make, in the system tables and in their own."""


def catalog(app):
    found = {}
    with connections.connect(app.settings.url) as connection, connection.cursor() as cursor:
        for name, query in CATALOG.items():
            rows = cursor.execute(query).fetchall()
            found[name] = sorted(tuple("" if each is None else str(each).strip() for each in row) for row in rows)
    return found


def run(url, script, transactions=None):
    """Runs a script, or its first transactions, as isql would with AUTODDL OFF."""
    terminator, done = ";", 0
    with connections.connect(DatabaseURL.parse(url)) as connection, connection.cursor() as cursor:
        statement = ""
        for line in script.splitlines():
            statement += f"{line}\n"
            if not statement.rstrip().endswith(terminator):
                continue
            text = statement.rstrip().removesuffix(terminator).strip()
            statement = ""
            text = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
            if match := re.fullmatch(r"SET TERM (\S+) ?", text):
                terminator = match[1]
            elif text == "COMMIT":
                connection.commit()
                done += 1
                if done == transactions:
                    return
            elif text.startswith("SELECT"):
                cursor.execute(text).fetchall()
            elif not text.startswith("SET "):
                connection.execute_immediate(text)


@pytest.fixture
def database(tmp_path):
    """Makes the url of a database: empty, or not there."""

    def make(name, *, empty=True):
        url = f"firebird://{tmp_path}/{name}.fdb"
        if empty:
            connections.connect(DatabaseURL.parse(url), create=True).close()
        return url

    return make


@pytest.fixture
def copied_to(tmp_path):
    """Copies a database, under a name that it is adopted under. Returns its url."""

    def copy(file, name):
        url = f"firebird://{shutil.copyfile(file, tmp_path / f'{name}.fdb')}"
        adopt_file(url)
        return url

    return copy


@pytest.fixture
def printed(capsys):
    """What ``fbtasks migrate --sql`` prints."""

    def run(url, *options):
        assert command_line("migrate", "--sql", "--url", url, *options) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.thorough
def test_the_script_makes_in_an_empty_database_what_the_migration_makes(database, template, copied_to, printed):
    missing = database("missing", empty=False)
    script = printed(missing)
    assert not os.path.exists(DatabaseURL.parse(missing).database), "nothing was created"
    scripted, migrated = database("scripted"), copied_to(template, "migrated")
    assert printed(scripted).replace("scripted.fdb", "missing.fdb") == script
    run(scripted, script)
    with closing(FBTasks("a", migrated)) as expected, closing(FBTasks("a", scripted, auto_migrate=False)) as app:
        assert catalog(app) == catalog(expected)
        assert app.migrate() == []
        result = app.task(name="add")(lambda n: n + 1).delay(1)
        drain(app)
        assert result.get(1) == 2
    assert printed(scripted) == f"-- {scripted}: up to date, nothing to run.\n"


@pytest.mark.thorough
def test_of_a_queue_that_is_there_it_has_what_is_missing(database, copied_to, tmp_path):
    """The features that it lacks, its packages anew, and the rights of roles on these."""
    core = database("core")
    with closing(FBTasks("core", core, features=())) as app:
        app.migrate()
    assert command_line("grant", "worker", "ANN", "--url", core) == 0
    urls = [copied_to(tmp_path / "core.fdb", name) for name in ("scripted", "migrated")]
    with closing(FBTasks("a", urls[0])) as app, closing(FBTasks("a", urls[1])) as expected:
        before = catalog(app)
        script = app.database.script().text("what is missing")
        assert catalog(app) == before, "nothing was changed"
        run(urls[0], script)
        expected.migrate()
        after = catalog(app)
        assert after != before
        wanted = catalog(expected)
        # Which the next migration drops, or a worker, as soon as no connection is older than the new ones.
        former = {name for name, *_ in after["packages"]} - {name for name, *_ in wanted["packages"]}
        assert former
        assert all(name.endswith("_1") for name in former)
        del after["packages"], wanted["packages"]
        after["rights"] = [each for each in after["rights"] if each[3] not in former and each[0] not in former]
        assert after == wanted
        assert app.database.script().transactions == []


def test_a_migration_that_was_cut_goes_on(database, printed):
    url = database("cut")
    script = printed(url)
    run(url, script, transactions=7)
    rest = printed(url)
    assert len(rest) < len(script)
    assert "CREATE TABLE QUEUE_SCHEMA (" not in rest
    run(url, rest)
    assert "nothing to run" in printed(url)
    with closing(FBTasks("a", url, auto_migrate=False)) as app:
        assert app.send_task("a").id == "1"


def test_the_command(project, database, printed):
    project.write("app.queue('mail', max_length=5)")
    assert "nothing to run" in project.run("migrate", "--sql", "-A", "proj").stdout
    url = database("new", empty=False)
    found = json.loads(printed(url, "--json"))
    assert found["url"] == url
    assert found["statements"][0].startswith("CREATE TABLE QUEUE_SCHEMA")
    project.env["FBTASKS_URL"] = url
    assert "Afterwards run: fbtasks migrate -A proj\n" in project.run("migrate", "--sql", "-A", "proj").stderr


def test_it_is_refused_where_the_migration_would_be(database):
    url = database("theirs")
    with connections.connect(DatabaseURL.parse(url)) as connection:
        connection.execute_immediate("CREATE TABLE QUEUE_TASK (X INTEGER)")
        connection.commit()
    with closing(FBTasks("a", url)) as app, pytest.raises(SchemaError, match="table QUEUE_TASK"):
        app.database.script()
