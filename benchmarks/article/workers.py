"""The article's workers, each a process: ``python -m benchmarks.article.workers in_order`` or ``at_random``.

The environment names the database. A process opens a connection and closes it, so that the engine is loaded as it is in
the article's processes; it prints a line and waits for one. Then it connects, as the article does while its clock runs,
and handles events until none waits. It prints a :class:`Handled` in JSON.

Every statement and transaction is as the article has it: one cursor, which prepares a statement anew after another one,
and the driver's default transactions (SNAPSHOT, WAIT) but for the claim at random.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from firebird.driver import DatabaseError, Isolation, TraAccessMode, tpb

from benchmarks.article.tables import SUBSCRIBE, SUBSCRIBER
from benchmarks.internals import connect

URL: Final = "BENCH_ARTICLE_URL"
"""The variable with the URL of the database."""
PAUSE: Final = 0.3
"""Seconds that a process waits after a conflict."""

_WAITING: Final = "SELECT LOG_ID, SUB_ID, PK FROM EVENT_LOG WHERE WORK_UPDATE IS NULL AND SUB_ID = ?"
_ANY: Final = f"{_WAITING} ORDER BY RAND() ROWS 1 FOR UPDATE WITH LOCK"
_BEGIN: Final = "UPDATE EVENT_LOG SET WORK_UPDATE = CURRENT_TIMESTAMP WHERE LOG_ID = ?"
_END: Final = "DELETE FROM EVENT_LOG WHERE LOG_ID = ?"
_CONFLICTS: Final = (-913, -901)
"""The SQL codes of a deadlock and of a lock that another transaction holds."""


@dataclass(slots=True)
class Handled:
    """What one worker has done."""

    keys: list[int] = field(default_factory=list)
    """The keys of the rows whose events it handled, in that order."""
    conflicts: int = 0
    """Claims that failed, each of which cost a pause."""
    kept: int = 0
    """Events that it handled and could not delete because of a conflict: they stay in the log, marked."""
    begun: float = 0.0
    """The machine's monotonic time before it connected."""
    ended: float = 0.0
    """The same when it had found that nothing waits."""


def in_order(connection: Any, handled: Handled) -> None:
    """Reads all that waits, then marks, handles and deletes one event after the other, until nothing waits."""
    cursor = connection.cursor()
    subscriber = _subscribe(connection, cursor)
    while events := _waiting(connection, cursor, subscriber):
        for event, _, key in events:
            cursor.execute(_BEGIN, (event,))
            connection.commit()
            handled.keys.append(key)
            cursor.execute(_END, (event,))
            connection.commit()


def _waiting(connection: Any, cursor: Any, subscriber: int) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = cursor.execute(_WAITING, (subscriber,)).fetchall()
    connection.commit()
    return found


def at_random(connection: Any, handled: Handled) -> None:
    """Locks one of the events that wait, marks, handles and deletes it, until nothing waits."""
    cursor = connection.cursor()
    subscriber = _subscribe(connection, cursor)
    no_wait = tpb(Isolation.CONCURRENCY, 0, TraAccessMode.WRITE)
    while True:
        connection.begin(no_wait)
        try:
            with _rolled_back(connection):
                event = _claim(connection, cursor, subscriber)
        except DatabaseError as error:
            _check_conflict(error)
            time.sleep(PAUSE)
            handled.conflicts += 1
            continue
        if event is None:
            return
        number, _, key = event
        handled.keys.append(key)
        try:
            with _rolled_back(connection):
                cursor.execute(_END, (number,))
                connection.commit()
        except DatabaseError as error:
            _check_conflict(error)
            time.sleep(PAUSE)
            handled.kept += 1


def _claim(connection: Any, cursor: Any, subscriber: int) -> tuple[int, int, int] | None:
    """Locks and marks an event and commits. None when nothing waits."""
    event: tuple[int, int, int] | None = cursor.execute(_ANY, (subscriber,)).fetchone()
    if event is not None:
        cursor.execute(_BEGIN, event[:1])
        connection.commit()
    return event


def _subscribe(connection: Any, cursor: Any) -> int:
    """Makes sure that the subscriber is there, again after a conflict. Returns its number."""
    while True:
        try:
            with _rolled_back(connection):
                (subscriber,) = cursor.execute(SUBSCRIBE, (SUBSCRIBER,)).fetchone()
                connection.commit()
                return int(subscriber)
        except DatabaseError as error:
            _check_conflict(error)


@contextmanager
def _rolled_back(connection: Any) -> Iterator[None]:
    """Rolls back when the database refuses a statement of the block."""
    try:
        yield
    except DatabaseError:
        connection.rollback()
        raise


def _check_conflict(error: DatabaseError) -> None:
    """Raises *error* unless it is a conflict."""
    if error.sqlcode not in _CONFLICTS:
        raise error


WORKERS: Final[dict[str, Callable[[Any, Handled], None]]] = {"in_order": in_order, "at_random": at_random}


def main(name: str) -> None:
    """Waits for a line, works, and prints what was done."""
    url = os.environ[URL]
    connect(url).close()
    print("ready", flush=True)
    sys.stdin.readline()
    handled = Handled(begun=time.monotonic())
    with closing(connect(url)) as connection:
        WORKERS[name](connection, handled)
        handled.ended = time.monotonic()
    print(json.dumps(asdict(handled)))


if __name__ == "__main__":
    main(*sys.argv[1:])
