"""The messages between a worker and its child processes.

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
from typing import Final, NamedTuple

from fbtasks.tasks.call import Claim, Outcome, Succeeded

PACKET: Final = 16_384
"""Bytes of a task that go in a packet; of a longer one the packet carries the file."""
_FILE: Final = array.array("i").itemsize
LENGTH: Final = struct.Struct("=Q")
"""What stands before each message of a child."""
_WORD: Final = struct.Struct("=4sq")
WORD_SIZE: Final = _WORD.size


class Ended(NamedTuple):
    """A task has ended."""

    task: int
    outcome: Outcome
    elapsed: float
    recorded: bool
    """Whether the outcome is in the database already."""


class Ready(NamedTuple):
    """The child has imported the app, or could not."""

    why_not: str = ""
    """Why it cannot become ready."""
    for_now: bool = False
    """Whether that may be over in a moment."""


class Reported(NamedTuple):
    """A running task sends something to a feature."""

    task: int
    feature: str
    data: bytes


Message = Ended | Ready | Reported


def memory_file(name: str) -> int:
    """A new file without a place in any folder, as far as this system has such files. Returns its descriptor."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def pack_message(message: Message) -> bytes:
    """Returns the bytes of *message*; the most frequent ones have a short form."""
    said: object = message
    match message:
        case Ended(task, Succeeded(content_type, result, keep), elapsed, recorded):
            said = (task, elapsed, recorded, content_type, result) if keep else (task, elapsed, recorded)
    data = pickle.dumps(said, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(data)) + data


def pack_word(kind: str, task: int) -> bytes:
    """Returns the bytes that interrupt *task*."""
    return _WORD.pack(kind.encode(), task)


def unpack_word(data: bytes) -> tuple[str, int]:
    """Returns what :func:`pack_word` was given."""
    kind, task = _WORD.unpack(data)
    return kind.decode(), task


def receive_task(source: socket.socket, *, wait: bool) -> Claim | None:
    """Reads one task; None at the end. Raises :class:`BlockingIOError` when there is none now and *wait* is false."""
    flags = 0 if wait else socket.MSG_DONTWAIT
    data, ancillary, _, _ = source.recvmsg(PACKET, socket.CMSG_SPACE(_FILE), flags)
    if not data:
        return None
    for _, _, content in ancillary:
        with os.fdopen(int.from_bytes(content[:_FILE], "little"), "rb") as file:
            data = file.read()
    return Claim._make(pickle.loads(data))  # noqa: S301  # written by this process's parent
