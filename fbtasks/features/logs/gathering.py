"""Gathers what a running task logs, in the process that runs it."""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from functools import partial
from typing import Final

from fbtasks.features.logs.options import keeps_logs
from fbtasks.features.logs.store import packed
from fbtasks.system.showing import CUT, sendable, shorten
from fbtasks.tasks.request import Request, current

HEAD: Final = 48 * 1024
TAIL: Final = 16 * 1024
"""Bytes that are kept of a try: its first lines, and the last ones."""
_LONGEST: Final = 4_000
_LONGEST_NAME: Final = 200
"""Characters of a line, and of the name of its logger; the middle of longer ones is left out."""


class Gathered:
    """The lines of one try."""

    def __init__(self, number: int) -> None:
        """*number*: which try it is, from 1 on."""
        self._try = number
        self._lock = threading.RLock()  # what an object logs that is freed meanwhile comes from the same thread
        self._head: list[bytes] = []
        self._room = HEAD
        self._tail: deque[bytes] = deque()
        self._size = 0
        self._left_out = 0
        self._is_told = True

    def add(self, line: bytes) -> None:
        """Adds a line, and drops lines between the first and the last ones for it where these are too many."""
        with self._lock:
            self._is_told = False
            if len(line) <= self._room:
                self._room -= len(line)
                self._head.append(line)
                return
            self._room = 0
            self._tail.append(line)
            self._size += len(line)
            while self._size > TAIL and len(self._tail) > 1:
                self._size -= len(self._tail.popleft())
                self._left_out += 1

    def take(self, *, ended: bool) -> bytes:  # noqa: ARG002
        """Returns the first lines since the last call, and all of the last lines."""
        with self._lock:
            if self._is_told:
                return b""
            self._is_told = True
            head, self._head = b"".join(self._head), []
            return packed(self._try, self._left_out, head, b"".join(self._tail))


class _Gatherer(logging.Handler):
    """Gives lines to the task that runs where they are logged, if it keeps its log."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Gathers *record*. Without the lock of the handler: a task may be interrupted while it has that."""
        request, reports, number, task = current()
        if request is not None and task is not None and keeps_logs(task):
            try:
                line = self._line(record)
            except Exception:  # noqa: BLE001  # its arguments do not fit, say; as other handlers do
                self.handleError(record)
            else:
                reports.gather(number, "logs", partial(Gathered, request.retries + 1)).add(line)
        return True

    @staticmethod
    def _line(record: logging.LogRecord) -> bytes:
        text = record.getMessage()
        if record.exc_info and not record.exc_text:
            record.exc_text = _PLAIN.formatException(record.exc_info)  # kept for other handlers
        text = "\n".join(filter(None, (text, record.exc_text, record.stack_info)))
        names = (shorten(sendable(name), _LONGEST_NAME, CUT) for name in (record.levelname, record.name))
        line = [round(record.created * 1000), *names, shorten(sendable(text), _LONGEST, "\n... (cut here) ...\n")]
        return json.dumps(line, ensure_ascii=False).encode() + b"\n"


_PLAIN: Final = logging.Formatter()
_GATHERER: Final = _Gatherer(logging.INFO)


def gather() -> None:
    """Begins to gather what is logged in this process, once."""
    root = logging.getLogger()
    if _GATHERER not in root.handlers:
        root.addHandler(_GATHERER)


def gather_still(_request: Request, _: None) -> None:
    """Gathers as before, when a run begins: who has configured logging meanwhile has dropped all handlers."""
    gather()
