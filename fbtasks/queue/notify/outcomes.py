"""Waiting for the ends of tasks: an event, or else a pause, and then a look at the database, for many waits at once.

Nothing of the database is asked in the thread of an event loop.
"""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.errors import DatabaseUnavailable
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Session
from fbtasks.queue import results
from fbtasks.queue.notify.results import ResultListener, event_of
from fbtasks.system.threads import Background
from fbtasks.tasks.call import Stored
from fbtasks.timing import Backoff

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

GRACE: Final = 5.0
"""Seconds that a wait goes on for an id the database does not know: its transaction may still commit."""
OUTAGE: Final = 10.0
"""Seconds that a wait which has looked before goes on while the database is away."""
POLL_FIRST: Final = 0.02
POLL_LAST: Final = 1.0
"""Seconds between two looks when no event comes: after the first one, and at most."""
_EARLY: Final = 0.25
"""A part of its pause by which a look may be made too early, to be made together with others."""
_BREATH: Final = 0.25
"""The longest pause in seconds between two looks when events come faster; else as long as the look took."""
_IDLE: Final = 5.0
"""Seconds without a wait after which the thread ends."""
_JOIN: Final = 5.0
"""Seconds that closing the app waits for a look that is being made."""


def polls() -> Backoff:
    """The pauses between the looks of one wait."""
    return Backoff(POLL_FIRST, POLL_LAST, 1.5)


class Wait:
    """One wait for the end of one task, and what the looks at the database have told so far."""

    def __init__(self, id: str, number: int | None = None, *, seen: bool = False, ignored: bool = False) -> None:
        self.id = id
        self.number = number if number is not None else results.number_of(id)
        """The database's id; None while it knows no task of this ``task_id``."""
        self.seen = seen
        """Whether the task was seen alive: when it is gone, it has ended."""
        self.stored: Stored | None = None
        """The outcome, when the task has ended and it was kept."""
        self.gone = False
        """Whether the task has ended and its outcome was not kept."""
        self.unknown = False
        """Whether the database has not known the task for too long."""
        self.error: DatabaseUnavailable | None = None
        """What keeps the database from answering now."""
        self._ignored = ignored
        self._looked = False
        self._absent_since: float | None = None
        self._away_since: float | None = None

    @property
    def over(self) -> bool:
        """Whether there is nothing more to wait for."""
        return self.stored is not None or self.gone or self.unknown

    def learn(self, outcomes: Mapping[int, Stored | None]) -> None:
        """Takes what a look found. A task that lives is not in *outcomes*, and None there for one not known."""
        self._looked, self.error, self._away_since = True, None, None
        if self.number is not None and self.number not in outcomes:
            self.seen, self._absent_since = True, None
            return
        self.stored = None if self.number is None else outcomes[self.number]
        if self.stored is not None:
            return
        now = clock.monotonic()
        self._absent_since = self._absent_since or now
        self.gone = self.seen or self._ignored
        self.unknown = not self.gone and now - self._absent_since >= GRACE

    def outlives(self, error: DatabaseUnavailable) -> bool:
        """Whether the wait goes on although a look failed: once the database has answered, a while."""
        now = clock.monotonic()
        self.error, self._away_since = error, self._away_since or now
        return self._looked and now - self._away_since < OUTAGE


def look(waits: Collection[Wait], session: Session) -> None:
    """Tells each of *waits* what became of its task: one statement for all, and one for ids that callers chose."""
    nameless = [wait for wait in waits if wait.number is None]
    if nameless:
        found = results.numbers(session, {wait.id for wait in nameless})
        for wait in nameless:
            wait.number = found.get(wait.id)
    outcomes = results.outcomes(session, {wait.number for wait in waits if wait.number is not None})
    for wait in waits:
        wait.learn(outcomes)


class _Awaited:
    """A coroutine's wait, and when it is to be looked for."""

    def __init__(self, wait: Wait, loop: AbstractEventLoop, timeout: float | None) -> None:
        self.wait = wait
        self.loop = loop
        self.future: Future[None] = loop.create_future()
        self.limit = math.inf if timeout is None else clock.monotonic() + timeout
        """The monotonic time of the last look."""
        self.error: Exception | None = None
        self.due = 0.0
        """The monotonic time of the next look."""
        self._pauses = polls()
        self._pause = 0.0

    def is_due(self, events: Collection[str], now: float) -> bool:
        """Whether it is time for a look, or its task may have ended."""
        number = self.wait.number
        return now >= self.due - _EARLY * self._pause or (number is not None and event_of(number) in events)

    def is_over(self, began: float) -> bool:
        """Whether it ends with the look that *began* then; else the next one may wait for longer."""
        self._pause = self._pauses.next()
        self.due = min(clock.monotonic() + self._pause, self.limit)
        return self.wait.over or began >= self.limit

    def end(self) -> None:
        """Wakes the coroutine, in its loop."""
        if not self.future.done():
            self.future.set_result(None)


class OutcomeReader:
    """Looks for the outcomes that are waited for in an app.

    A thread that waits looks for itself. For all coroutines one thread does, which ends when none waits any more.
    """

    def __init__(self, database: Database, listener: ResultListener) -> None:
        self._database = database
        self._listener = listener
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._awaited: set[_Awaited] = set()
        self._waiter = self._listener.make_waiter()
        self._thread: Background | None = None
        self._closing = self._leaves = False

    def wait(self, waits: Sequence[Wait], timeout: float | None, looked: Callable[[], None] = lambda: None) -> None:
        """Waits until all of *waits* are over, or for *timeout* seconds. Raises what keeps the database from answering.

        *looked* is called after each look, and may raise as well.
        """
        started, pauses = clock.monotonic(), polls()
        with self._listener.waiter() as waiter:
            left = [wait for wait in waits if not wait.over]
            while left:
                try:
                    self._database.use(partial(look, left))
                except DatabaseUnavailable as error:
                    if not all(wait.outlives(error) for wait in left):
                        raise
                looked()
                left = [wait for wait in waits if not wait.over]
                pause = pauses.next()
                if timeout is not None:
                    pause = min(pause, started + timeout - clock.monotonic())
                if not left or pause <= 0:
                    break
                number = left[0].number
                waiter.only = None if number is None or len(left) > 1 else event_of(number)
                waiter.wait(pause)
                if waiter.closed:
                    raise closed(left[0].id)

    async def until_over(self, wait: Wait, timeout: float | None) -> None:
        """Waits in a coroutine until *wait* is over, or for *timeout* seconds."""
        from asyncio import get_running_loop  # which there is then; programs without one do not pay for it

        awaited = _Awaited(wait, get_running_loop(), timeout)
        try:
            self._add(awaited)
            await awaited.future
        finally:
            with self._lock:
                self._awaited.discard(awaited)
        if awaited.error is not None:
            raise copy(awaited.error) from awaited.error  # others wait as well, and each has a traceback of its own

    def _add(self, awaited: _Awaited) -> None:
        refuse_fork()
        if self._pid != os.getpid():  # a fork in which the parent's thread does not run
            self._begin()
        with self._lock:
            self._awaited.add(awaited)
            if self._thread is None:
                thread = Background(target=self._run, name="fbtasks-results")
                thread.start()
                self._thread = thread
        self._waiter.wake()

    def _run(self) -> None:
        while True:
            try:
                with self._listener.waking(self._waiter):
                    self._serve()
            except Exception as error:  # noqa: BLE001  # such as no thread left for the listener; told to all that wait
                self._fail(lambda _, told=error: told)  # type: ignore[misc]
            with self._lock:
                self._closing = False
                if not self._awaited:
                    self._thread, self._leaves = None, False
                    atexit.unregister(self.close)
                    return

    def _serve(self) -> None:
        """Looks for those that wait, until none has come for a while, or the app is closed."""
        idle_until = 0.0
        events: set[str] = set()
        while not self._closing:
            now = clock.monotonic()
            with self._lock:
                self._awaited = {awaited for awaited in self._awaited if not awaited.loop.is_closed()}
                due = [awaited for awaited in self._awaited if awaited.is_due(events, now)]
                next_look = min((awaited.due for awaited in self._awaited), default=None)
            if due:
                self._look(due, now)
                clock.sleep(min(clock.monotonic() - now, _BREATH))
                events = self._waiter.wait(0)
            elif next_look is not None:
                idle_until = 0.0
                events = self._waiter.wait(next_look - now)
            else:
                idle_until = idle_until or now + _IDLE
                if now >= idle_until:
                    return
                events = self._waiter.wait(idle_until - now)

    def _look(self, due: list[_Awaited], began: float) -> None:
        """One look for all that are due. Wakes those whose wait is over, or cannot go on."""
        failed: list[_Awaited] = []
        try:
            self._database.use(partial(look, [awaited.wait for awaited in due]))
        except DatabaseUnavailable as error:
            failed = [awaited for awaited in due if not awaited.wait.outlives(error)]
            for awaited in failed:
                awaited.error = error
        else:
            if not self._leaves:
                # Now that the engine is loaded: exit functions run from the last to the first, and its own must run
                # after ours.
                self._leaves = True
                atexit.register(self.close)
        self._end(failed + [awaited for awaited in due if awaited.is_over(began)])

    def _end(self, over: Iterable[_Awaited]) -> None:
        with self._lock:
            self._awaited.difference_update(over)
        for awaited in over:
            with suppress(RuntimeError):  # its loop was closed
                awaited.loop.call_soon_threadsafe(awaited.end)

    def _fail(self, error: Callable[[_Awaited], Exception]) -> None:
        with self._lock:
            waiting = list(self._awaited)
        for awaited in waiting:
            awaited.error = error(awaited)
        self._end(waiting)

    def close(self) -> None:
        """Ends all waits with an error, and the thread."""
        if self._pid != os.getpid():
            return
        with self._lock:
            thread, self._closing = self._thread, self._thread is not None
        self._fail(lambda awaited: closed(awaited.wait.id))
        if thread is not None:
            self._waiter.wake()
            thread.join(_JOIN)


def closed(id: str) -> DatabaseUnavailable:
    """The error of a wait during which the app was closed."""
    return DatabaseUnavailable(f"the app was closed while task {id} was waited for. Its task is left as it is.")
