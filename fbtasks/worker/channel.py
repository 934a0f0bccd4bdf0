"""What a worker and its child processes say to each other.

Tasks go over a socket that keeps packets apart, one task in each. The worker keeps the child's end open as well, and
can so read back what the child has not taken: no answer is needed, whatever the child does. Everything else is a stream
of messages: outcomes one way, interruptions and what becomes of failed tasks the other.
"""

from __future__ import annotations

import array
import math
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, NamedTuple

from fbtasks.call import Cancelled, Claim, Failed, Outcome, Parked, Released, Retry, Succeeded
from fbtasks.showing import shorten, show

_PACKET: Final = 16_384
"""Bytes of a task that go in a packet; of a longer one the packet carries the file."""
_ROOM: Final = 1 << 21
_READ: Final = 1 << 18
_FILE: Final = array.array("i").itemsize
_LENGTH: Final = struct.Struct("=Q")
_WORD: Final = struct.Struct("=4sqq")
_DONE: Final = Succeeded(keep=False)
LONGEST: Final = 1 << 20
"""Bytes of a message without a result: the texts and the traceback of a failure, each of them limited."""


HOOK: Final = "hook"
SKIP: Final = "skip"
"""What the worker says to a place that waits with a failed task: to call its on_failure hooks, or not to."""


class HookCall(NamedTuple):
    """The on_failure hooks of a task that was not failed by the child that is to call them."""

    number: int
    """What worker and child call this run; below 0, as the ids of tasks are not."""
    failed: Failed


class Assignment(NamedTuple):
    """A task for a child to run, or to call the on_failure hooks of."""

    claim: Claim
    announce: bool
    """Whether the worker wants to hear at once that it has begun: it has time limits."""
    hooks: HookCall | None = None

    @property
    def number(self) -> int:
        """What worker and child call this run."""
        return self.claim.id if self.hooks is None else self.hooks.number


class Ended(NamedTuple):
    """What a child says of a task that has ended."""

    task: int
    outcome: Outcome
    elapsed: float
    recorded: bool
    """Whether the outcome is in the database already."""
    place: int | None = None
    """Where the child waits to hear whether the on_failure hooks of this task are to be called; None: nowhere."""


class Begun(NamedTuple):
    """What a child says of a task that was to be announced."""

    task: int
    since: float


class NotNow(NamedTuple):
    """What a child says that cannot become ready, for a reason that may be over in a moment."""

    why: str


Message = Ended | Begun | NotNow | str
"""A string is "ready", or why the child cannot become so."""


class Full(Exception):
    """No more packets fit for now."""


def task_sockets() -> tuple[socket.socket, socket.socket]:
    """The end to write tasks to, and the one to read them from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    return ours, theirs


def send_task(to: socket.socket, assignment: Assignment) -> None:
    """Writes one task.

    Raises :class:`Full`, ``BrokenPipeError`` or ``ConnectionResetError`` when nobody will read it, and any other
    :class:`OSError` when a longer one finds no room on this machine.
    """
    claim, announce, hooks = assignment
    data = pickle.dumps((hooks or announce, *claim), pickle.HIGHEST_PROTOCOL)
    try:
        if len(data) <= _PACKET:
            to.send(data, socket.MSG_DONTWAIT)
        else:
            with _new_file() as file:
                file.write(data)
                file.seek(0)
                descriptor = array.array("i", [file.fileno()])
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
                to.sendmsg([b"file"], ancillary, socket.MSG_DONTWAIT)
    except BlockingIOError:
        raise Full from None


def _new_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):  # needs no room in a folder for temporary files
        return os.fdopen(os.memfd_create("fbtasks-task"), "w+b")
    return tempfile.TemporaryFile()


def receive_task(source: socket.socket, *, wait: bool) -> Assignment | None:
    """Reads one task; None at the end. Raises :class:`BlockingIOError` when there is none now and *wait* is false."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    data, ancillary, _, _ = source.recvmsg(_PACKET, socket.CMSG_SPACE(_FILE), flags)
    if not data:
        return None
    for _, _, content in ancillary:
        with os.fdopen(int.from_bytes(content[:_FILE], "little"), "rb") as file:
            data = file.read()
    announce, *fields = pickle.loads(data)  # noqa: S301  # written by this process's parent
    return Assignment(Claim._make(fields), bool(announce), None if isinstance(announce, bool) else announce)


def unread_tasks(source: socket.socket) -> Iterator[int]:
    """Reads back all that the child has not taken. Gives the numbers of these runs."""
    with suppress(BlockingIOError, OSError):
        while (assignment := receive_task(source, wait=False)) is not None:
            yield assignment.number


def word(kind: str, first: int, second: int = 0) -> bytes:
    """What tells a child to interrupt a run (its kind and number), or a place that waits (HOOK, SKIP) what to do."""
    return _WORD.pack(kind.encode(), first, second)


def words(source: socket.socket) -> Iterator[tuple[str, int, int]]:
    """What the worker says, as it comes, until the end."""
    with source.makefile("rb") as file:
        while len(data := file.read(_WORD.size)) == _WORD.size:
            kind, first, second = _WORD.unpack(data)
            yield kind.decode(), first, second


def say(to: socket.socket, message: object) -> None:
    """Writes one message."""
    match message:
        case Ended(
            task, Succeeded(content_type, result, keep), elapsed, recorded
        ):  # the shortest form for what is most
            message = (task, elapsed, recorded, content_type, result) if keep else (task, elapsed, recorded)
    data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    to.sendall(_LENGTH.pack(len(data)) + data)


def _heard(message: Any) -> Message:
    """What a child has said. Raises :class:`ValueError` for what no child says."""
    if type(message) is tuple and len(message) == 3:
        task, elapsed, recorded = message
        said: Message = Ended(task, _DONE, elapsed, recorded)
    elif type(message) is tuple and len(message) == 5:
        task, elapsed, recorded, content_type, result = message
        said = Ended(task, Succeeded(content_type, result), elapsed, recorded)
    else:
        said = message
    if not _is_sound(said):
        raise ValueError(f"a message of type {type(message).__name__} that means nothing")
    return said


def _is_sound(said: object) -> bool:
    if type(said) is Ended:
        task, outcome, elapsed, recorded, place = said
        return (
            type(task) is int
            and type(elapsed) is float
            and 0.0 <= elapsed < math.inf
            and type(recorded) is bool
            and (outcome is _DONE or _is_outcome(outcome))
            and (place is None or type(place) is int)
        )
    if type(said) is Begun:
        return type(said.task) is int and type(said.since) is float and math.isfinite(said.since)
    if type(said) is NotNow:
        return type(said.why) is str
    return type(said) is str


def _is_outcome(outcome: object) -> bool:
    """Whether it is one that a child decides, with what belongs in it."""
    match outcome:
        case Succeeded(str(), bytes(), bool()) | Released() | Parked() | Cancelled(str()):
            return True
        case Failed(str(), str(), str(), args):
            return isinstance(args, bytes | None)
        case Retry(float() | int() as delay, str(), str()):
            return math.isfinite(delay)
    return False


class Hearing:
    """Reads messages as they come, many with one call of the system; none after one that cannot be read."""

    def __init__(self, source: socket.socket, longest: int = LONGEST) -> None:
        self._source = source
        self._longest = longest
        self._buffer = bytearray()
        self._needed = _LENGTH.size
        """Bytes that the buffer has to have before it is looked into."""
        self.junk = ""
        """Why nothing more can be read."""

    def messages(self) -> tuple[list[Message], bool]:
        """What has come, and whether it is the last."""
        if self.junk:
            return [], True
        over = False
        try:
            while True:
                chunk = self._source.recv(_READ, socket.MSG_DONTWAIT)
                if not chunk:
                    over = True
                    break
                self._buffer += chunk
                if len(chunk) < _READ:
                    break
        except BlockingIOError:
            pass
        except OSError:
            over = True
        found: list[Message] = []
        try:
            self._split(found)
        except BaseException as error:  # noqa: BLE001  # reading it may raise anything; it was written by a task
            self.junk = f"it said what cannot be read ({type(error).__name__}: {shorten(show(error), 200, ' ... ')})"
            self._buffer.clear()
        return found, over or bool(self.junk)

    def _split(self, found: list[Message]) -> None:
        buffer = self._buffer
        at, size = 0, len(buffer)
        if size < self._needed:
            return
        with memoryview(buffer) as view:
            while True:
                self._needed = _LENGTH.size
                start = at + _LENGTH.size
                if start > size:
                    break
                length = _LENGTH.unpack_from(buffer, at)[0]
                if length > self._longest:
                    raise ValueError(f"a message of {length:,} bytes")
                if start + length > size:
                    self._needed += length
                    break
                with view[start : start + length] as data:
                    found.append(_heard(pickle.loads(data)))  # noqa: S301
                at = start + length
        del buffer[:at]
