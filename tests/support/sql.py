"""Plain SQL on an app's database, past what the app does with it."""

import os
import re
from contextlib import closing, contextmanager

from fbtasks.database.packages import queries
from fbtasks.database.schema import numbered
from fbtasks.errors import ConflictError
from fbtasks.firebird import connections
from fbtasks.firebird.driver.translate import translate
from fbtasks.firebird.session import Session
from fbtasks.url import DatabaseURL

FEATURES = [] if os.environ.get("FBTASKS_TEST_FEATURES") == "none" else None
"""Those of the tests' apps and databases: all (None), or with FBTASKS_TEST_FEATURES=none the core alone."""
NOW = "QUEUE_NOW()"
"""The database's clock, as its tables have it."""


_PLAIN = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|MERGE|EXECUTE|CREATE (TABLE|SEQUENCE|DOMAIN))\b(?!.*(MON\$|CURRENT_CONNECTION))",
    re.DOTALL,
)
"""What any connection may do: no DDL that a table that is in use may refuse, and nothing about connections."""


@contextmanager
def _connection(app, statement):
    """One of the app's own connections where any will do: to open one costs more than most statements."""
    if not _PLAIN.match(statement):
        with app.connect() as connection:
            yield connection
        return
    app.database.make_ready()
    with app.database.session() as session:
        if not session.alive():  # which is for the test to find out
            with app.connect() as connection:
                yield connection
            return
        try:
            yield session.connection
        finally:
            if session.connection.main_transaction.is_active():
                session.connection.rollback()


def named(statement):
    """*statement* with the packages of a new queue, for what runs it past the functions here."""
    return numbered(statement, 1)


def rows(app, statement, *params):
    """All rows of a query."""
    with _connection(app, statement) as connection, connection.cursor() as cursor:
        return cursor.execute(numbered(statement, app.database.generation), params).fetchall()


def one(app, statement, *params):
    """The first column of the first row."""
    return rows(app, statement, *params)[0][0]


@contextmanager
def held(app, table, *numbers):
    """Rows are locked by a transaction of plain SQL, as soon as they can be; the block gets a function that ends it."""
    with app.connect() as connection:
        cursor = connection.cursor()
        statement = f"SELECT ID FROM {table} WHERE ID = ? WITH LOCK SKIP LOCKED"
        while not all(cursor.execute(statement, (number,)).fetchall() for number in numbers):
            connection.rollback()
        yield connection.rollback  # at the latest that is done when the connection is closed


def execute(app, statement, *params):
    """Runs a statement and commits; again when another transaction was in its way, such as a heartbeat's.

    Returns the rows of a query.
    """
    with _connection(app, statement) as connection, connection.cursor() as cursor:
        while True:
            try:
                cursor.execute(numbered(statement, app.database.generation), params)
                found = cursor.fetchall() if cursor.description else []
                connection.commit()
            except Exception as error:
                connection.rollback()
                if not isinstance(translate(error), ConflictError):
                    raise
            else:
                return found


def again(work):
    """What *work* returns when no other transaction is in its way."""
    while True:
        try:
            return work()
        except ConflictError:
            continue


def kill_connection(app, number):
    """Ends the connection *number* (of ``CURRENT_CONNECTION`` or ``info.id``), as an administrator may."""
    execute(app, f"DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID = {number}")


def table_reads(session, table):
    """How many rows of *table* this session has read so far: in the order of the table, and through an index."""
    with session.connection.cursor() as cursor:
        sql = "SELECT RDB$RELATION_ID FROM RDB$RELATIONS WHERE RDB$RELATION_NAME = ?"
        number = cursor.execute(sql, (table,)).fetchone()[0]
    session.connection.rollback()
    for stats in session.connection.info.get_table_access_stats():
        if stats.table_id == number:
            return stats.sequential or 0, stats.indexed or 0
    return 0, 0


def plans(session, procedure):
    """The plan of each cursor and each query in *procedure*, as the engine compiled them when the session ran it."""
    with session.connection.cursor() as cursor:
        sql = (
            "SELECT MON$EXPLAINED_PLAN FROM MON$COMPILED_STATEMENTS WHERE MON$PACKAGE_NAME = ? AND MON$OBJECT_NAME = ?"
        )
        package, _, name = procedure.partition(".")
        found = cursor.execute(sql, (f"{package}_{session.generation}", name)).fetchall()
    session.connection.rollback()
    assert found, f"{procedure} has not been compiled"
    return [plan for (text,) in found for plan in re.split(r"\n(?=\S)", text.strip())]


def out_of_order(session, procedure, table, index, bounds):
    """The plans in *procedure* that read *table*, but neither a range of *index* in its order nor one row by its key.

    *bounds* is a pattern: by how much of the key of the index a range is bounded at the least.
    """
    reads = f'Table "{table}"'
    found = [plan for plan in plans(session, procedure) if reads in plan]
    assert any(plan.startswith("Cursor ") for plan in found)
    in_order = rf'{reads}(?: as "[\w ]+")? Access By ID\n +-> Index "{index}" Range Scan \({bounds}'
    return [
        plan
        for plan in found
        if not re.search(rf'{in_order}|Index "RDB\$PRIMARY\d+" Unique Scan', plan)
        or "Sort" in plan
        or "Full Scan" in plan
    ]


def page_fetches(session):
    """How many pages this session has asked its cache for so far."""
    return session.connection.info.fetches


def fetches_of(session, asked):
    """Pages that each of the questions that are *asked*, by names, fetches when it is asked once more."""
    found = {}
    for what, ask in asked:
        ask()
        before = page_fetches(session)
        ask()
        found[what] = page_fetches(session) - before
    return found


def adopt(session):
    """Has a copy of a database taken for the original. Nothing has been read of sources that it could forget."""
    session.run(lambda t: t.execute("adopt"))


def adopt_file(url):
    """Makes the database a file of its own, as after a copy."""
    parsed = DatabaseURL.parse(str(url))
    with closing(Session(connections.connect(parsed), parsed, queries())) as session:
        adopt(session)
