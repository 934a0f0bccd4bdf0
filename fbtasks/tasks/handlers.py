"""What a class of tasks may have beside its own methods: handlers that are called with a run's end, and options."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

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


class Hooks(NamedTuple):
    """What is called when a task begins and when a run of it has ended; those of the app come after these."""

    before: Callable[[Request], None] | None = None
    success: tuple[Hook, ...] = ()
    failure: tuple[Hook, ...] = ()
    retry: tuple[Hook, ...] = ()


def hooks_of(task: object, on_success: Hook | None, on_failure: Hook | None, on_retry: Hook | None) -> Hooks:
    """The hooks that are options of *task*, and after them the handlers that its class has.

    Raises :class:`TaskDefinitionError` for a handler that cannot be called as one.
    """
    before, success, failure, retry, after = (_handler(task, name) for name in _HANDLERS)
    found = Hooks(
        before=None if before is None else lambda request: before(*_call_of(request)),
        success=tuple(hook for hook in (on_success, success and _of_value(success)) if hook is not None),
        failure=tuple(hook for hook in (on_failure, failure and _of_error(failure)) if hook is not None),
        retry=tuple(hook for hook in (on_retry, retry and _of_error(retry)) if hook is not None),
    )
    if after is None:
        return found
    return found._replace(
        success=(*found.success, lambda request, value: after("SUCCESS", value, *_call_of(request), None)),
        failure=(
            *found.failure,
            lambda request, error: after("FAILURE", error, *_call_of(request), ErrorInfo(error)),
        ),
    )


def _handler(task: object, name: str) -> Callable[..., None] | None:
    method = getattr(type(task), name, None)
    if method is None:
        return None
    given, bound = _HANDLERS[name], getattr(task, name)
    try:
        inspect.signature(bound).bind(*given)
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(
            f"{name} of the class {type(task).__name__} is called as {name}({', '.join(given)}): {error}."
        ) from None
    return bound  # type: ignore[no-any-return]


def _call_of(request: Request) -> tuple[str, tuple[Any, ...], Mapping[str, Any]]:
    return request.id, request.args, request.kwargs


def _of_value(handler: Callable[..., None]) -> Hook:
    return lambda request, value: handler(value, *_call_of(request))


def _of_error(handler: Callable[..., None]) -> Hook:
    return lambda request, error: handler(error, *_call_of(request), ErrorInfo(error))


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
