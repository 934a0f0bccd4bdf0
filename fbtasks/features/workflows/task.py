"""The methods of tasks that workflows add: signatures of calls, steps, and replacing a task that runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, ParamSpec, TypeVar, Unpack

from fbtasks.errors import EnqueueError, TaskDefinitionError
from fbtasks.features.workflows.canvas import Signature, TaskSignature, enqueue_side_by_side, replacement
from fbtasks.system import checks
from fbtasks.tasks.call import Call
from fbtasks.tasks.definition import Arguments, Task
from fbtasks.tasks.function import as_arguments
from fbtasks.tasks.middleware import OutgoingCall, step_through
from fbtasks.tasks.options import CallOptions

if TYPE_CHECKING:
    from fbtasks.app import AsyncResult

P = ParamSpec("P")
R = TypeVar("R", covariant=True)
_UNKNOWN: Final = object()
"""Stands for the result of another step, which is not known yet."""


class StepTask(Task[P, R]):
    """A task whose calls can be steps of workflows."""

    def enqueue(self, arguments: Sequence[Arguments], options: CallOptions, using: Any = None) -> list[AsyncResult[R]]:
        """Enqueues a call for each of *arguments*, as a workflow where *options* have what follows it."""
        if options and (options.get("link") or options.get("link_error")):
            signatures = [self.signature(args, kwargs, **options) for args, kwargs in arguments]
            return enqueue_side_by_side(signatures, using)
        return super().enqueue(arguments, options, using)

    def s(self, /, *args: Any, **kwargs: Any) -> TaskSignature:
        """Makes a signature of the call, for workflows. After another one it is given the result of that first."""
        return TaskSignature(self, args, kwargs)

    def si(self, /, *args: Any, **kwargs: Any) -> TaskSignature:
        """Makes a signature that is not given the result of what it follows."""
        return TaskSignature(self, args, kwargs, immutable=True)

    def signature(
        self,
        args: Sequence[Any] | None = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        immutable: bool = False,
        **options: Unpack[CallOptions],
    ) -> TaskSignature:
        """Makes a signature with options of the call."""
        return TaskSignature(self, args, kwargs, immutable=immutable).set(**options)

    def step(self, args: Sequence[Any], kwargs: Mapping[str, Any], given: int, **options: Unpack[CallOptions]) -> Call:
        """Makes the call a record for a workflow, in which it is given *given* more arguments, the first ones."""
        arounds = self.app.middlewares.enqueue
        if not arounds:
            return self._step(given, args, kwargs, **options)
        call = OutgoingCall(self.name, args, kwargs, {**options})
        return step_through(arounds, call, partial(self._step, given))

    def _step(self, given: int, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Unpack[CallOptions]) -> Call:
        self.check_callable()
        args, kwargs = as_arguments(args, kwargs)
        whole = (*(_UNKNOWN,) * given, *args)
        fits = self.parameters.take
        if given and not fits(whole, kwargs) and any(fits(whole[more:], kwargs) for more in range(1, given + 1)):
            raise EnqueueError(_no_room(self.name, args, given))
        self.parameters.check(self.name, whole, kwargs)
        return self.prepared(args, kwargs, given, options)

    def replace(self, signature: Signature) -> NoReturn:
        """Leaves the function and has *signature* run in the place of this call: ``self.replace(a.s(1) | b.s())``.

        Its last task gets the id of this call, so that who has the result gets its result, what follows this call
        follows it, and a group counts it. It is written in the transaction in which the outcome of this run is
        recorded. Raises :class:`EnqueueError` for what cannot be enqueued, or does not end with one task.
        """
        if not self.is_called:
            raise TaskDefinitionError(
                f"the task {self.name!r} is called by workers, and cannot be replaced: enqueue a workflow of its own, "
                "and return."
            )
        if self.options.batching is not None:
            raise TaskDefinitionError(
                f"the task {self.name!r} has batch=, and a run of it has several calls: none of them can be replaced. "
                "Enqueue a workflow of its own for each that needs one."
            )
        raise replacement(self.app, signature)


def _no_room(task: str, args: Sequence[Any], given: int) -> str:
    """Returns what is wrong with a step that does not take the *given* arguments in front of its own *args*."""
    if given > 1:
        return (
            f"{task!r} has no room for the id of the task that failed, and its error, which come before the arguments "
            f"{checks.shown(tuple(args))}. Give the task two parameters for them, or use .si(...), which is given none."
        )
    return (
        f"{task!r} has no room for the result of what it follows, which comes before the arguments "
        f"{checks.shown(tuple(args))}. Give the task a parameter for it, or use .si(...), which is not given it."
    )
