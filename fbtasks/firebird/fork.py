"""What a process must not use after a fork: the connections that its parent had open.

Each connection is noted here while it is open. A child that used one, or merely closed it, would lose commits of its
parent's without an error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from weakref import WeakSet

from fbtasks.errors import ForkError

_open: WeakSet[Any] = WeakSet()
_openings: set[int] = set()
_numbers = count()
_lost: WeakSet[Any] = WeakSet()
_abandoned: list[Any] = []
_forked_open = False


def note(connection: Any) -> None:
    """Counts *connection* as open."""
    _open.add(connection)


def open_connections() -> list[Any]:
    """The connections that are counted as open."""
    return list(_open)


@contextmanager
def opening() -> Iterator[None]:
    """For the block, which opens a connection, or holds a lock for that, the child of a fork is refused."""
    number = next(_numbers)
    _openings.add(number)
    try:
        yield
    finally:
        _openings.discard(number)


def _forked() -> None:
    """In a child: connections that the parent had open are not to be used, and not even to be closed.

    Where none was open the child may open its own: measured, nothing is lost then. One that another thread was about to
    open counts as well: that thread's locks, ours and the library's, are never released here.
    """
    global _forked_open
    inherited = [connection for connection in _open if not connection.is_closed()]
    if inherited or _openings:
        _forked_open = True
    _abandoned.extend((*inherited, *_lost))  # kept from the garbage collector, which would detach the parent's


def lose(connection: Any) -> None:
    """Counts *connection* as closed. It is lost, but whoever has it closes it only in a while."""
    _open.discard(connection)
    _lost.add(connection)


def refuse_fork() -> None:
    """Raises :class:`ForkError` in the fork of a process that had loaded the library."""
    if _forked_open:
        raise ForkError(
            "this process was forked from one that uses Firebird, and using the database here would lose commits "
            "without an error. Start processes with 'spawn' or 'forkserver', or fork before the first use."
        )


def was_forked() -> bool:
    """Whether this process is the fork of one that had loaded the library, and must not touch what it inherited."""
    return _forked_open


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
