"""A database that all the parts of a process share, and that lets go of its connections before the process forks.

Programs such as Celery's worker fork when they are connected. A child that used, or merely kept, a connection of its
parent's would lose commits without an error (on the embedded engine) or mix its words into the parent's (on a server).
So a fork waits for the threads that are in the middle of something, and everything is detached before it; parent and
child then open connections of their own.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final, TypeVar

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseReplaced
from fbtasks.feature import Feature
from fbtasks.firebird import fork, watchdog
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import MOST_ATTEMPTS, UPDATE, Session, Transaction
from fbtasks.queue.firsts import write_first

T = TypeVar("T")
_PATIENCE: Final = 30.0
"""Seconds for which a fork waits for the threads that are in the middle of something."""


class SharedDatabase:
    """Runs transactions for any thread. After a fork it serves the parent; a child makes its own."""

    def __init__(self, settings: Settings, features: Sequence[Feature] = ()) -> None:
        """*features*: those that the database is to have."""
        self.url = settings.url
        self.database = Database(settings, features)
        """A listener may open a connection of its own in it, which its owner closes before a fork."""
        self._changed = threading.Condition()
        self._active = 0
        self._forking = False
        self._mine = threading.local()
        self._turn_lock = threading.Lock()
        self._turn: HostLock | None = None
        self._pid = os.getpid()
        self._detached = False
        self.conflicts = 0
        """Conflicts met and retried."""
        fork.register(before=self._before_fork, in_parent=self._after_fork)

    @property
    def inherited(self) -> bool:
        """Whether this process is a fork of the one that this object serves."""
        return os.getpid() != self._pid

    @property
    def detached(self) -> bool:
        """Whether its connections are closed for a fork that is under way."""
        return self._detached and not self.inherited

    @property
    def replaced(self) -> bool:
        """Whether the database of the connections is not the one at its place any more."""
        try:
            self.database.known.check()
        except DatabaseReplaced:
            return True
        return False

    def use(self, work: Callable[[Transaction], T], kind: bytes = UPDATE) -> T:
        """Runs *work* in a transaction of its own, again when another one is in its way."""
        return self.use_session(lambda session: self._run(session, work, kind))

    def use_in_turn(self, work: Callable[[Transaction], T], attempts: int = MOST_ATTEMPTS) -> T:
        """Runs *work* as :meth:`use` does, one process at a time on this host with the embedded engine.

        For work that claims or deletes what others claim and delete at the same time.
        """
        return self.use_session(lambda session: self._run(session, work, UPDATE, attempts), in_turn=self.url.embedded)

    def use_session(self, work: Callable[[Session], T], *, in_turn: bool = False) -> T:
        """Runs *work* with a connection. It uses transactions of its own."""
        watched: AbstractContextManager[None] = watchdog.reaping() if self.url.embedded else nullcontext()
        with self._inside(), watched, self._in_turn() if in_turn else nullcontext():
            self.database.make_ready()
            return self.database.use(work)

    def _run(self, session: Session, work: Callable[[Transaction], T], kind: bytes, attempts: int = MOST_ATTEMPTS) -> T:
        try:
            return write_first(session, work, kind, attempts)
        finally:
            self.conflicts += session.take_conflicts()

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        with self._turn_lock:
            if self._turn is None:
                self._turn = HostLock(self.url)
            with self._turn.held():
                yield

    @contextmanager
    def _inside(self) -> Iterator[None]:
        if getattr(self._mine, "depth", 0):
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

    def close(self) -> None:
        """Closes the connections; the next use opens new ones."""
        self.database.close()
        with self._turn_lock:
            if self._turn is not None:
                self._turn.close()
                self._turn = None

    def _before_fork(self) -> None:
        """Waits until no thread is in the middle of something, and detaches."""
        if self.inherited:
            return
        own = getattr(self._mine, "depth", 0)
        with self._changed:
            self._forking = True
            quiet = clock.wait_for(self._changed, lambda: self._active <= own, 0 if own else _PATIENCE)
        if quiet and not own:  # else a connection stays open, and the child is refused
            self._detached = True
            self.close()

    def _after_fork(self) -> None:
        """Goes on, in the parent."""
        if self.inherited:
            return
        with self._changed:
            self._detached = self._forking = False
            self._changed.notify_all()
