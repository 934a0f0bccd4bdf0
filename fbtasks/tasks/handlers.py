"""What a class of tasks may have beside its own methods: handlers that are called with a run's end, and options."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.system import checks
from fbtasks.tasks.celery_words import instead, words
from fbtasks.tasks.request import Hook, Request

_HANDLERS: Final = {
    "before_start": ("task_id", "args", "kwargs"),
    "on_success": ("retval", "task_id", "args", "kwargs"),
    "on_failure": ("exc", "task_id", "args", "kwargs", "einfo"),
    "on_retry": ("exc", "task_id", "args", "kwargs", "einfo"),
    "after_return": ("status", "retval", "task_id", "args", "kwargs", "einfo"),
}
"""The methods that are handlers, and what each is given. They are Celery's."""
_STATUS: Final = {"before_start": "", "on_success": "SUCCESS", "on_failure": "FAILURE", "on_retry": "RETRY"}
_NO_OPTIONS: Final = {"name", "base", *_HANDLERS}
"""Options that the attributes of a class do not give."""
_IGNORED: Final = "abstract"
"""A word of Celery's for a class of tasks that says nothing here: no class is a task by itself."""


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


def hooks_of(task: object, options: object) -> Mapping[str, tuple[Hook, ...]]:
    """What is called at the begin and at each end of a run of *task*: its options of these names, then its class's.

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
    parameters, handler = _HANDLERS[name], getattr(task, name)
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


def check_class(what: str, kind: object, root: type) -> type[Any]:
    """Returns *kind*, a class of tasks. Raises :class:`TaskDefinitionError` unless it derives from *root*."""
    if not isinstance(kind, type) or not issubclass(kind, root):
        raise TaskDefinitionError(f"{what} {checks.shown(kind)} must be a class that derives from fbtasks.Task.")
    try:
        inspect.signature(kind).bind(None, None)
    except (TypeError, ValueError):
        raise TaskDefinitionError(
            f"{what} {kind.__name__} has an __init__ of its own, which is not called as that of a task: give the class "
            "attributes, or what functools.cached_property makes when it is first used."
        ) from None
    return kind


def class_options(kind: type[Any], root: type, known: Iterable[str]) -> dict[str, Any]:
    """The options that the attributes of *kind* and of its bases below *root* give to its tasks.

    Raises :class:`TaskDefinitionError` for an attribute that is an option of Celery's and none here.
    """
    attributes: dict[str, Any] = {}
    for each in reversed(kind.__mro__[: kind.__mro__.index(root)]):
        attributes |= {name: value for name, value in vars(each).items() if not name.startswith("__")}
    if attributes:
        _refuse(kind, attributes.keys() - {_IGNORED, *_HANDLERS})
    return {name: attributes[name] for name in attributes.keys() & (set(known) - _NO_OPTIONS)}


def _refuse(kind: type[Any], names: Iterable[str]) -> None:
    for name in sorted(set(names) & words()["task option"].keys()):
        raise TaskDefinitionError(
            f"the class {kind.__name__} has {name!r}, an option of Celery's for tasks{instead(name, 'task option')}"
        )
