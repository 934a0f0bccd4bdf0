"""Checks which functions can be tasks, and the arguments of their calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fbtasks.errors import EnqueueError, TaskDefinitionError
from fbtasks.system import checks


def check_function(function: Any, *, bind: bool = False) -> None:
    """Raises :class:`TaskDefinitionError` unless *function* can be a task."""
    what = checks.shown(function)
    if isinstance(function, str):
        raise TaskDefinitionError(f"{what} is not a function; the name of a task is an option: @app.task(name={what}).")
    if not callable(function):
        raise TaskDefinitionError(f"{what} is not a function.")
    if isinstance(function, type) or not hasattr(function, "__qualname__") or not hasattr(function, "__module__"):
        raise TaskDefinitionError(f"{what} is not a function: define one that calls it, and make that the task.")
    name = function.__qualname__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TaskDefinitionError(
            f"{name!r} is a generator function, and a task returns one value: return a list, or make each item a call."
        )
    if not bind:
        return
    with suppress(ValueError):  # a function written in C that does not tell its parameters
        try:
            inspect.signature(function).bind_partial(None)
        except TypeError:
            raise TaskDefinitionError(
                f"bind=True gives {name!r} the task as its first argument, and it takes none."
            ) from None


def same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether both come from one line: a module that was run as a script and is imported again."""
    first, second = (getattr(inspect.unwrap(function), "__code__", None) for function in (one, other))
    if first is None or second is None:  # a function written in C
        return one is other
    return (first.co_filename, first.co_firstlineno) == (second.co_filename, second.co_firstlineno)


class Parameters:
    """The parameters of a task's function; *first* are the arguments that it gets before those of a call."""

    def __init__(self, function: Callable[..., Any], first: tuple[Any, ...]) -> None:
        self._function = function
        self._first = first
        self._signature: inspect.Signature | None = None
        self._fitting: set[int] = set()
        """How many positional arguments alone have been a call of the function: to bind them takes long."""
        with suppress(ValueError):  # a function written in C that does not tell its parameters
            self._signature = inspect.signature(function)

    @property
    def all(self) -> list[inspect.Parameter]:
        """Those that a call gives; none when the function does not tell."""
        return [] if self._signature is None else [*self._signature.parameters.values()][len(self._first) :]

    def take(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the function can be called with these arguments, as far as it tells."""
        try:
            self.check("", args, kwargs)
        except EnqueueError:
            return False
        return True

    def check(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Raises :class:`EnqueueError` unless the function of *task* can be called with these arguments."""
        if self._signature is None or (not kwargs and len(args) in self._fitting):
            return
        try:
            self._signature.bind(*self._first, *args, **kwargs)
        except TypeError as error:
            why = f"{self._why(kwargs, error)}{self.hint_of_wrapper(args, kwargs)}"
            raise EnqueueError(f"{task!r} cannot be called like that: {why}") from None
        if not kwargs:
            self._fitting.add(len(args))

    def _why(self, kwargs: Mapping[str, Any], error: TypeError) -> str:
        """Returns why a call does not fit: first that there is no such argument, since another one may lack for it."""
        parameters = self.all
        names = [each.name for each in parameters if each.kind not in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL)]
        unknown = [name for name in kwargs if name not in names]
        if not unknown or any(each.kind is each.VAR_KEYWORD for each in parameters):
            return f"{error}."
        close = checks.did_you_mean(unknown[0], [name for name in names if name not in kwargs])
        return f"it has no argument {unknown[0]!r}.{close} Its arguments: {', '.join(names) or 'none'}."

    def hint_of_wrapper(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Returns what a message adds when a decorator hides that it takes these arguments; else nothing."""
        if not hasattr(self._function, "__wrapped__"):
            return ""
        try:
            inspect.signature(self._function, follow_wrapped=False).bind(*self._first, *args, **kwargs)
        except (TypeError, ValueError):
            return ""
        return (
            " These are the parameters of the function that a decorator wraps by functools.wraps. Where the decorator "
            "gives some of them, or takes others, let it del wrapper.__wrapped__: then those of the wrapper count."
        )


def check_batch_function(function: Callable[..., Any], first: tuple[Any, ...]) -> None:
    """Raises :class:`TaskDefinitionError` unless it takes a list of requests behind *first*."""
    parameters = Parameters(function, first)
    if not parameters.take(([],), {}):
        raise TaskDefinitionError(
            f"the function {function.__qualname__!r} of a task with batch= is given one argument, a list of requests, "
            "and cannot be called like that: define it as (requests), or with bind=True as (self, requests)."
            f"{parameters.hint_of_wrapper(([],), {})}"
        )


def as_arguments(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Both, with nothing in the place of None. Raises :class:`EnqueueError` for what no function can be called with."""
    if args is None:
        args = ()
    elif not isinstance(args, tuple):
        check_args("args", args)
    if kwargs is None:
        kwargs = {}
    elif type(kwargs) is not dict and not isinstance(kwargs, Mapping):  # an abstract class takes longer to ask
        raise EnqueueError(f"kwargs {checks.shown(kwargs)} must be a dict of the arguments by their names.")
    for name in kwargs:
        if not isinstance(name, str):
            raise EnqueueError(f"kwargs has the key {checks.shown(name)}: the names of arguments are text.")
    return args, kwargs


def check_args(what: str, args: object) -> None:
    """Raises :class:`EnqueueError` unless *args* is a list, a tuple or the like."""
    if isinstance(args, list | tuple):
        return
    if isinstance(args, Mapping):
        raise EnqueueError(f"{what} {checks.shown(args)} must be a list or a tuple; arguments by name are kwargs.")
    if isinstance(args, str | bytes | bytearray | memoryview) or not isinstance(args, Sequence):
        value = checks.shown(args)
        raise EnqueueError(f"{what} {value} must be a list or a tuple of the arguments: ({value},).")
