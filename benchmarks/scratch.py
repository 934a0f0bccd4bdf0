"""A database of its own for a measurement that needs other tables than the queue's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Final

from benchmarks.database import NotMeasured, wait_for
from benchmarks.internals import connect, url_beside
from benchmarks.stopping import held

_OTHERS: Final = (
    "SELECT COUNT(*) FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION AND MON$SYSTEM_FLAG = 0"
)


@contextmanager
def scratch_database(url: str) -> Iterator[str]:
    """The URL of a new and empty database beside that of *url*, on the same engine. It is dropped with the block."""
    own = url_beside(url)
    with ExitStack() as stack:
        with held():
            connect(own, create=True).close()
            stack.callback(_drop, own)
        yield own


def _drop(url: str) -> None:
    """Drops the database when the connections of killed processes are gone. Raises :class:`NotMeasured`."""
    with held():
        connection = connect(url)
        try:
            wait_for(lambda: _alone(connection), "no other connection to a scratch database", pause=0.1, seconds=30)
        except NotMeasured:
            connection.close()
            raise
        connection.drop_database()


def _alone(connection: Any) -> bool:
    """Whether no other connection is there."""
    with closing(connection.cursor()) as cursor:
        (others,) = cursor.execute(_OTHERS).fetchone()
    connection.rollback()
    return int(others) == 0
