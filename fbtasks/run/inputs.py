"""Loads the arguments of a call: of a workflow's step, the results of its predecessors come first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from fbtasks.errors import TaskNotFound, TaskRevoked
from fbtasks.states import State
from fbtasks.tasks.call import Claim, Failed, Input
from fbtasks.tasks.remote_error import rebuild_exception
from fbtasks.tasks.serialize import JSON_TYPE, Payload, Serializer

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

INPUTS_GONE: Final = Failed(
    "fbtasks.errors.TaskNotFound",
    "the result that it is to be given is not there any more: the task that it follows was deleted, or its result was.",
)
"""What becomes of a step of whose inputs something is not known any more."""


def load(app: FBTasks, claim: Claim) -> tuple[list[Any], dict[str, Any], dict[str, str]]:
    """The positional and keyword arguments of *claim*, and its headers.

    Raises what :meth:`Serializer.load_call` raises.
    """
    args, kwargs, headers = app.serializer.load_call(Payload(claim.content_type, claim.payload or b""), task=claim.name)
    if claim.inputs:
        args = [*given_by(claim.inputs, app.serializer), *args]
    return args, kwargs, headers


def given_by(inputs: Iterable[Input], serializer: Serializer) -> Iterator[Any]:
    """The arguments that a step is given: a result, or the id and the exception of a task that has failed."""
    for each in inputs:
        if each.is_report:
            yield each.id or str(each.node)
        yield value_of(each, serializer)


def value_of(given: Input, serializer: Serializer) -> Any:
    """The result of a task, a list of those of a group, or the exception of a task that has not succeeded."""
    match given.state:
        case None if given.is_report:
            return TaskNotFound(f"what task {given.node} failed with is not known any more.")
        case None:
            return [value_of(each, serializer) for each in given.members]
        case State.SUCCEEDED:
            payload = Payload(given.content_type or JSON_TYPE, given.result or b"null")
            return serializer.load_result(payload, number=given.node)
        case State.FAILED:
            return rebuild_exception(Failed(given.error_type, given.message, "", given.result or None))
        case _:
            return TaskRevoked(f"task {given.id or given.node} did not run to its end: {given.message or 'cancelled'}.")
