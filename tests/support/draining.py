"""Drains that leave their connection open for the next one."""

from collections.abc import Iterable
from functools import partial
from unittest import mock

from fbtasks import FBTasks, testing
from fbtasks.database.database import Database
from fbtasks.firebird.session import Session


def drain(app: FBTasks, queues: Iterable[str] | None = None) -> None:
    """``fbtasks.testing.drain``, by a worker that borrows a connection of its app's pool instead of opening its own.

    It finds there the statements that the last one has prepared: to connect and to compile them costs more than all
    else that most tests do.
    """
    with mock.patch.object(app.database, "open", partial(_borrowed, app.database)):
        testing.drain(app, queues)


def _borrowed(database: Database, charset: str | None = None) -> Session:
    """A session that goes back to the pool when it is closed; one of its own where that is for a *charset*."""
    database.make_ready(create=False)
    if charset not in (None, "UTF8"):
        return database._open(charset)
    pool = database._pooled()
    session = pool.acquire()

    def give_back(*, lost: bool = False) -> None:
        del session.close
        session.meanwhile = None
        pool.release(session, broken=lost or not session.alive())

    session.close = give_back
    return session
