"""A database that all the parts of a process share, and that lets go of its connections before the process forks.

Programs such as Celery's worker fork when they are connected. A child that used, or merely kept, a connection of its
parent's would lose commits without an error (on the embedded engine) or mix its words into the parent's (on a server).
So before a fork everybody who is in the middle of something is waited for, and everything is detached; parent and child
then open connections of their own.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Final, TypeVar
from weakref import WeakSet

from fbtasks.config import Settings
from fbtasks.errors import DatabaseReplaced, DuplicateKey
from fbtasks.firebird.embedded import reaper
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import MOST_ATTEMPTS, READ, UPDATE, Session, Transaction
from fbtasks.store.database import Database

T = TypeVar("T")
_PATIENCE: Final = 30.0
"""Seconds for which a fork waits for those who are in the middle of something."""
_FIRSTS: Final = 5

_all: WeakSet[SharedDatabase] = WeakSet()


class SharedDatabase:
    """Runs transactions for any thread. After a fork it serves the parent; a child makes its own."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.url
        self._database = Database(settings)
        self._changed = threading.Condition()
        self._active = 0
        self._forking = False
        self._mine = threading.local()
        self._turn_lock = threading.Lock()
        self._turn: HostLock | None = None
        self._pid = os.getpid()
        self._around_fork: list[tuple[Callable[[], None], Callable[[], None]]] = []
        self._to_attach: list[Callable[[], None]] = []
        self.conflicts = 0
        """Conflicts met and retried."""
        _all.add(self)

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that this object serves."""
        return os.getpid() != self._pid

    def keep(self) -> None:
        """Has all connections be to one database; see :meth:`Database.keep`."""
        self._database.keep()

    def saw(self, transaction: int) -> None:
        """See :meth:`Database.saw`."""
        self._database.saw(transaction)

    @property
    def replaced(self) -> bool:
        """Whether the database of the connections is not the one at its place any more."""
        try:
            self._database.check()
        except DatabaseReplaced:
            return True
        return False

    def around_fork(self, detach: Callable[[], None], attach: Callable[[], None]) -> None:
        """Has *detach* called before a fork for which all is quiet, and then *attach* after it in the parent."""
        self._around_fork.append((detach, attach))

    def at_pool_exit(self, close: Callable[[], None]) -> None:
        """Has *close* called when this process is one of Celery's pool, and ends: it does so without exit functions."""
        signals = sys.modules.get("celery.signals")
        if signals is not None:
            signals.worker_process_shutdown.connect(lambda **_: close(), weak=False, dispatch_uid=id(self))

    def use(self, work: Callable[[Transaction], T], kind: bytes = UPDATE) -> T:
        """*work* in a transaction of its own, tried again when another one is in its way."""
        with self._inside(), self._watched():
            self._database.make_ready()
            return self._database.use(lambda session: self._run(session, work, kind))

    def verify(self) -> None:
        """Raises what keeps the database from answering."""
        self.use(lambda transaction: transaction.value("schema_version"), READ)

    def use_in_turn(self, work: Callable[[Transaction], T], attempts: int = MOST_ATTEMPTS) -> T:
        """The same, one at a time on this host where the engine is embedded: what claims and deletes side by side."""
        with self._inside(), self._watched(), self._in_turn():
            self._database.make_ready()
            return self._database.use(lambda session: self._run(session, work, UPDATE, attempts))

    def _watched(self) -> AbstractContextManager[None]:
        return reaper.reaped() if self.url.embedded else nullcontext()

    def _run(self, session: Session, work: Callable[[Transaction], T], kind: bytes, attempts: int = MOST_ATTEMPTS) -> T:
        try:
            for _ in range(_FIRSTS):
                # Two that are the first to declare or to count something: the second finds it there the next time.
                with suppress(DuplicateKey):
                    return session.run(work, kind, attempts=attempts)
            return session.run(work, kind, attempts=attempts)
        finally:
            self.conflicts += session.take_conflicts()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        if not self.url.embedded:
            yield
            return
        with self._turn_lock:
            if self._turn is None:
                self._turn = HostLock(self.url)
            with self._turn.held():
                yield

    @contextmanager
    def _inside(self) -> Iterator[None]:
        if getattr(self._mine, "depth", 0):
            with nullcontext():
                yield
            return
        with self._changed:
            self._changed.wait_for(lambda: not self._forking)
            self._active += 1
        self._mine.depth = 1
        try:
            yield
        finally:
            self._mine.depth = 0
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    @property
    def database(self) -> Database:
        """The database, for a listener: it opens a connection of its own, and is stopped by a detacher."""
        return self._database

    def close(self) -> None:
        """Closes the connections; the next use opens new ones."""
        self._database.close()
        with self._turn_lock:
            if self._turn is not None:
                self._turn.close()
                self._turn = None

    def before_fork(self) -> None:
        """Waits until nobody is in the middle of something, and detaches."""
        own = getattr(self._mine, "depth", 0)
        with self._changed:
            self._forking = True
            quiet = self._changed.wait_for(lambda: self._active <= own, 0 if own else _PATIENCE)
        if quiet and not own:  # else a connection stays open, and the child is refused
            for detach, attach in self._around_fork:
                self._to_attach.append(attach)
                with suppress(Exception):
                    detach()
            self.close()

    def after_fork_in_parent(self) -> None:
        """Goes on, and attaches what was detached."""
        with self._changed:
            self._forking = False
            self._changed.notify_all()
        attachers, self._to_attach = self._to_attach, []
        for attach in attachers:
            with suppress(Exception):
                attach()


_mine: list[SharedDatabase] = []


def _before() -> None:
    _mine[:] = [shared for shared in _all if not shared.inherited]
    for shared in _mine:
        shared.before_fork()


def _in_parent() -> None:
    for shared in _mine:
        shared.after_fork_in_parent()
    _mine.clear()


def _in_child() -> None:
    reaper.forget()
    _inherited.extend(_mine)  # their locks and files are the parent's: neither used nor collected
    _mine.clear()
    _all.clear()


_inherited: list[SharedDatabase] = []

if sys.platform != "win32":
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
