"""Guards forks: the child must not use the connections that the parent had open.

Each connection is noted here while it is open. A child that used one, or merely closed it, would lose commits of its
parent's without an error.

All parts of the package that have something to do around a fork register it here (:func:`register`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from inspect import ismethod
from itertools import count
from typing import Any, NamedTuple
from weakref import WeakMethod, WeakSet

from fbtasks.errors import ForkError

Act = Callable[[], object]

_open: WeakSet[Any] = WeakSet()
_openings: set[int] = set()
_numbers = count()
_lost: WeakSet[Any] = WeakSet()
_abandoned: list[Any] = []
_forked_open = False


class _Hook(NamedTuple):
    """Functions that return what is to be called; None when its object is gone."""

    before: Callable[[], Act | None]
    in_parent: Callable[[], Act | None]
    in_child: Callable[[], Act | None]


_hooks: list[_Hook] = []


def register(*, before: Act | None = None, in_parent: Act | None = None, in_child: Act | None = None) -> None:
    """Registers functions that are called around each fork, in the order of registration.

    A method is held weakly, so its object may go; in a child it is kept from the garbage collector, for what it holds
    is the parent's. An exception in one does not keep the others from being called.
    """
    for hook in list(_hooks):
        if not any(held() for held in hook):
            with suppress(ValueError):  # another thread was first
                _hooks.remove(hook)
    _hooks.append(_Hook(_held(before), _held(in_parent), _held(in_child)))


def _held(act: Act | None) -> Callable[[], Act | None]:
    return WeakMethod(act) if ismethod(act) else lambda: act


def _call(acts: list[Act | None]) -> None:
    with ExitStack() as stack:  # which calls them all, the last one first
        for act in reversed(acts):
            if act is not None:
                stack.callback(act)


def _in_child() -> None:
    _note_inherited()
    _abandoned.extend(act for hook in _hooks for held in hook if (act := held()))
    _call([hook.in_child() for hook in _hooks])


def _note_inherited() -> None:
    """Notes which connections the parent had open: they are not to be used, and not even to be closed.

    Where none was open the child may open its own: measured, nothing is lost then. One that another thread was about to
    open counts as well: that thread's locks, ours and the library's, are never released here.
    """
    global _forked_open
    inherited = [connection for connection in _open if not connection.is_closed()]
    if inherited or _openings:
        _forked_open = True
    _abandoned.extend((*inherited, *_lost))  # kept from the garbage collector, which would detach the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call([hook.before() for hook in _hooks]),
        after_in_parent=lambda: _call([hook.in_parent() for hook in _hooks]),
        after_in_child=_in_child,
    )


def note(connection: Any) -> None:
    """Counts *connection* as open."""
    _open.add(connection)


def note_lost(connection: Any) -> None:
    """Counts *connection* as closed: it is lost, and its user closes it only in a while."""
    _open.discard(connection)
    _lost.add(connection)


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
