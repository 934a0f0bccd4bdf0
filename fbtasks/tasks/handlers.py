"""Handlers: methods of a class of tasks that are called when a run begins, and with its end."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.tasks.request import Hook, Request

HANDLERS: Final = {
    "before_start": ("task_id", "args", "kwargs"),
    "on_success": ("retval", "task_id", "args", "kwargs"),
    "on_failure": ("exc", "task_id", "args", "kwargs", "einfo"),
    "on_retry": ("exc", "task_id", "args", "kwargs", "einfo"),
    "after_return": ("status", "retval", "task_id", "args", "kwargs", "einfo"),
}
"""The methods that are handlers, and what each is given. They are Celery's."""
_ON_FAILURE: Final = ":on_failure"
"""What the names of the tasks end with that call the on_failure hooks of others; FBTASKS_CORE.ARCHIVE makes them."""
APP_HOOK: Final = f"app{_ON_FAILURE}"
"""The one for a failed task that no worker knew."""
_STATUS: Final = {"before_start": "", "on_success": "SUCCESS", "on_failure": "FAILURE", "on_retry": "RETRY"}


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The exception that a handler is told of."""

    exception: BaseException

    @property
    def type(self) -> type[BaseException]:
        """Its class."""
        return type(self.exception)

    @property
    def traceback(self) -> str:
        """Its traceback as text."""
        return "".join(traceback.format_exception(self.exception))

    def __str__(self) -> str:
        return self.traceback


def hook_name(task: str) -> str:
    """The name of the task that calls the on_failure hooks of *task*."""
    return f"{task[:244]}{_ON_FAILURE}"


def is_hook(name: str) -> bool:
    """Whether the task of that *name* calls the on_failure hooks of another."""
    return name.endswith(_ON_FAILURE)


def hooks_of(task: object, options: object) -> Mapping[str, tuple[Hook, ...]]:
    """Returns the hooks of *task* by their names: its options, then the handlers of its class.

    Raises :class:`TaskDefinitionError` for a handler that cannot be called as one.
    """
    hooks = {}
    for name, status in _STATUS.items():
        found = [getattr(options, name, None), _handler(task, name, status)]
        if status in ("SUCCESS", "FAILURE"):
            found.append(_handler(task, "after_return", status))
        hooks[name] = tuple(hook for hook in found if hook is not None)
    return hooks


def _handler(task: object, name: str, status: str) -> Hook | None:
    """The handler *name* of the class of *task* as a hook."""
    if getattr(type(task), name, None) is None:
        return None
    parameters, handler = HANDLERS[name], getattr(task, name)
    try:
        inspect.signature(handler).bind(*parameters)
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(
            f"{name} of the class {type(task).__name__} is called as {name}({', '.join(parameters)}): {error}."
        ) from None

    def hook(request: Request, value: Any) -> None:
        given = {
            "task_id": request.id, "args": request.args, "kwargs": request.kwargs, "status": status, "retval": value,
            "exc": value, "einfo": None if status == "SUCCESS" else ErrorInfo(value),
        }  # fmt: skip
        handler(*(given[each] for each in parameters))

    return hook
