"""Keeps processes on the embedded engine awake to each other: when one of them is killed, and when a request is lost.

The engine's processes ask each other for page locks through events in shared memory: a counter, a mutex, a condition
(``event_t`` in the engine's ``isc_sync``). Three things go wrong there when a process is killed at a bad moment, for
which it is enough to lose the processor there, and each leaves other processes on the file waiting without end:

* The mutex is not a robust one (see ``pthread_mutexattr_setrobust``). A process that dies with it keeps the event's
  owner from being woken.
* A request is noted first and the event posted then. A process that dies in between leaves a note that is never read,
  and that keeps all others from posting again.
* A session that is handing out POST_EVENTs is marked, so that it is not taken away meanwhile. A process that dies then
  leaves the mark; and the next process on the file, which clears up after the dead with its first event, waits for the
  mark to go (``EventManager::delete_process``).

A fourth needs no death, but a process with several connections (5.0.4):

* Two threads of the process may answer requests for the same page at the same time. The second finds the page in use,
  marks the request as seen, and leaves it to the first. The first releases the page without a look at who has asked
  meanwhile (``down_grade`` in the engine's ``cch``). While the connection does not use that page again, everybody
  waits for it without end; the mark keeps those that wait from asking again.

So each process that uses the engine does four things. Once a second it unlocks a mutex of its own events whose holder
is dead, as a robust mutex would, since the counter that it protects is whole at every moment; it posts its own events,
whose owner then looks for notes, and finds none nearly always; and it takes the marks off the sessions of the dead.
More often, it takes the marks off requests for its pages that have not been answered since the last look, and wakes
those that wait, who then ask again. A page that is in use is released when it no longer is, as ever.

One thing cannot be mended from here: a process that is killed in the middle of a change to the table of locks may leave
a list in it that has no end, and a process that searches that next holds the table's mutex for good; so for the table
of events. Nothing of the database is lost; but a table is made anew only when all processes have left it. So those that
exist for nothing else than to work on the queue end when that has been so for :data:`PATIENCE` looks (see
:func:`exit_when_engine_hangs`).
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.firebird import fork
from fbtasks.firebird.embedded import causes
from fbtasks.firebird.embedded.enginefiles import (
    EVENT_CONDITION_AT,
    EVENT_MUTEX_AT,
    GUARD_AT,
    PLAIN,
    EngineFile,
    EngineFiles,
)
from fbtasks.firebird.embedded.lockdir import exclusive
from fbtasks.system.threads import Endless

_FUTEX: Final = {"x86_64": b"202", "aarch64": b"98"}.get(platform.machine()) if sys.maxsize > 2**32 else None
"""The number of the system call; None where the layout of the engine's files is not known: with 32 bits."""
_WAIT: Final = 0
_WAIT_BITSET: Final = 9
_EVERY: Final = 1.0
"""Seconds between looks; a mutex is freed when two in a row have seen the same dead holder."""
_ASKING: Final = 0.25
"""Seconds between looks for requests that are not answered. After two seconds of waiting (DeadlockTimeout) the engine
looks for deadlocks, and takes such a request for a part of one. To end it, it refuses a page: a ConflictError."""
_SOON: Final = 0.03
"""Seconds between those for a while after some were found."""
_WORDS_AT: Final = tuple(EVENT_CONDITION_AT + at for at in (32, 36, 40, 44))
"""The words that waiters of an event's condition sleep on: the first two since glibc 2.41, the others before. All are
tried, whatever glibc says of itself: an event is known by its owner and its kind."""
_CONTENDED: Final = 2
_ENTERING: Final = 10.0
"""Seconds after which a process goes in although another is there, which takes a millisecond: it was stopped."""
PATIENCE: Final = 30
"""Looks in a row that find the same thread with the mutex of a table before it is believed to be stuck."""
BLIND: Final = 30
"""Looks in a row that find threads asleep, and none for an event, before these are taken for not to be found here."""
STUCK: Final = 75
"""The exit code of a process that ends for that (EX_TEMPFAIL of ``sysexits.h``: start it again)."""

logger = logging.getLogger(__name__)
_repair: _Repair | None = None
_exits: Callable[[str], object] | None = None


def exit_when_engine_hangs(tell: Callable[[str], object] = logger.critical) -> None:
    """Ends this process, with exit code :data:`STUCK`, when it could only wait for the engine without end.

    *tell* is called before, with a text that says why and what to do.
    """
    global _exits
    _exits = tell


def stay_when_engine_hangs() -> None:
    """Undoes :func:`exit_when_engine_hangs`."""
    global _exits
    _exits = None


def start(folder: Path) -> None:
    """Looks after this process's events in the files of *folder* from now on; once in a process.

    Does nothing where that is not possible: elsewhere than on Linux with glibc and 64 bits.
    """
    global _repair
    if _repair is not None:
        return
    possible = sys.platform == "linux" and _FUTEX is not None and platform.libc_ver()[0] == "glibc"
    if possible and os.path.exists("/proc/self/task"):
        _repair = _Repair(str(folder.resolve()))
        Endless(_repair.run, name="fbtasks-mutex-repair").start()


@contextmanager
def entering(folder: Path) -> Iterator[None]:
    """For the block, in which this process's engine enters the table of events, and clears up after the dead in it.

    One process at a time does, when the sessions of the dead have no marks any more: of two that wait for one mark to
    go, the second would give free what the first had given free, and leave the table broken.
    """
    if _repair is None:
        yield
        return
    with exclusive(folder / "events.lock", patience=_ENTERING):
        _end_deliveries(EngineFiles(str(folder.resolve())).tables_of_events(), ctypes.PyDLL(None))
        yield


_Held = tuple[EngineFile, int, int]
"""A mutex, by its file and the place in it, and its dead holder."""
_Unanswered = tuple[EngineFile, int, int, int]
"""A request for a page: its file, and the places of what has it, of who waits for it, and of its lock."""


class _Repair:
    """Looks after this process's events in the engine's files of one folder."""

    def __init__(self, folder: str) -> None:
        self._libc = ctypes.PyDLL(None)  # nothing that is called waits, and this thread keeps its turn with a mutex
        self._files = EngineFiles(folder)
        self._held: set[_Held] = set()
        self._unanswered: set[_Unanswered] = set()
        self._guarded: dict[tuple[str, int | None], int] = {}
        """The looks in a row that found this thread with the mutex of this file."""
        self._blind = 0
        self._due = self._hurried = 0.0

    def processes(self) -> Iterator[int]:
        """Yields the ids of the processes that use what this one uses, as the last look has found it."""
        for file in list(self._files.files.values()):
            yield from file.processes()

    def run(self) -> None:
        while True:
            clock.sleep(_SOON if clock.monotonic() < self._hurried else _ASKING)
            with suppress(OSError):
                self._look(clock.monotonic())

    def _look(self, now: float) -> None:
        self._unanswered = _ask_again(self._files, self._unanswered, self._libc)
        if self._unanswered:
            self._hurried = now + _EVERY
        if now < self._due:
            return
        self._due = now + _EVERY
        self._free_and_post()
        _end_deliveries(self._files.files.values(), self._libc)
        if _exits:
            self._leave_the_stuck()

    def _free_and_post(self) -> None:
        """Frees what dead threads held at the last look, too, and posts the events that this process waits for."""
        held: set[_Held] = set()
        sees_own = sleeps = False
        for file, event, operation in _waits(self._files):
            is_own = _is_own(file, event)
            sees_own = sees_own or is_own
            sleeps = sleeps or operation == _WAIT_BITSET
            holder = _dead_holder(file, event)
            if holder:
                held.add((file, event + EVENT_MUTEX_AT, holder))
            elif is_own and operation == _WAIT_BITSET:
                _post(file.address + event, self._libc)
        for file, mutex, _ in held & self._held:
            self._libc.pthread_mutex_unlock(ctypes.c_void_p(file.address + mutex))
        self._held = held - self._held
        self._blind = self._blind + 1 if sleeps and not sees_own else 0  # without a connection none sleeps
        if self._blind == BLIND:
            logger.warning(
                "The events by which the engine's processes wake each other are not found here (%s): a process that is "
                "killed may leave this one waiting. When that happens, end all processes that use the database, and "
                "start them again.",
                " ".join(platform.libc_ver()),
            )

    def _leave_the_stuck(self) -> None:
        held_by = [(path, file.guard()) for path, file in self._files.files.items()]
        before = self._guarded
        self._guarded = {held: before.get(held, 0) + 1 for held in held_by if held[1] and not _is_dead(held[1])}
        for (path, holder), looks in self._guarded.items():
            if looks >= PATIENCE:
                name = os.path.basename(path)
                exit_if_asked(f"thread {holder} has held the engine's {name} for {looks} seconds.")


def _waits(files: EngineFiles) -> Iterator[tuple[EngineFile, int, int]]:
    """Yields the events in the engine's files that threads of this process wait for, and how; -1 for one not found."""
    mapped = files.mapped()
    for operation, address in [wait for thread in os.listdir("/proc/self/task") if (wait := _sleeps(thread))]:
        place = next(((start + address - where[0], file) for where, start, file in mapped if address in where), None)
        if place is not None:
            at, file = place
            yield file, at - EVENT_MUTEX_AT if operation == _WAIT else _event_of(file, at), operation


def _event_of(file: EngineFile, word: int) -> int:
    """Returns where the event of this process is whose waiters sleep on the *word* at that place; -1: there is none."""
    return next((event for at in _WORDS_AT if _is_own(file, event := word - at)), -1)


def _end_deliveries(files: Iterable[EngineFile], libc: Any) -> None:
    """Takes the marks off the sessions of the dead, so that they can be cleared away."""

    def of_the_dead(file: EngineFile) -> list[int]:
        return [flags for pid, flags in file.delivering() if _is_dead(pid)]

    for file in files:
        if of_the_dead(file):  # nearly never, and asked without the mutex
            with _guarded(file, libc) as is_ours:
                for flags in of_the_dead(file) if is_ours else ():
                    file.end_delivery(flags)


def _ask_again(files: EngineFiles, before: set[_Unanswered], libc: Any) -> set[_Unanswered]:
    """Asks those again that were unanswered *before*, too. Returns all that are unanswered now."""

    def all_in(file: EngineFile) -> set[_Unanswered]:
        return {(file, *each) for each in file.unanswered(os.getpid())}

    left, asked = set(), 0
    for file in files.files.values():
        found = all_in(file)
        if found & before:
            with _guarded(file, libc) as is_ours:
                for _, granted, waiting, _ in found & before & all_in(file) if is_ours else ():
                    _post(file.address + file.ask_again(granted, waiting), libc)
                    asked += 1
        left |= found
    if asked:  # without the mutex, which all processes need: what writes the log may be slow, or use the database
        logger.debug("The engine is asked again for %d pages that it has not given up.", asked)
    return left


@contextmanager
def _guarded(file: EngineFile, libc: Any) -> Iterator[bool]:
    """Holds the mutex that guards a file; False when another has it."""
    guard = ctypes.c_void_p(file.address + GUARD_AT)
    taken = libc.pthread_mutex_trylock(guard)
    if taken == errno.EOWNERDEAD:
        libc.pthread_mutex_consistent(guard)  # the engine does no more about it either
    if taken not in (0, errno.EOWNERDEAD):
        yield False
        return
    try:
        yield True
    finally:
        libc.pthread_mutex_unlock(guard)


def _sleeps(thread: str) -> tuple[int, int] | None:
    """How and where *thread* waits, when it waits for a contended mutex, or without end for a condition."""
    try:
        with open(f"/proc/self/task/{thread}/syscall", "rb") as file:
            call = file.read().split()
    except OSError:  # it has ended
        return None
    if len(call) < 5 or call[0] != _FUTEX:
        return None
    address, operation, value, timeout = (int(each, 16) for each in call[1:5])
    operation &= 127
    contended = operation == _WAIT and value == _CONTENDED
    endless = operation == _WAIT_BITSET and timeout == 0
    return (operation, address) if contended or endless else None


def _is_own(file: EngineFile, at: int) -> bool:
    """Whether an event of this process's is there."""
    fields = file.event(at)
    return fields is not None and fields[1] == os.getpid() and fields[-1] == PLAIN


def _dead_holder(file: EngineFile, at: int) -> int:
    """The thread that holds the mutex of the event there and is dead; 0 when none does, or when it lives."""
    fields = file.event(at)
    if fields is None:
        return 0
    _, _, lock, _, holder, _, kind = fields
    return holder if lock and holder and kind == PLAIN and _is_dead(holder) else 0


def _is_dead(thread: int) -> bool:
    try:
        os.kill(thread, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        return False
    return False


def _post(event: int, libc: Any) -> None:
    mutex, condition = ctypes.c_void_p(event + EVENT_MUTEX_AT), ctypes.c_void_p(event + EVENT_CONDITION_AT)
    if libc.pthread_mutex_trylock(mutex) == 0:
        ctypes.c_int.from_address(event).value += 1
        libc.pthread_cond_broadcast(condition)
        libc.pthread_mutex_unlock(mutex)


def exit_if_asked(why: str) -> bool:
    """Ends this process if it is one that leaves. Returns False if not."""
    if _exits is None:
        return False
    _exits(f"This process ends: {why} {remedy()}")
    logging.shutdown()
    os._exit(STUCK)


def remedy() -> str:
    """Returns what to do when the engine does not answer."""
    return causes.remedy(() if _repair is None else _repair.processes())


def _forked() -> None:
    """In a child: the parent's thread is not there."""
    global _repair
    _repair = None


fork.register(in_child=_forked)
