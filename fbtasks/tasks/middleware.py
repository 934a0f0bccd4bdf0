"""Middleware: what an app puts around the enqueueing of its calls, and around the runs of its tasks.

:mod:`fbtasks.run.observing` calls observe_run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fbtasks.errors import ConfigurationError, EnqueueError, TaskDefinitionError
from fbtasks.system import checks
from fbtasks.tasks.call import Call
from fbtasks.tasks.function import as_arguments
from fbtasks.tasks.options import headers_of
from fbtasks.tasks.request import Request

if TYPE_CHECKING:
    from fbtasks.app import AsyncResult

M = TypeVar("M")
_ENQUEUE: Final = "around_enqueue"
_RUN: Final = "around_run"
_OBSERVE: Final = "observe_run"
_METHODS: Final = {_ENQUEUE: ("call", "next"), _RUN: ("request", "next"), _OBSERVE: ("request",)}
"""The methods of a middleware, and what each is given."""


@dataclass(frozen=True, slots=True)
class OutgoingCall:
    """A call on its way into the queue, as ``around_enqueue`` is given it."""

    task: str
    """The task's name. It cannot be changed."""
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    """The options that this call was given, as those of ``apply_async``; not those of its task."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers among its options. Raises :class:`EnqueueError` for what cannot be any."""
        given = self.options.get("headers")
        return {} if given is None else headers_of("headers", given)

    def replace(self, *, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None,
                **options: Any) -> OutgoingCall:  # fmt: skip
        """The call with other arguments, or with further *options* of ``apply_async``."""
        return OutgoingCall(
            self.task,
            self.args if args is None else args,
            self.kwargs if kwargs is None else kwargs,
            {**self.options, **options},
        )


class Around(NamedTuple):
    """A method of a middleware."""

    owner: str
    """The name of its class."""
    function: Callable[..., Any]
    is_async: bool = False


@dataclass(frozen=True, slots=True)
class Middlewares:
    """The middleware of one app, the outermost first."""

    enqueue: tuple[Around, ...] = ()
    run: tuple[Around, ...] = ()
    observe: tuple[Around, ...] = ()

    def with_inside(self, given: Any) -> Middlewares:
        """Returns them with *given*, a class or an object of one, as the innermost.

        Raises :class:`ConfigurationError` for what is no middleware.
        """
        middleware = _made(given) if isinstance(given, type) else given
        owner = type(middleware).__name__
        _check_names(middleware, owner)
        enqueue, run, observe = (_method(middleware, owner, name) for name in _METHODS)
        if any(each.is_async for each in enqueue):
            raise ConfigurationError(
                f"{_ENQUEUE} of {owner} is a coroutine function, and delay() waits for none: make it a plain one."
            )
        if not all(inspect.isgeneratorfunction(each.function) for each in observe):
            raise ConfigurationError(f"{_OBSERVE} of {owner} has no yield: it is to wait for the end of the run there.")
        return Middlewares((*self.enqueue, *enqueue), (*self.run, *run), (*self.observe, *observe))

    def check_task(self, name: str, *, is_async: bool) -> None:
        """Raises :class:`TaskDefinitionError` for a task that a middleware cannot be put around."""
        plain = next((around.owner for around in self.run if not around.is_async), None)
        if is_async and plain is not None:
            raise TaskDefinitionError(
                f"{name!r} is a coroutine function, and {_RUN} of the middleware {plain} is a plain one, which would "
                f"end before the task has run. Make it `async def {_RUN}` with `await next(request)`: that serves "
                "plain functions as well."
            )


def _made(kind: type[Any]) -> Any:
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise ConfigurationError(
            f"the middleware {kind.__name__} cannot be made without arguments ({error}): give the app an object, "
            f"app.middleware({kind.__name__}(...))."
        ) from None
    except ValueError:  # it does not tell its parameters
        pass
    return kind()


def _check_names(middleware: Any, owner: str) -> None:
    names = [name for name in dir(middleware) if name.startswith(("around", "observe"))]
    for name in names:
        if name not in _METHODS:
            close = checks.did_you_mean(name, _METHODS)
            raise ConfigurationError(f"the middleware {owner} has {name}, which is called by nothing.{close}")
    if not names:
        raise ConfigurationError(
            f"{owner} is no middleware: it has neither {_ENQUEUE}(call, next) nor {_RUN}(request, next) nor "
            f"{_OBSERVE}(request)."
        )


def _method(middleware: Any, owner: str, name: str) -> tuple[Around, ...]:
    """The method *name* of *middleware*; none when it has none."""
    function = getattr(middleware, name, None)
    if function is None:
        return ()
    given = _METHODS[name]
    try:
        inspect.signature(function).bind(*given)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{name} of {owner} is to be called as {name}({', '.join(given)}): {error}.") from None
    return (Around(owner, function, inspect.iscoroutinefunction(function)),)


# Around the enqueueing


class _NotYet:
    """The result of a call that is written together with others, when the last of them has passed the middleware."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._result: Any = None

    def __repr__(self) -> str:
        return "<AsyncResult not enqueued yet>"

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"{name!r} is not known yet: the calls of delay_many(), and those of a workflow, are enqueued together, "
            "when all have passed the middleware.",
            name=name,
        )


def enqueue_through(
    arounds: Sequence[Around],
    task: str,
    arguments: Sequence[tuple[Sequence[Any] | None, Mapping[str, Any] | None]],
    options: Mapping[str, Any],
    make: Callable[..., Call],
    write: Callable[[list[Call]], list[AsyncResult[Any]]],
) -> list[AsyncResult[Any]]:
    """Passes a call for each of *arguments* through *arounds*. *make* makes records of them, and *write* writes these.

    Returns a result for each: what its middleware has returned.
    """
    if not arounds:
        return write([make(args, kwargs, **options) for args, kwargs in arguments])
    made: list[_NotYet] = []

    def note(call: OutgoingCall) -> Any:
        made.append(_NotYet(make(call.args, call.kwargs, **call.options)))
        return made[-1]

    def at_once(call: OutgoingCall) -> Any:
        return write([make(call.args, call.kwargs, **call.options)])[0]

    last = at_once if len(arguments) == 1 else note
    calls = [OutgoingCall(task, *as_arguments(args, kwargs), {**options}) for args, kwargs in arguments]
    results = [_pass(arounds, call, last) for call in calls]
    if made:
        for each, result in zip(made, write([each._call for each in made]), strict=True):
            each._result = result
    return [result._result if isinstance(result, _NotYet) else result for result in results]


def step_through(arounds: Sequence[Around], call: OutgoingCall, make: Callable[..., Call]) -> Call:
    """Passes *call*, a step of a workflow, through *arounds*. Returns what *make* makes of it.

    The workflow is enqueued when all of its steps have passed. Raises :class:`EnqueueError` when one is not to be
    enqueued, or twice.
    """
    made: list[Call] = []

    def note(changed: OutgoingCall) -> Any:
        made.append(make(changed.args, changed.kwargs, **changed.options))
        return _NotYet(made[-1])

    _pass(arounds, call, note)
    if len(made) != 1:
        raise EnqueueError(
            f"{_ENQUEUE} of a middleware called next() {len(made)} times for {call.task!r}, a step of a workflow. "
            "Each step is needed once: raise an error to stop the workflow."
        )
    return made[0]


def _pass(arounds: Sequence[Around], call: OutgoingCall, last: Callable[[OutgoingCall], Any]) -> Any:
    if not arounds:
        return last(call)
    owner, function, _ = arounds[0]

    def go_on(changed: OutgoingCall) -> Any:
        if not isinstance(changed, OutgoingCall) or changed.task != call.task:
            raise EnqueueError(
                f"{_ENQUEUE} of the middleware {owner} gave next() {checks.shown(changed)}: give it the call, or "
                "call.replace(...), which is one of the same task."
            )
        return _pass(arounds[1:], changed, last)

    result = function(call, go_on)
    if not isinstance(result, _NotYet) and not (hasattr(result, "id") and hasattr(result, "get")):
        raise EnqueueError(
            f"{_ENQUEUE} of the middleware {owner} returned {checks.shown(result)} for a call of {call.task!r}: "
            "`return next(call)`. To stop a call, raise an error, or return another result."
        )
    return result


# Around the run


def run_through(
    arounds: Sequence[Around], request: Request, function: Callable[[Request], Any], *, is_async: bool
) -> Any:
    """Calls the outermost of *arounds*, of which the innermost calls *function*. Returns its result.

    *is_async*: that is a coroutine function; then what is returned is a coroutine.
    """
    if not arounds:
        return function(request)
    around = arounds[0]

    def go_on(changed: Request) -> Any:
        return run_through(arounds[1:], _checked(around, request, changed), function, is_async=is_async)

    if is_async or not around.is_async:
        return around.function(request, go_on)

    async def go_on_async(changed: Request) -> Any:
        return go_on(changed)

    return _driven(around, around.function(request, go_on_async), request)


def _driven(around: Around, coroutine: Coroutine[Any, Any, Any], request: Request) -> Any:
    """Runs *coroutine*, which goes around a plain function and so has nothing to wait for. Returns its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise TaskDefinitionError(
        f"{_RUN} of the middleware {around.owner} waits for something else than next(request), and {request.task!r} is "
        "a plain function, around which there is no event loop."
    )


def _checked(around: Around, request: Request, changed: Request) -> Request:
    """Returns the request that the middleware gave ``next``. Raises :class:`TaskDefinitionError` for another one."""
    if changed is request:
        return request
    if not isinstance(changed, Request):
        raise TaskDefinitionError(
            f"{_RUN} of the middleware {around.owner} gave next() {checks.shown(changed)}, and not the request."
        )
    if replace(changed, args=request.args, kwargs=request.kwargs) != request:
        raise TaskDefinitionError(
            f"{_RUN} of the middleware {around.owner} gave next() another request: of it args and kwargs alone can be "
            "changed, dataclasses.replace(request, args=...)."
        )
    return changed
