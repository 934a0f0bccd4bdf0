"""Exceptions as they travel from the worker to the caller that waits for the result."""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import sys
import traceback
from types import TracebackType
from typing import Any, Final

from fbtasks.errors import TaskFailure
from fbtasks.system.showing import CUT, kind_of, name_of, sendable, shorten, show
from fbtasks.tasks.call import Failed
from fbtasks.tasks.serialize import check_json

PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_DEFINITION: Final = os.path.join(PACKAGE, "tasks", "definition.py")
_LIBRARY: Final = os.path.dirname(os.path.abspath(os.__file__))
MACHINERY: Final = tuple(
    os.path.join(*folder, "") for folder in ((PACKAGE,), (_LIBRARY, "asyncio"), (_LIBRARY, "concurrent"))
)


def describe_exception(error: BaseException, *, limit: int = 30_000) -> Failed:
    """*error* as it travels, its message and its traceback cut in the middle to *limit* characters each.

    The traceback begins where the task's own code does. It is empty when the function was not called, since the
    arguments do not fit. Survives exceptions that cannot be shown.
    """
    message = show(error)
    try:
        trace = _traceback(error)
    except BaseException:  # noqa: BLE001  # it, or what is chained to it, cannot be shown
        trace = f"{name_of(type(error))}: {message}\n(its traceback cannot be shown)\n"
    args = _args_payload(error)
    return Failed(
        error_type=name_of(type(error)),
        message=shorten(message, limit, CUT),
        args_payload=args if args is None or len(args) <= limit else None,
        traceback=shorten(trace, limit, "\n  ... (cut here) ...\n"),
    )


def rebuild_exception(failed: Failed) -> Exception:
    """The exception that *failed* describes, or a :class:`TaskFailure` that tells of it.

    Nothing is imported for it: the class must be loaded already, be an ordinary exception (SystemExit and
    KeyboardInterrupt are not), and give the same arguments and message again. The remote traceback is in its
    notes. Attributes other than the arguments are lost.
    """
    error = _construct(failed)
    if error is None:
        error = TaskFailure(f"{kind_of(failed.error_type)}: {failed.message}")
    if failed.traceback:
        with contextlib.suppress(Exception):
            BaseException.add_note(error, f"Remote traceback:\n{failed.traceback}")
    return error


def own_trace(error: BaseException) -> tuple[TracebackType | None, TracebackType | None]:
    """The traceback from where the task's own code begins, and the last frame of the worker's code before that."""
    trace, last = error.__traceback__, None
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(MACHINERY):
        trace, last = trace.tb_next, trace
    return trace, last


def _traceback(error: BaseException) -> str:
    """The traceback without the leading frames of the worker and of the executors that it uses."""
    trace, last = own_trace(error)
    if trace is None and last is not None and _calls_the_function(last):
        return ""
    lines = traceback.format_exception(type(error), error, trace or error.__traceback__)
    return sendable("".join(lines))


def _calls_the_function(trace: TracebackType) -> bool:
    """Whether a frame is where a task calls its function: the arguments do not fit when nothing is behind it."""
    code = trace.tb_frame.f_code
    return (code.co_filename, code.co_name) == (_DEFINITION, "__call__")


def _args_payload(error: BaseException) -> bytes | None:
    """Returns the arguments of *error*, as pickle would pass them to its class, in JSON."""
    from fbtasks.tasks import formats

    try:
        reduced = error.__reduce__()  # OSError has its file name only here, not in args
        args = list(reduced[1] if reduced[0] is type(error) and isinstance(reduced[1], tuple) else error.args)
        check_json(args, "the exception")
        return formats.dump_json(args)
    except BaseException:  # noqa: BLE001  # then it travels without
        return None


def _construct(failed: Failed) -> Exception | None:
    kind = _find_type(failed.error_type)
    payload = failed.args_payload
    if payload is None and failed.error_type.startswith("fbtasks.errors."):  # no task has raised it, such as WorkerLost
        payload = json.dumps([failed.message]).encode("ascii")
    if kind is None or not payload:
        return None
    from fbtasks.tasks import formats

    try:
        args = formats.load_json(payload)
        if not isinstance(args, list):
            return None
        made = kind(*args)
    except BaseException:  # noqa: BLE001  # a constructor that wants other arguments, or exits
        return None
    # Both sides as JSON: what went through it once, such as a tuple, is equal only after that.
    wanted = _args_payload(Exception(*args))
    message = show(made)
    head, cut, tail = failed.message.partition(CUT)
    agrees = message.startswith(head) and message.endswith(tail) if cut else message == failed.message
    same = wanted is not None and type(made) is kind and _args_payload(made) == wanted
    return made if same and agrees else None


def _find_type(name: str) -> type[Exception] | None:
    """The exception class of that name among what is loaded: looks into classes only, and imports nothing."""
    parts = name.split(".")
    for split in range(len(parts) - 1, -1, -1):
        module = sys.modules.get(".".join(parts[:split])) if split else builtins
        if module is None:
            continue
        found: Any = module
        for part in parts[split:]:
            found = getattr(found, "__dict__", {}).get(part)
            if not isinstance(found, type):
                return None
        return found if issubclass(found, Exception) else None
    return None
