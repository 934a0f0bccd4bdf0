"""The worker's ends of the sockets to a child process: tasks are sent, and what the child says is read and checked."""

from __future__ import annotations

import array
import math
import os
import pickle
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from fbtasks.system import sockets
from fbtasks.system.showing import shorten, show
from fbtasks.tasks.call import (
    Cancelled,
    Claim,
    Extra,
    Failed,
    FeatureOutcome,
    Outcome,
    Reason,
    Requeue,
    Several,
    Succeeded,
)
from fbtasks.worker.pools.wire import (
    LENGTH,
    PACKET,
    Ended,
    Message,
    Ready,
    Reported,
    memory_file,
    receive_task,
)

_ROOM: Final = 1 << 21
_READ: Final = 1 << 18
_DONE: Final = Succeeded(keep=False)
LONGEST: Final = 1 << 20
"""Bytes of a message without a result: the texts and the traceback of a failure, each of them limited."""


class Full(Exception):
    """No more packets fit for now."""


def task_sockets() -> tuple[socket.socket, socket.socket]:
    """The end to write tasks to, and the one to read them from."""
    ours, theirs = sockets.pair(socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    return ours, theirs


def send_task(to: socket.socket, claim: Claim) -> None:
    """Writes one task.

    Raises :class:`Full`, ``BrokenPipeError`` or ``ConnectionResetError`` when the child will not read it, and any other
    :class:`OSError` when a longer one finds no room on this machine.
    """
    data = pickle.dumps(tuple(claim), pickle.HIGHEST_PROTOCOL)
    try:
        if len(data) <= PACKET:
            to.send(data, socket.MSG_DONTWAIT)
        else:
            with os.fdopen(memory_file("fbtasks-task"), "w+b") as file:
                file.write(data)
                file.seek(0)
                descriptor = array.array("i", [file.fileno()])
                ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)]
                to.sendmsg([b"file"], ancillary, socket.MSG_DONTWAIT)
    except BlockingIOError:
        raise Full from None


def unread_tasks(source: socket.socket) -> Iterator[int]:
    """Reads back all that the child has not taken. Returns the ids of these tasks."""
    with suppress(BlockingIOError, OSError):
        while (claim := receive_task(source, wait=False)) is not None:
            yield claim.id


def _heard(message: Any) -> Message:
    """Returns a message of a child. Raises :class:`ValueError` for what no child sends."""
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
        task, outcome, elapsed, recorded = said
        return (
            type(task) is int
            and type(elapsed) is float
            and 0.0 <= elapsed < math.inf
            and type(recorded) is bool
            and (outcome is _DONE or _is_outcome(outcome))
        )
    if type(said) is Reported:
        return type(said.task) is int and type(said.feature) is str and type(said.data) is bytes
    return type(said) is Ready and type(said.why_not) is str and type(said.for_now) is bool


def _is_outcome(outcome: Outcome) -> bool:
    """Whether it is one that a child decides, with what belongs in it."""
    match outcome:
        case Succeeded(str(), bytes(), bool()):
            return True
        case Cancelled(str(), extra):
            return _is_extra(extra)
        case Failed(str(), str(), str(), args, extra):
            return isinstance(args, bytes | None) and _is_extra(extra)
        case Requeue(Reason(), float() | int() as delay, str(), str(), extra, str()):
            return math.isfinite(delay) and _is_extra(extra)
        case FeatureOutcome():
            return outcome.is_sound()
        case Several(tuple() as parts):
            return all(not isinstance(part, Several) and _is_outcome(part) for part in parts)
    return False


def _is_extra(extra: object) -> bool:
    return extra is None or (isinstance(extra, Extra) and extra.is_sound())


class Hearing:
    """Reads messages as they come, many with one call of the system; none after one that cannot be read."""

    def __init__(self, source: socket.socket, longest: int = LONGEST) -> None:
        self._source = source
        self._longest = longest
        self._buffer = bytearray()
        self._needed = LENGTH.size
        """Bytes that the buffer has to have before it is looked into."""
        self.junk = ""
        """Why nothing more can be read."""

    def messages(self) -> tuple[list[Message], bool]:
        """Returns the messages that have come, and whether these are the last."""
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
                self._needed = LENGTH.size
                start = at + LENGTH.size
                if start > size:
                    break
                length = LENGTH.unpack_from(buffer, at)[0]
                if length > self._longest:
                    raise ValueError(f"a message of {length:,} bytes")
                if start + length > size:
                    self._needed += length
                    break
                with view[start : start + length] as data:
                    found.append(_heard(pickle.loads(data)))  # noqa: S301
                at = start + length
        del buffer[:at]
