"""Counts what a database does, for all who are connected to it."""

from contextlib import closing, contextmanager
from typing import NamedTuple
from unittest import mock

from firebird.driver.core import Connection

from fbtasks.firebird import connections
from fbtasks.firebird.session import Transaction
from fbtasks.url import DatabaseURL

ATTACHED = """
    SELECT A.MON$ATTACHMENT_ID, S.MON$PAGE_FETCHES, S.MON$PAGE_WRITES
        FROM MON$ATTACHMENTS A JOIN MON$IO_STATS S ON S.MON$STAT_ID = A.MON$STAT_ID
        WHERE A.MON$ATTACHMENT_ID <> CURRENT_CONNECTION AND A.MON$SYSTEM_FLAG = 0"""
OWN = ATTACHED.replace("<>", "=")


class Count(NamedTuple):
    """What was done: pages fetched and written by all processes, and statements of this one."""

    fetches: int
    writes: int
    statements: int


class Counter:
    """Counts for one database. The connection that asks is not counted."""

    def __init__(self, url):
        self._database = DatabaseURL.parse(url)
        self._connection = connections.connect(self._database)
        self._ended = {}
        self._statements = 0

    def close(self):
        """Ends the connection that asks."""
        self._connection.close()

    @contextmanager
    def counting(self):
        """For the block: statements of this process count, and what its connections have done that it closes."""
        close, counter = Connection.close, self

        def noted(connection):
            if connection is not counter._connection and not connection.is_closed():
                counter._note(connection)
            close(connection)

        with mock.patch.object(Connection, "close", noted), self._statements_counted():
            yield

    def of(self, act):
        """What *act* costs, which is called."""
        before, statements = self._look(), self._statements
        act()
        fetches = writes = 0
        for number, (fetched, written) in self._look().items():
            earlier = before.get(number, (0, 0))
            fetches += fetched - earlier[0]
            writes += written - earlier[1]
        return Count(fetches, writes, self._statements - statements)

    def _look(self):
        """What each connection has done so far, those of this process that have ended too."""
        with closing(self._connection.cursor()) as cursor:
            attached = {number: (fetched, written) for number, fetched, written in cursor.execute(ATTACHED).fetchall()}
        self._connection.rollback()
        return self._ended | attached

    def _note(self, connection):
        """Notes what *connection* has done, which is about to end."""
        with closing(connection.transaction_manager()) as transaction, closing(transaction.cursor()) as cursor:
            for number, fetched, written in cursor.execute(OWN).fetchall():
                self._ended[number] = fetched, written

    @contextmanager
    def _statements_counted(self):
        def counted(function):
            def count(*args, **kwargs):
                self._statements += 1
                return function(*args, **kwargs)

            return count

        names = ("rows", "parts", "sql", "packed", "script")
        with mock.patch.multiple(Transaction, **{name: counted(getattr(Transaction, name)) for name in names}):
            yield
