"""Drains that leave their connection open for the next one."""

from functools import partial
from unittest import mock

from fbtasks import testing


def drain(app, queues=None):
    """``fbtasks.testing.drain``, by a worker that borrows a connection of its app's pool instead of opening its own.

    It finds there the statements that the last one has prepared: to connect and to compile them costs more than all
    else that most tests do.
    """
    with mock.patch.object(app.database, "open", partial(_borrowed, app.database)):
        testing.drain(app, queues)


def _borrowed(database, charset=None):
    """A session that goes back to the pool when it is closed; one of its own where that is for a *charset*."""
    database.make_ready(create=False)
    if charset not in (None, "UTF8"):
        return database._open(charset)
    pool = database._pooled()
    session = pool.acquire()

    def give_back(*, lost=False):
        del session.close
        session.meanwhile = None
        pool.release(session, broken=lost or not session.alive())

    session.close = give_back
    return session
