"""Databases whose default collation compares by the rules of a language: nothing of ours takes it."""

import re
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import kombu
import pytest
from support.capture import listen, logged
from support.databases import database
from support.draining import drain
from support.sql import execute, one, rows

import fbtasks.kombu
from fbtasks import FBTasks, chain
from fbtasks.database.packages import queries
from fbtasks.database.schema import migrations, ours, statements, typed
from fbtasks.firebird import connections

ROOT = Path(__file__).parents[2]
TYPE = re.compile(
    r"\b(?P<cast>AS )?(?:(?:VAR)?CHAR ?\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|BLOB SUB_TYPE (?:TEXT|1))"
    r"(?P<set> CHARACTER SET [\w{}]+)?(?P<more>(?: NOT NULL| UNIQUE| PRIMARY KEY)* COLLATE \w+)?"
    r"(?P<end>\)(?: COLLATE \w+)?\s*(?:[<>=]|IN\b|LIKE|STARTING|CONTAINING|SIMILAR|IS (?:NOT )?DISTINCT|BETWEEN))?"
)
"""A type of texts, and whether a cast to it is compared."""
COLLATIONS = {
    "UNICODE": None,
    "UNICODE_CI": None,
    "UNICODE_CI_AI": None,
    "GERMAN": "CREATE COLLATION GERMAN FOR UTF8 FROM UNICODE CASE INSENSITIVE ACCENT INSENSITIVE 'LOCALE=de_DE'",
}


@contextmanager
def sorts(path, collation, charset="UTF8"):
    """An app on a new database, in which texts of a character set have another default collation."""
    with database(path) as url:
        with closing(connections.connect(url)) as made:
            for statement in (
                COLLATIONS.get(collation),
                f"ALTER CHARACTER SET {charset} SET DEFAULT COLLATION {collation}",
            ):
                if statement:
                    made.execute_immediate(statement)
                    made.commit()
        options = {} if charset == "UTF8" else {"charset": charset}
        with closing(FBTasks("sorted", replace(url, options=options))) as app:
            app.migrate()
            yield app


@pytest.fixture(scope="module")
def sorted_app(tmp_path_factory, template):
    with sorts(tmp_path_factory.mktemp("sorted") / "sorted.fdb", "UNICODE_CI_AI") as app:
        yield app


@pytest.mark.thorough
def test_nothing_in_the_schema_takes_a_default_collation(sorted_app):
    """NONE, OCTETS and ASCII have one collation each, which compares bytes, and the engine makes no other for them."""
    found = rows(
        sorted_app,
        """
        SELECT TRIM(R.RDB$RELATION_NAME), TRIM(R.RDB$FIELD_NAME), F.RDB$CHARACTER_SET_ID,
                COALESCE(R.RDB$COLLATION_ID, F.RDB$COLLATION_ID, 0)
            FROM RDB$RELATION_FIELDS R JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE
            WHERE R.RDB$SYSTEM_FLAG = 0 AND F.RDB$CHARACTER_SET_ID IS NOT NULL
        UNION ALL SELECT TRIM(P.RDB$PROCEDURE_NAME), TRIM(P.RDB$PARAMETER_NAME), F.RDB$CHARACTER_SET_ID,
                COALESCE(P.RDB$COLLATION_ID, F.RDB$COLLATION_ID, 0)
            FROM RDB$PROCEDURE_PARAMETERS P JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = P.RDB$FIELD_SOURCE
            WHERE P.RDB$SYSTEM_FLAG = 0 AND F.RDB$CHARACTER_SET_ID IS NOT NULL
        UNION ALL SELECT TRIM(A.RDB$FUNCTION_NAME), TRIM(COALESCE(A.RDB$ARGUMENT_NAME, 'returned')),
                F.RDB$CHARACTER_SET_ID, COALESCE(A.RDB$COLLATION_ID, F.RDB$COLLATION_ID, 0)
            FROM RDB$FUNCTION_ARGUMENTS A JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = A.RDB$FIELD_SOURCE
            WHERE A.RDB$SYSTEM_FLAG = 0 AND F.RDB$CHARACTER_SET_ID IS NOT NULL
        UNION ALL SELECT 'domain', TRIM(F.RDB$FIELD_NAME), F.RDB$CHARACTER_SET_ID, COALESCE(F.RDB$COLLATION_ID, 0)
            FROM RDB$FIELDS F
            WHERE F.RDB$SYSTEM_FLAG = 0 AND F.RDB$FIELD_NAME STARTING WITH 'QUEUE_'
                AND F.RDB$CHARACTER_SET_ID IS NOT NULL
        """,
    )
    assert len(found) > 300
    octets, ascii_, utf8 = 1, 2, 4
    assert [each for each in found if each[2] not in (octets, ascii_, utf8) or each[3] != 0] == []


def texts_of_sql():
    """All SQL of the package: of the files, and what the modules have in them."""
    for part in ours():
        for name in migrations(part).values():
            yield name, part.text(name)
    yield "queries.sql", "\n".join(queries().values())
    for path in sorted((ROOT / "fbtasks").rglob("*.py")):
        yield path.name, path.read_text("utf-8")


def test_every_type_of_texts_in_sql_names_its_character_set_and_collation():
    """A cast has no room for a collation: what is compared with it says which one."""
    found = []
    for name, text in texts_of_sql():
        for match in TYPE.finditer(re.sub(r"--[^\n]*", "", text)):
            has_set = match["set"] or (match["cast"] and name.endswith(".py"))  # of numbers and dates, into bytes
            names_it = match["more"] or match["set"] != " CHARACTER SET UTF8"
            if match["cast"]:
                names_it = not match["end"] or "COLLATE" in match["end"] or match["set"] != " CHARACTER SET UTF8"
            if not has_set or not names_it:
                found.append(f"{name}: {match[0]}")
    assert found == []


def test_every_text_in_our_sql_is_of_ascii():
    """Otherwise it has the default collation of the connection's character set, and the comparison with it as well."""
    for sql in (
        *(each for part in ours() for name in migrations(part).values() for each in statements(part.text(name))),
        *queries().values(),
    ):
        assert typed(sql) == sql
    assert typed("A = 'it''s' -- isn't\nB = _UTF8 x'41' C = TIMESTAMP '2000-01-01' \"D'\" || 'e'") == (
        "A = _ASCII 'it''s' -- isn't\nB = _UTF8 x'41' C = TIMESTAMP '2000-01-01' \"D'\" || _ASCII 'e'"
    )


def run_core(app, wait_for):
    """What the features do that keep letters of their own: moments, gates, chains, messages."""
    tried = []
    app.limit("at once", at_once=1)

    @app.task(name="add")
    def add(a, b):
        return a + b

    @app.task(name="limited", limits={"at once": None})
    def limited(a, b):
        return a + b

    @app.task(name="again", bind=True, unique=True, max_retries=1)
    def again(self, value):
        tried.append(value)
        if len(tried) == 1:
            raise self.retry(countdown=3600)
        return value

    app.add_periodic("add", every=3600, args=(1, 1))
    late = add.apply_async((1, 2), countdown=3600)
    past = [task.apply_async((1, 2), eta=datetime.now(UTC)) for task in (add, limited)]
    named = [add.apply_async((2, 2), task_id=name, countdown=0.05) for name in ("Task", "TASK", "tásk")]
    steps = chain(add.s(1, 2), add.s(3).set(countdown=0.05), limited.s(4).set(countdown=0.05)).delay()
    first = again.delay("x")
    wait_for(lambda: drain(app) or all(each.ready() for each in (*named, steps)))
    assert ([each.get(timeout=1) for each in named], steps.get(timeout=1)) == ([4, 4, 4], 10)
    assert (late.status, [each.get(timeout=1) for each in past]) == ("PENDING", [3, 3])
    assert [name for (name,) in rows(app, "SELECT NAME FROM QUEUE_SCHEDULE")] == ["add"]
    second = again.delay("x")  # the first waits for its next try, and does not keep its place meanwhile
    drain(app)
    assert (first.status, second.get(timeout=1), tried) == ("RETRY", "x", ["x", "x"])
    execute(app, "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 HOUR TO NEXT_TIME)")
    drain(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY WHERE NAME = 'add' AND STATE = 10") == 7

    def queue(name):
        return kombu.Queue(name, kombu.Exchange("x"), routing_key=name)

    try:
        with kombu.Connection(app.settings.url.reveal()) as connection:
            for name in ("Mail", "mail"):
                queue(name)(connection.default_channel).declare()
            for body in ("soon", "now"):
                headers = {"eta": None}
                connection.Producer().publish(body, exchange="x", routing_key="mail", headers=headers)
            with connection.SimpleQueue(queue("mail")) as simple:
                got = []
                for _ in range(2):
                    message = simple.get(timeout=20)
                    got.append(message.payload)
                    message.ack()
            assert got == ["soon", "now"]
            assert queue("Mail")(connection.default_channel).queue_declare(passive=True).message_count == 0
    finally:
        fbtasks.kombu.close_all()


def test_the_core_runs_where_case_and_accents_do_not_count(sorted_app, wait_for):
    run_core(sorted_app, wait_for)


def test_long_texts_of_a_change_keep_their_accents(sorted_app):
    text = '日\u0301"\\' * 2000
    execute(sorted_app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, A VARCHAR(8000), B VARCHAR(8000))")
    listen(sorted_app, "T", insert=True, columns=("A", "B"))
    execute(sorted_app, "INSERT INTO T VALUES (1, ?, ?)", text, text)
    assert [change.new for change in logged(sorted_app)] == [{"ID": 1, "A": text, "B": text}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("charset", "collation"),
    [("UTF8", "UNICODE"), ("UTF8", "UNICODE_CI"), ("UTF8", "GERMAN"), ("WIN1252", "WIN_PTBR"), ("WIN1252", "PXW_INTL")],
)
def test_the_core_runs_in_any_collation(tmp_path, wait_for, charset, collation):
    """The last two are a dictionary's, for the connections of an application whose URL names that character set."""
    with sorts(tmp_path / "sorted.fdb", collation, charset) as app:
        run_core(app, wait_for)
