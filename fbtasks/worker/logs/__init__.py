"""What a worker and its child processes log: where to, and in what form.

The application comes first. It is imported before anything is set up here, and what it has arranged for the root logger
by then stays, and gets the worker's lines as well. Only where it has arranged nothing, or where the command line asks
for a file or a format, the handler of this module is added.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Final

from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError
from fbtasks.run.interrupts import TaskStopped
from fbtasks.tasks.request import current_request
from fbtasks.worker.logs.outlet import Outlet, Stream, takes_more, write_all

FORMATS: Final = ("text", "json")
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}
_QUIET: Final = 60.0
"""Seconds between two complaints that lines of the log are lost."""
_WHOLE: Final = 4096
"""Bytes that a pipe takes in one piece (PIPE_BUF), however many processes write to it."""

_next_complaint = 0.0


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a worker and its children log."""

    level: str = "INFO"
    format: str = "text"
    file: str | None = None
    """The absolute path of the file to append to; None: the standard error."""
    worker: str = ""
    """The worker's name, for lines in JSON."""

    @property
    def asked(self) -> bool:
        """Whether a file or a format was asked for, so that this module's handler is wanted in any case."""
        return self.file is not None or self.format != "text"

    def argument(self) -> str:
        """The options as one argument of a child's command line: the level, if that is all there is to say."""
        return json.dumps(astuple(self)) if self.asked else self.level

    @classmethod
    def of(cls, argument: str) -> LogOptions:
        """The options that :meth:`argument` wrote."""
        return cls(*json.loads(argument)) if argument.startswith("[") else cls(argument)


def set_up(options: LogOptions, *, waits: bool = True) -> None:
    """Has this process log as *options* say; called once, when the application has been imported.

    Without *waits* a pipe or a terminal that nothing reads does not hold up the process, which loses lines instead.
    Raises :class:`ConfigurationError` when the file cannot be opened.
    """
    root = logging.getLogger()
    ours = Lines(options, waits=waits) if options.asked or all(map(_is_default, root.handlers)) else None
    for handler in root.handlers[:]:
        if _is_default(handler) or (options.asked and options.file is None and _is_console(handler)):
            root.removeHandler(handler)
    if ours is not None:
        root.setLevel(min(root.level, ours.level) if root.handlers else ours.level)
        root.addHandler(ours)
    if not waits:
        for handler in root.handlers:
            _hurry(handler)
    package = logging.getLogger("fbtasks")
    if package.level == logging.NOTSET:
        package.setLevel(options.level)
    for logger in (package, *_descendants(package)):
        logger.disabled = False  # as dictConfig leaves all that it does not name
        _shield(logger)


def finish() -> None:
    """Waits a moment for lines that have not been written: the process is about to become another one, or to end."""
    for handler in logging.getLogger().handlers:
        with suppress(Exception):
            handler.flush()
            if isinstance(handler, logging.StreamHandler) and isinstance(handler.stream, Stream):
                handler.stream.finish()


@contextmanager
def together() -> Iterator[None]:
    """Has what this module's handler gets in the block written at its end, many lines with one call of the system."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, Lines)]
    for handler in handlers:
        handler.hold()
    try:
        yield
    finally:
        for handler in handlers:
            handler.let_go()


def _hurry(handler: logging.Handler) -> None:
    """Keeps a handler of the application from waiting for the reader of the console."""
    if _is_console(handler) and isinstance(handler, logging.StreamHandler):
        with suppress(OSError, ValueError):  # it has no descriptor, and so nothing to wait for
            handler.setStream(Stream(handler.stream))


def _is_console(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)


def _is_default(handler: logging.Handler) -> bool:
    """Whether *handler* is that of a plain ``logging.basicConfig()``, which ``logging.info()`` calls as well."""
    if type(handler) is not logging.StreamHandler or handler.stream is not sys.stderr or handler.formatter is None:
        return False
    probe = logging.LogRecord("name", logging.INFO, "", 0, "text", (), None)
    with suppress(Exception):  # the application's formatter may want what this record does not have
        return handler.formatter.format(probe) == logging.Formatter(logging.BASIC_FORMAT).format(probe)
    return False


def _descendants(package: logging.Logger) -> list[logging.Logger]:
    found = logging.Logger.manager.loggerDict.values()
    return [
        logger for logger in found if isinstance(logger, logging.Logger) and logger.name.startswith(f"{package.name}.")
    ]


def _shield(logger: logging.Logger) -> None:
    """Keeps what a handler of the application raises from the code of this package that logs."""
    handle = logger.handle

    def shielded(record: logging.LogRecord) -> None:
        try:
            handle(record)
        except TaskStopped:
            raise
        except BaseException as error:  # noqa: BLE001  # whatever it is, a task's outcome is worth more than a line
            _complain(f"a log handler of the application raised {type(error).__name__}: {error}")

    logger.handle = shielded  # type: ignore[method-assign]  # of this one logger


class Lines(logging.Handler):
    """Writes each record in one piece, so that the lines of several processes stay whole.

    A file is opened anew when it has been moved away or deleted, as logrotate does.
    """

    def __init__(self, options: LogOptions, *, waits: bool = True) -> None:
        super().__init__(options.level)
        self._path = options.file
        self._waits = waits
        self._outlet: Outlet | None = None
        self._held: list[bytes] | None = None
        """Lines that are to be written together; None: each at once."""
        self._identity: tuple[int, int] | None = None
        self._descriptor = _console() if self._path is None else -1
        if self._descriptor >= 0:
            self._identity = _identity(os.fstat(self._descriptor))
        if self._path is not None:
            try:
                self._look_at_file()
            except OSError as error:
                raise ConfigurationError(
                    f"the log file {self._path} cannot be written: {error.strerror}. "
                    "Name a file in a folder that exists and that this user may write."
                ) from error
        json_wanted = options.format == "json"
        self.setFormatter(
            JsonFormatter(options.worker) if json_wanted else TextFormatter(colours=self._path is None and colours())
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Writes *record*. What cannot be written is lost, and that is said from time to time."""
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001  # arguments that do not fit the message: the library shows where
            self.handleError(record)
            return
        data = line.encode("utf-8", "backslashreplace")
        if self._held is None:
            self._put(data)
        else:
            self._held.append(data)

    def hold(self) -> None:
        """Keeps what comes, until :meth:`let_go`."""
        with self.lock or nullcontext():
            self._held = []

    def let_go(self) -> None:
        """Writes what was kept."""
        with self.lock or nullcontext():
            held, self._held = self._held or [], None
            for lines in _pieces(held):
                self._put(lines)

    def _put(self, data: bytes) -> None:
        try:
            self._look_at_file()
            if self._descriptor >= 0:
                self._write(data)
        except OSError as error:
            if self._path is not None:
                _complain(f"the log file {self._path} cannot be written: {error.strerror}")

    def flush(self) -> None:
        """Waits a moment for what has not been written."""
        if self._outlet is not None:
            self._outlet.flush()

    def _write(self, data: bytes) -> None:
        if self._waits:
            write_all(self._descriptor, data)
            return
        self._outlet = self._outlet or Outlet(self._descriptor)
        self._outlet.write(data)

    def _look_at_file(self) -> None:
        """Opens the file, anew when it was moved away; leaves the console alone when its number is another file's."""
        if self._is_the_same():
            return
        descriptor, self._descriptor = self._descriptor, -1
        if self._path is None:  # a task may have closed it, and it may be the database's file by now
            return
        if descriptor >= 0:
            os.close(descriptor)
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        self._identity, self._outlet = _identity(os.fstat(self._descriptor)), None

    def _is_the_same(self) -> bool:
        if self._descriptor < 0:
            return self._path is None
        with suppress(FileNotFoundError):
            status = os.fstat(self._descriptor) if self._path is None else os.stat(self._path)
            return _identity(status) == self._identity
        return False


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    """The *lines*, joined as far as they stay whole."""
    piece = b""
    for line in lines:
        if piece and len(piece) + len(line) > _WHOLE:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


def _console() -> int:
    """The descriptor of the standard error; -1 when there is none, so that it may be any file by now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return -1


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def colours() -> bool:
    """Whether the standard error is a terminal whose user has not asked for none (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    descriptor = _console()
    return descriptor >= 0 and os.isatty(descriptor)


class TextFormatter(logging.Formatter):
    """Time, level and message; in front of the message the task that it was logged in.

    Further lines are indented and control characters shown escaped, so that no text of a task looks like a line of its
    own or reaches the terminal as a command.
    """

    def __init__(self, *, colours: bool) -> None:
        super().__init__()
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        """*record* as one line, and indented ones below it."""
        text = record.getMessage()
        request = current_request()
        if request is not None:
            task = f"Task {request.id} ({request.task})"
            text = text if text.startswith(task) else f"{task}: {text}"
        text = "\n".join(filter(None, (text, _trace(record, self), record.stack_info)))
        if not text.isprintable():
            text = visible(text)
        time, level = self.formatTime(record), record.levelname
        if self._colours:
            time, level = f"\x1b[2m{time}\x1b[0m", f"\x1b[{_COLOURS.get(level, '0')}m{level}\x1b[0m"
        return f"{time} {level} {text}"


class JsonFormatter(logging.Formatter):
    """One JSON object on one line."""

    def __init__(self, worker: str) -> None:
        super().__init__()
        self._worker = worker

    def format(self, record: logging.LogRecord) -> str:
        """*record* as JSON, without what it does not have."""
        task_id, task_name = _task_of(record)
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self._worker,
            "pid": record.process,
            "task_id": task_id,
            "task_name": task_name,
            "traceback": _trace(record, self),
            "stack": record.stack_info,
        }
        return json.dumps({name: value for name, value in entry.items() if value is not None}, default=str)


class TaskFilter(logging.Filter):
    """Adds to each record ``task_id`` and ``task_name``, for the formats of an application that logs by itself.

    They are those of the task that runs where the line is logged, and "-" outside of one. What the record has already
    of these names stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        task_id, task_name = _task_of(record)
        record.__dict__.setdefault("task_id", task_id or "-")
        record.__dict__.setdefault("task_name", task_name or "-")
        return True


def _task_of(record: logging.LogRecord) -> tuple[str | None, str | None]:
    """Id and name of the task that *record* was logged in, or else speaks of."""
    request = current_request()
    if request is not None:
        return request.id, request.task
    return getattr(record, "task_id", None), getattr(record, "task_name", None)


def _trace(record: logging.LogRecord, formatter: logging.Formatter) -> str | None:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)  # kept for other handlers, as the library does
    return record.exc_text


def visible(text: str, indent: str = "\n  ") -> str:
    """*text* with each further line after *indent*, and what is neither printable nor a tab escaped as in Python."""
    return indent.join(
        "".join(map(_shown, line)) if not line.isprintable() else line
        for line in text.rstrip("\n").replace("\r\n", "\n").split("\n")
    )


def _shown(c: str) -> str:
    if c.isprintable() or c == "\t" or unicodedata.category(c) == "Zs":
        return c
    return c.encode("unicode_escape").decode("ascii")


def _complain(text: str) -> None:
    """Says on the standard error, once in a while, that lines of the log are lost, and why."""
    global _next_complaint
    now = clock.monotonic()
    if now < _next_complaint:
        return
    _next_complaint = now + _QUIET
    with suppress(Exception):  # there may be no standard error either
        if (descriptor := _console()) >= 0 and not takes_more(descriptor):
            return
        sys.stderr.write(f"fbtasks: {visible(text, ' ')}; lines of the log are lost.\n")
