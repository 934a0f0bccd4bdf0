"""Configures the log of a worker and of its child processes.

The application comes first. It is imported before anything is set up here, and what it has arranged for the root logger
by then stays, and gets the worker's lines as well. Only where it has arranged nothing, or where the command line asks
for a file or a format, the handler of this module is added.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import unicodedata
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.run.interrupts import TaskStopped
from fbtasks.system.showing import sendable
from fbtasks.tasks.request import current_request
from fbtasks.timing import Quiet
from fbtasks.worker.logs.stream import Stream, identities, takes_more

FORMATS: Final = ("text", "json")
_COLOURS: Final = {"DEBUG": "2", "INFO": "32", "WARNING": "33", "ERROR": "31", "CRITICAL": "1;31"}

_quiet = Quiet()
"""For complaints that lines of the log are lost."""


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
    """Configures the log of this process; called once, when the application has been imported.

    Without *waits* a pipe or a terminal that nothing reads does not hold up the process, which loses lines instead.
    Raises :class:`ConfigurationError` when the file cannot be opened.
    """
    root = logging.getLogger()
    ours = _handler(options) if options.asked or all(map(_is_default, root.handlers)) else None
    for handler in root.handlers[:]:
        if _is_default(handler) or (options.asked and options.file is None and _is_console(handler)):
            root.removeHandler(handler)
    if ours is not None:
        root.setLevel(min(root.level, ours.level) if root.handlers else ours.level)
        root.addHandler(ours)
    for handler in [] if waits else root.handlers:
        if isinstance(handler, logging.StreamHandler) and (handler is ours or _is_console(handler)):
            handler.setStream(Stream.of(handler.stream))
    package = logging.getLogger("fbtasks")
    if package.level == logging.NOTSET:
        package.setLevel(options.level)
    for name in [*logging.Logger.manager.loggerDict]:
        if f"{name}.".startswith("fbtasks."):
            logger = logging.getLogger(name)
            logger.disabled = False  # as dictConfig leaves all that it does not name
            _shield(logger)


def finish() -> None:
    """Waits a moment for lines that have not been written: the process is about to become another one."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.StreamHandler) and isinstance(handler.stream, Stream):
            handler.stream.finish()


def _is_console(handler: logging.Handler) -> bool:
    """Whether *handler* writes to the standard output or error."""
    return isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)


def _is_default(handler: logging.Handler) -> bool:
    """Whether *handler* is that of a plain ``logging.basicConfig()``, which ``logging.info()`` calls as well."""
    if type(handler) is not logging.StreamHandler or handler.stream is not sys.stderr or handler.formatter is None:
        return False
    probe = logging.LogRecord("name", logging.INFO, "", 0, "text", (), None)
    with suppress(Exception):  # the application's formatter may want what this record does not have
        return handler.formatter.format(probe) == logging.Formatter(logging.BASIC_FORMAT).format(probe)
    return False


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


def _handler(options: LogOptions) -> logging.StreamHandler[Any]:
    """This module's own."""
    try:
        handler = _Console() if options.file is None else _LogFile(options.file)
    except OSError as error:
        raise ConfigurationError(
            f"the log file {options.file} cannot be written: {error.strerror}. "
            "Name a file in a folder that exists and that this user may write."
        ) from error
    handler.setLevel(options.level)
    handler.setFormatter(
        JsonFormatter(options.worker)
        if options.format == "json"
        else TextFormatter(colours=options.file is None and colours())
    )
    return handler


class _Console(logging.StreamHandler[Any]):
    """The standard error. It is left alone when a task has closed it: its number may be the database's file by now."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._number = (_console(),)
        self._file = identities(self._number)

    def emit(self, record: logging.LogRecord) -> None:
        """Writes *record*, if that is possible."""
        if isinstance(self.stream, Stream) or (self._file and identities(self._number) == self._file):
            super().emit(record)


class _LogFile(logging.handlers.WatchedFileHandler):
    """A file, opened anew when it was moved away or deleted. Lines stay whole beside those of other processes."""

    def __init__(self, path: str) -> None:
        super().__init__(path, encoding="utf-8", errors="backslashreplace")

    def emit(self, record: logging.LogRecord) -> None:
        """Writes *record*. What cannot be written is lost, and that is said from time to time."""
        try:
            super().emit(record)
        except OSError:  # it cannot be opened anew
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # the library's
        """Says that the file cannot be written. Of arguments that do not fit a message the library shows where."""
        if isinstance(error := sys.exception(), OSError):
            _complain(f"the log file {self.baseFilename} cannot be written: {error.strerror}")
        else:
            super().handleError(record)


def _console() -> int:
    """The descriptor of the standard error; -1 when there is none, so that it may be any file by now."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError):
        return -1


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
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "worker": self._worker,
            "pid": record.process,
            **_task_of(record),
            "trace_id": getattr(record, "trace_id", None),
            **_span(),
            "traceback": _trace(record, self),
            "stack": record.stack_info,
        }
        found = {name: sendable(value) if isinstance(value, str) else value for name, value in entry.items()}
        return json.dumps({name: value for name, value in found.items() if value is not None}, default=str)


class TaskFilter(logging.Filter):
    """Adds ``task_id``, ``task_name`` and ``task_try`` to each record, for the formats of an application.

    They are those of the task that runs where the line is logged, and "-" outside of one. What the record has already
    of these names stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Lets every record pass."""
        for name, value in _task_of(record).items():
            record.__dict__.setdefault(name, value or "-")
        return True


def _task_of(record: logging.LogRecord) -> dict[str, Any]:
    """Id and name of the task that *record* was logged in, or else speaks of, and which try it is."""
    request = current_request()
    if request is not None:
        return {"task_id": request.id, "task_name": request.task, "task_try": request.retries + 1}
    return {name: getattr(record, name, None) for name in ("task_id", "task_name", "task_try")}


def _span() -> dict[str, str]:
    """The ids of OpenTelemetry's current span, where the program has imported it."""
    current = getattr(sys.modules.get("opentelemetry.trace"), "get_current_span", None)
    context = None if current is None else current().get_span_context()
    if context is None or not context.is_valid:
        return {}
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}


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
    with suppress(Exception):  # there may be no standard error, or one that nothing reads
        if _quiet.over() and takes_more(_console()):
            sys.stderr.write(f"fbtasks: {visible(text, ' ')}; lines of the log are lost.\n")
