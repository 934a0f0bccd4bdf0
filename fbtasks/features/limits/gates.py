"""Computes the gates that a call has to pass: the keys of its limits."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fbtasks.errors import EnqueueError, TaskDefinitionError
from fbtasks.features.limits.definition import (
    Key,
    LimitDefinition,
    Unique,
    batch_limit,
    order_limit,
    unique_limit,
)
from fbtasks.system import checks
from fbtasks.system.showing import brief
from fbtasks.tasks.call import Gate, OnDuplicate
from fbtasks.tasks.function import check_batch_function

if TYPE_CHECKING:
    from fbtasks.features.limits.options import LimitedTask
    from fbtasks.tasks.definition import Task

MOST_LIMITS: Final = 10
"""Limits of one task: a record of a call has room for so many."""
_PLAIN: Final = (str, int, float, bool, bytes, type(None))


class Unknown:
    """Stands for the result of another step where that is not known yet."""

    def __repr__(self) -> str:
        return "<the result of the step before>"


class Gates:
    """The limits of one task, and which gate a call of it has to pass for each."""

    def __init__(self, task: Task[..., Any], options: LimitedTask) -> None:
        """Raises :class:`TaskDefinitionError` for an argument that the task's function does not have."""
        self._task = task.name
        self._first = (task,) if options.bind else ()
        """The arguments that the function gets before those of a call."""
        self._keys: list[tuple[Gate, Key]] = [(Gate(name, 0), key) for name, key in (options.limits or {}).items()]
        """For each limit the gate of all calls, and what they are told apart by."""
        self.own: list[LimitDefinition] = []
        """The limits that are this task's alone."""
        unique, order, batch = options.unique, options.ordered, options.batching
        if unique is not None:
            limit = unique_limit(task.name, unique)
            self._add(limit, unique.by or _all_arguments, unique.until == "end", _on_duplicate(unique, limit))
        if order is not None:
            self._add(order_limit(task.name, order), order.by, order.during_retry == "wait")
        self._batch: str | None = None
        if batch is not None:
            check_batch_function(task.function, self._first)
            self.own.append(batch_limit(task.name, *batch))
            self._batch = self.own[-1].name
        many = len(self._keys) + (batch is not None)
        if many > MOST_LIMITS:
            raise TaskDefinitionError(
                f"the task {task.name!r} has {many} limits, its own for order, unique and batch among them, and may "
                f"have {MOST_LIMITS}. Leave some of them out."
            )
        try:
            self._signature = inspect.signature(task.function)
        except ValueError as error:
            raise TaskDefinitionError(
                f"the task {task.name!r} has limits, and its function does not tell its parameters."
            ) from error
        self.merges_only = unique is not None and len(self.own) == len(self._keys) == 1
        """Whether its calls are merged, and pass no other limit."""
        self.names = tuple(gate.limit for gate, _ in self._keys)
        """Those that it has with a key."""
        for gate, key in self._keys:
            self._check(gate.limit, key)

    def _add(self, limit: LimitDefinition, key: Key, keeps: bool, on_duplicate: OnDuplicate | None = None) -> None:
        self.own.append(limit)
        self._keys.append((Gate(limit.name, 0, keeps, on_duplicate), key))

    def _check(self, limit: str, key: Key) -> None:
        if not isinstance(key, tuple):
            return
        if self._batch is not None:
            raise TaskDefinitionError(
                f"the limit {limit!r} of the task {self._task!r} goes by {', '.join(map(repr, key))}, and with batch= "
                "its function has a list of requests in the place of arguments: give a function of a call's arguments."
            )
        parameters = [*self._signature.parameters.values()][len(self._first) :]
        known = [each.name for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        for name in key:
            if name not in known:
                raise TaskDefinitionError(
                    f"the limit {limit!r} of the task {self._task!r} goes by the argument {name!r}, which its function "
                    f"does not have.{checks.did_you_mean(name, known) or _having(known)}"
                )

    def of_step(self, args: Sequence[Any], kwargs: Mapping[str, Any], queue: str) -> tuple[Gate, ...]:
        """Returns the gates of a call whose first arguments are placeholders; none when a key depends on those.

        Then the worker that claims it puts it before its gates.
        """
        for _, key in self._keys:
            if callable(key):
                return ()
            if key is not None:
                given = self._bind(args, kwargs)
                if any(_is_unknown(given[name]) for name in key):
                    return ()
        return self.of(args, kwargs, queue)

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any], queue: str) -> tuple[Gate, ...]:
        """Returns the gates of a call in *queue*, which has batches of its own.

        Raises :class:`EnqueueError` when its key cannot be told.
        """
        given: Mapping[str, Any] | None = None
        found = []
        for gate, key in self._keys:
            if key is None:
                found.append(gate)
                continue
            if callable(key):
                value = self._call(gate.limit, key, args, kwargs)
            else:
                given = self._bind(args, kwargs) if given is None else given
                value = tuple(given[name] for name in key)
            found.append(gate._replace(lane=lane_of(gate.limit, value)))
        if self._batch is not None:
            found.append(Gate(self._batch, lane_of(self._batch, queue)))
        return tuple(found)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        bound = self._signature.bind(*self._first, *args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def _call(self, limit: str, key: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            return key(*args, **kwargs)
        except Exception as error:
            raise EnqueueError(
                f"the key of the limit {limit!r} of the task {self._task!r} raised {type(error).__name__}: "
                f"{brief(error)}. Nothing was enqueued."
            ) from error


def _having(arguments: Sequence[str]) -> str:
    return f" It has {', '.join(map(repr, arguments))}." if arguments else " It has none."


def _is_unknown(value: object) -> bool:
    several = value if isinstance(value, tuple) else (value,)
    return any(isinstance(each, Unknown) for each in several)


def _on_duplicate(options: Unique, limit: LimitDefinition) -> OnDuplicate:
    """Returns what becomes of a call when another one waits. The newest one is kept only if it is enqueued."""
    if options.conflict == "raise":
        return OnDuplicate.RAISE
    return OnDuplicate.MERGE if limit.replaces else OnDuplicate.FIND


def _all_arguments(*args: Any, **kwargs: Any) -> str:
    return json.dumps([args, kwargs], sort_keys=True, default=str)


def lane_of(limit: str, value: object) -> int:
    """Returns the number of the gate of *value*. Raises :class:`EnqueueError` for what is no key."""
    values: Iterable[Any] = value if isinstance(value, tuple | list) else (value,)
    texts = [_text(limit, each) for each in values]
    digest = hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") >> 1 or 1


def _text(limit: str, value: object) -> str:
    text = str(value)
    if not isinstance(value, _PLAIN) and text.startswith("<"):
        raise EnqueueError(
            f"the key of the limit {limit!r} is {checks.shown(value)}: a key is text, a number or a date, or several."
        )
    return text
