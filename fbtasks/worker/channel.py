"""What a worker and its child processes say to each other.

Tasks go over a socket that keeps packets apart, one task in each. The worker keeps the child's end open as well, and
can so read back what the child has not taken: no answer is needed, whatever the child does. Everything else is a stream
of messages: outcomes one way, interruptions the other.
"""

from __future__ import annotations

import array
import os
import pickle
import socket
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple

from fbtasks.call import Claim, Outcome

_PACKET: Final = 16_384
"""Bytes of a task that go in a packet; of a longer one the packet carries the file."""
_ROOM: Final = 1 << 21
_READ: Final = 1 << 18
_FILE: Final = array.array("i").itemsize
_LENGTH: Final = struct.Struct("!i")
_LONG_LENGTH: Final = struct.Struct("!Q")
"""How ``multiprocessing.connection`` marks the length of a message."""


class Assignment(NamedTuple):
    """A task for a child to run."""

    claim: Claim
    announce: bool
    """Whether the worker wants to hear at once that it has begun: it has time limits."""


class Ended(NamedTuple):
    """What a child says of a task that has ended."""

    task: int
    outcome: Outcome
    elapsed: float
    recorded: bool
    """Whether the outcome is in the database already."""


class Begun(NamedTuple):
    """What a child says of a task that was to be announced."""

    task: int
    since: float


Message = Ended | Begun | str
"""A string is "ready", or why the child cannot become so."""


class Full(Exception):
    """No more packets fit for now."""


def task_sockets() -> tuple[socket.socket, socket.socket]:
    """The end to write tasks to, and the one to read them from."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    return ours, theirs


def send_task(to: socket.socket, assignment: Assignment) -> None:
    """Writes one task. Raises :class:`Full`, and :class:`OSError` when nobody will read it."""
    claim, announce = assignment
    data = pickle.dumps((announce, *claim), pickle.HIGHEST_PROTOCOL)
    try:
        if len(data) <= _PACKET:
            to.send(data, socket.MSG_DONTWAIT)
        else:
            with tempfile.TemporaryFile() as file:
                file.write(data)
                file.seek(0)
                descriptor = array.array("i", [file.fileno()])
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
                to.sendmsg([b"file"], ancillary, socket.MSG_DONTWAIT)
    except BlockingIOError:
        raise Full from None


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
    return Assignment(Claim._make(fields), announce)


def unread_tasks(source: socket.socket) -> Iterator[Claim]:
    """Reads back all tasks that the child has not taken."""
    with suppress(BlockingIOError, OSError):
        while (assignment := receive_task(source, wait=False)) is not None:
            yield assignment.claim


def say(pipe: Connection[Any, Any], message: object) -> None:
    """Writes one message."""
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


class Hearing:
    """Reads messages as they come, many with one call of the system."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._rest = b""

    def messages(self) -> tuple[list[Message], bool]:
        """What has come, and whether it is the last."""
        over = False
        chunks = [self._rest]
        try:
            while True:
                chunk = self._source.recv(_READ, socket.MSG_DONTWAIT)
                if not chunk:
                    over = True
                    break
                chunks.append(chunk)
                if len(chunk) < _READ:
                    break
        except BlockingIOError:
            pass
        except OSError:
            over = True
        return self._split(b"".join(chunks)), over

    def _split(self, data: bytes) -> list[Message]:
        found: list[Message] = []
        at = 0
        while at + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            start = at + _LENGTH.size
            if length == -1:
                if start + _LONG_LENGTH.size > len(data):
                    break
                (length,) = _LONG_LENGTH.unpack_from(data, start)
                start += _LONG_LENGTH.size
            if start + length > len(data):
                break
            found.append(pickle.loads(memoryview(data)[start : start + length]))  # noqa: S301
            at = start + length
        self._rest = data[at:]
        return found
