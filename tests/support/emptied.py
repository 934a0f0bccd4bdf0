"""A database that one test after another gets, emptied in between, with the connection and its prepared statements.

To make a database, to open it and to compile the statements of a worker costs ten times as much as most tests do with
it. A test may make tables of an application, with all that belongs to them: they are dropped behind it. What cannot be
emptied is not lent again: a database that something is still connected to, one that is another file by now, and one of
which rights were granted. A test cannot change the schema of the queue: an index cannot be dropped while the statements
of the kept connection use it, and those do not run a new trigger.
"""

import os
import shutil
from contextlib import ExitStack, closing, contextmanager
from unittest import mock

from fbtasks import FBTasks
from fbtasks.database.packages import queries
from fbtasks.features.sources.store.tables import quoted
from fbtasks.firebird import connections
from fbtasks.firebird.identity import ask
from fbtasks.firebird.pool import _idle

from .databases import database
from .sql import FEATURES, adopt

REFUSE = (
    "CREATE EXCEPTION EX_TEST_DDL 'This database is lent to other tests, too. A test that changes the schema of the"
    """ queue is to be marked with @pytest.mark.usefixtures("url").'""",
    "CREATE SEQUENCE TEST_DDL",
    """
    CREATE TRIGGER TEST_DDL AFTER ANY DDL STATEMENT AS
      DECLARE NAME VARCHAR(63); DECLARE KIND VARCHAR(20); DECLARE N BIGINT;
    BEGIN
      NAME = RDB$GET_CONTEXT('DDL_TRIGGER', 'OBJECT_NAME');
      KIND = RDB$GET_CONTEXT('DDL_TRIGGER', 'OBJECT_TYPE');
      IF ((NAME STARTING WITH 'QUEUE_' OR NAME STARTING WITH 'FBTASKS') AND NAME NOT STARTING WITH 'QUEUE_ON_'
        OR EXISTS (SELECT 1 FROM RDB$INDICES WHERE RDB$INDEX_NAME = :NAME AND RDB$RELATION_NAME STARTING WITH 'QUEUE_'
          AND :KIND = 'INDEX')
        OR EXISTS (SELECT 1 FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = :NAME AND :KIND = 'TRIGGER'
          AND (RDB$RELATION_NAME IS NULL OR RDB$RELATION_NAME STARTING WITH 'QUEUE_'))) THEN EXCEPTION EX_TEST_DDL;
      N = GEN_ID(TEST_DDL, 1);
    END
    """,
)
"""Triggers that refuse a change of the queue's schema, and count all others."""
CHANGES = "SELECT GEN_ID(TEST_DDL, 0), (SELECT COUNT(*) FROM RDB$USER_PRIVILEGES) FROM RDB$DATABASE"
OBJECTS = """
SELECT 'TRIGGER', TRIM(RDB$TRIGGER_NAME) FROM RDB$TRIGGERS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT IIF(RDB$VIEW_BLR IS NULL, 'TABLE', 'VIEW'), TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS
    WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'PACKAGE', TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'PROCEDURE', TRIM(RDB$PROCEDURE_NAME) FROM RDB$PROCEDURES
    WHERE RDB$SYSTEM_FLAG = 0 AND RDB$PACKAGE_NAME IS NULL
UNION ALL SELECT 'FUNCTION', TRIM(RDB$FUNCTION_NAME) FROM RDB$FUNCTIONS
    WHERE RDB$SYSTEM_FLAG = 0 AND RDB$PACKAGE_NAME IS NULL
UNION ALL SELECT 'EXCEPTION', TRIM(RDB$EXCEPTION_NAME) FROM RDB$EXCEPTIONS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'SEQUENCE', TRIM(RDB$GENERATOR_NAME) FROM RDB$GENERATORS WHERE RDB$SYSTEM_FLAG = 0
UNION ALL SELECT 'DOMAIN', TRIM(RDB$FIELD_NAME) FROM RDB$FIELDS
    WHERE COALESCE(RDB$SYSTEM_FLAG, 0) = 0 AND RDB$FIELD_NAME NOT STARTING WITH 'RDB$'
UNION ALL SELECT 'ROLE', TRIM(RDB$ROLE_NAME) FROM RDB$ROLES WHERE COALESCE(RDB$SYSTEM_FLAG, 0) = 0
"""
"""All that can be dropped, but for what goes with it."""
ORDER = ("TRIGGER", "PACKAGE", "PROCEDURE", "FUNCTION", "VIEW", "TABLE", "EXCEPTION", "SEQUENCE", "DOMAIN", "ROLE")
"""The kinds of what is dropped, in that order."""
CONNECTED = "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$SYSTEM_FLAG = 0"
TABLES = "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0 AND RDB$VIEW_BLR IS NULL"
SEQUENCES = "SELECT TRIM(RDB$GENERATOR_NAME) FROM RDB$GENERATORS WHERE RDB$SYSTEM_FLAG = 0"
MOST = 100
"""Tests after which a new file is begun: what was deleted leaves its traces in one."""


class Emptied:
    """Lends an app of such a database to one test at a time. Copies of *template*, in *folder*, are the databases."""

    def __init__(self, template, folder):
        self._master = folder / "master.fdb"
        self._folder = folder
        self._count = self._lent = 0
        self._session = None
        self._drops = ExitStack()
        shutil.copyfile(template, self._master)
        with (
            closing(FBTasks("maker", f"firebird://{self._master}", features=FEATURES)) as app,
            app.connect() as connection,
        ):
            for statement in REFUSE:
                connection.execute_immediate(statement)
                connection.commit()
            with connection.cursor() as cursor:
                tables = [table for (table,) in cursor.execute(TABLES).fetchall()]
                content = {table: cursor.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
                sequences = [name for (name,) in cursor.execute(SEQUENCES).fetchall()]
                self._objects = set(cursor.execute(OBJECTS).fetchall())
                self._changes = cursor.execute(CHANGES).fetchall()
                values = {
                    name: cursor.execute(f"SELECT GEN_ID({name}, 0) FROM RDB$DATABASE").fetchone()[0]
                    for name in sequences
                }
        self._kept = {table: found for table, found in content.items() if found}
        lines = [f"DELETE FROM {table};" for table in sorted(tables, key=_tasks_first) if table not in self._kept]
        lines += [f"N = GEN_ID({name}, {value} - GEN_ID({name}, 0));" for name, value in values.items()]
        self._empty = f"EXECUTE BLOCK AS DECLARE N BIGINT; BEGIN {' '.join(lines)} END"
        counts = (f"(SELECT COUNT(*) FROM {table})" for table in tables)
        self._rows = f"SELECT {' + '.join(counts)} FROM RDB$DATABASE"
        self._total = sum(map(len, content.values()))

    @contextmanager
    def app(self):
        """An app with an empty queue."""
        app = self._again() if self._session is not None else self._anew()
        yield app
        session = _taken(app)
        app.close()
        self._session = None
        if session is not None:
            if self._lent < MOST and self._is_emptied(session):
                self._session = session
            else:
                session.close()

    def close(self):
        if self._session is not None:
            self._session.close()
        self._drops.close()

    def _anew(self):
        self._drops.close()
        self._count += 1
        self._lent = 1
        url = self._drops.enter_context(database(self._folder / f"queue{self._count}.fdb", self._master))
        self._file = os.stat(url.database)
        app = FBTasks("test", url, features=FEATURES)
        with app.database.session() as session:
            adopt(session)
            with session.transaction() as transaction:
                self._kept["QUEUE_IDENTITY"] = _ask(session, transaction, "SELECT * FROM QUEUE_IDENTITY")
        return app

    def _again(self):
        """An app whose first connection is the one that is there."""
        assert self._session is not None
        self._lent += 1
        kept = self._session
        app = FBTasks("test", kept.url, features=FEATURES)

        def connect(url, *, met, **_):
            met(ask(kept.connection))
            return kept.connection

        with mock.patch.object(connections, "connect", connect):
            session = app.database._open()
        session.statements, session._managers = kept.statements, kept._managers
        app.database._pooled()  # which opens others
        with mock.patch.object(app.database, "_open", return_value=session):
            app.database.make_ready()
        return app

    def _is_emptied(self, session):
        """Whether the database is as a new one, once it has been emptied."""
        prepared, known = session.statements["prepared"], queries(session.generation)
        try:
            if not os.path.samestat(os.stat(session.url.database), self._file):
                return False
            if any(statement.sql != known.get(name, name) for name, statement in prepared.items()):
                return False
            if session.connection.main_transaction.is_active():
                session.connection.rollback()
            with session.transaction() as transaction:
                if _ask(session, transaction, CONNECTED) != [(1,)]:
                    return False
                changed = _ask(session, transaction, CHANGES) != self._changes
                _ask(session, transaction, self._empty)
                for table, content in self._kept.items():
                    self._restore(session, transaction, table, content)
                is_empty = _ask(session, transaction, self._rows) == [(self._total,)]
            return is_empty and (not changed or self._drop(session))
        except Exception:  # it is lost, or something in it is locked
            return False

    def _drop(self, session):
        """Drops what a test has made beside the queue. Returns whether no rights are left of it."""
        with session.transaction() as transaction:
            made = [(kind.strip(), name) for kind, name in {*_ask(session, transaction, OBJECTS)} - self._objects]
        with session.transaction() as transaction:
            for kind, name in sorted(made, key=lambda each: ORDER.index(each[0])):
                transaction.script(f"DROP {kind} {quoted(name)}")
        with session.transaction() as transaction:
            _ask(session, transaction, "SELECT GEN_ID(TEST_DDL, -GEN_ID(TEST_DDL, 0)) FROM RDB$DATABASE")
            return _ask(session, transaction, CHANGES) == self._changes

    def _restore(self, session, transaction, table, content):
        """Has *table* hold *content*."""
        if sorted(_ask(session, transaction, f"SELECT * FROM {table}")) != sorted(content):
            _ask(session, transaction, f"DELETE FROM {table}")
            for row in content:
                _ask(session, transaction, f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)


def _tasks_first(table):
    """Deleting a task gives back what it holds."""
    return table != "QUEUE_TASK", table


def _taken(app):
    """One of the connections in the pool of *app*, taken out of it; None when there is none, or one is lent."""
    pool = app.database._pool
    own = [each for each, (its, _) in _idle.items() if its is pool and not its._lent]
    for session in own[-1:]:
        del _idle[session]
        return session
    return None


def _ask(session, transaction, sql, *values):
    """All rows of *sql*; the statement is kept with the others of the session."""
    with closing(transaction.driver.cursor()) as cursor:
        prepared = session.statements["prepared"]
        if sql not in prepared:
            prepared[sql] = cursor.prepare(sql)
        cursor.execute(prepared[sql], values)
        return list(cursor.fetchall()) if cursor.description else []
