"""Actions on one task."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.cli.output import visible_json
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.features.web.actions.deed import Button, Deed, Values, perform
from fbtasks.features.web.query import ENDED
from fbtasks.features.web.showing import MOST, POSITIONAL, named
from fbtasks.queue.operations import tasks
from fbtasks.sheet import Field
from fbtasks.states import State
from fbtasks.tasks import formats
from fbtasks.tasks.serialize import JSON_TYPE, Payload

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context

OF_TRACES: Final = ("traceparent", "tracestate", "baggage", "sentry-trace", "fbtasks-sent")
"""Headers that say in which trace a call was made. The new call belongs to another one."""


def _changed(changes: tasks.TaskChanges, act: TaskAct) -> str:
    """Returns what was done. Raises an error when nothing was."""
    if changes.refused:
        state = changes.refused[0].state or "gone"
        raise FBTasksError(f"nothing was changed, for the task is {state}: {changes.condition}.")
    return act.requested if changes.requested else f"The task is {act.done}."


class TaskAct(NamedTuple):
    """An action on a task."""

    label: str
    states: Sequence[State]
    """Those in which it can be done."""
    ask: str
    change: Callable[..., tasks.TaskChanges]
    done: str
    requested: str = ""
    """What is said when the task runs, so that its worker has to do it."""


ON_TASK: Final[Mapping[str, TaskAct]] = {
    "retry": TaskAct("Retry", (State.FAILED, State.CANCELLED), "", tasks.retry, "put back"),
    "cancel": TaskAct(
        "Cancel",
        tuple(each for each in State if each.live and each is not State.RUNNING),
        "Cancel task {id}, {name}? It will not run.",
        partial(tasks.cancel, terminate=False),  # a worker may have begun it meanwhile: to stop it is another right
        "cancelled",
        "A worker has begun it. It may end as it does, and is not tried again.",
    ),
    "stop": TaskAct(
        "Stop",
        (State.RUNNING,),
        "Stop task {id}, {name}, while it runs?",
        tasks.cancel,
        "cancelled",
        "Its worker was asked to stop it.",
    ),
    "discard": TaskAct(
        "Discard", ENDED, "Delete task {id}, {name}, for good, with its result or its error?", tasks.discard, "deleted"
    ),
}


def task_buttons(context: Context, found: tasks.TaskDetail) -> list[Button]:
    """Returns what can be done with a task."""
    row = found.row
    buttons = [
        Button(act.label, context.url("do_task", id=row.id, action=name), bool(act.ask), bool(act.ask))
        for name, act in ON_TASK.items()
        if row.state in act.states and context.may(name, row.queue)
    ]
    if found.arguments is not None and found.arguments.content_type == JSON_TYPE and context.may("run", row.queue):
        buttons.append(Button("Run again ...", context.url("do_task", id=row.id, action="run"), asks=True))
    return buttons


def task(context: Context, id: str, action: str) -> Response:
    """``/tasks/ID/ACTION``."""
    found = tasks.get_task(context.database, id)
    row = found.row
    back = context.url("task", id=row.id)
    if action == "run":
        return perform(context, _run(context, found))
    if action not in ON_TASK:
        raise NotFound("There is no such action.")
    if action in ("cancel", "stop"):  # the state decides which of them it is, and which right it needs
        action = "stop" if row.state is State.RUNNING else "cancel"
    act = ON_TASK[action]
    deed = Deed(
        action=action,
        what=f"task {row.id} ({row.name})",
        label=act.label,
        queue=row.queue,
        back=context.url("tasks") if action == "discard" else back,
        ask=act.ask.format(id=row.id, name=row.name),
        do=lambda _: _changed(act.change(context.database, [str(row.id)]), act),
        did=bool,  # of what is left as it was the audit says that it was refused
        harms=bool(act.ask),
    )
    return perform(context, deed)


def _run(context: Context, found: tasks.TaskDetail) -> Deed:
    """Returns the deed that enqueues a new call of a task, of which the arguments can be changed. Headers are kept.

    Which code runs is what the task names. A field holds JSON, and what is too long or not to be shown is not in it.
    """
    row, payloads = found.row, context.options.arguments
    known = context.app.tasks.get(row.name)
    call = _json_call(found.arguments)
    if call is None:
        raise FBTasksError("its arguments are no longer kept, or are not JSON: it cannot be run again from here.")
    args, kwargs, headers = call
    fields, given = [], {}
    for at, (name, value) in enumerate(named((args, kwargs), known)):
        given[f"arg{at}"] = value
        text = _text(value)
        shown = "" if payloads.hides(name, value) or len(text) > MOST else text
        fields.append(Field(name=f"arg{at}", label=f"argument {name}" if name.isdecimal() else name, value=shown))
    parameters = [] if known is None else known.parameters.all
    places = [each for each in parameters if each.kind in POSITIONAL]
    others = [*places[len(args) :], *(each for each in parameters if each.kind is each.KEYWORD_ONLY)]
    lacking = [each.name for each in others if each.kind is not each.POSITIONAL_ONLY and each.name not in kwargs]
    fields += [Field(name=f"new{name}", label=f"{name} (not given)") for name in lacking]
    if known is None:
        fields.append(Field(name="more", label="more arguments by name, as a JSON object"))

    def is_changed(each: Field, values: Values) -> bool:
        return values[each.name] not in ("", each.value)

    def run(values: Values) -> tuple[str, str]:
        read = {each.name: _json(each.label, values[each.name]) for each in fields if is_changed(each, values)}
        whole = [read.get(name, value) for name, value in given.items()]
        more = read.get("more", {})
        if not isinstance(more, dict):
            raise ConfigurationError('more arguments must be a JSON object, such as {"force": true}.')
        names = dict(zip(kwargs, whole[len(args) :], strict=True)) | more
        names |= {name: read[f"new{name}"] for name in lacking if f"new{name}" in read}
        made = context.app.send_task(
            row.name, whole[: len(args)], names, queue=row.queue, priority=row.priority, headers=headers
        )
        return f"Enqueued as task {made.id}.", context.url("task", id=made.id)

    return Deed(
        action="run",
        what=f"task {row.id} ({row.name})",
        label="Run again",
        queue=row.queue,
        back=context.url("task", id=row.id),
        ask="Enqueue a new call of this task? The arguments are JSON. A field that is left empty keeps what there was.",
        fields=fields,
        do=run,
        said=lambda values: ", ".join(each.label for each in fields if is_changed(each, values)),
    )


def _json_call(payload: Payload | None) -> tuple[list[Any], dict[str, Any], dict[str, str]] | None:
    """Returns the arguments of a task as its function is given them, and its headers but for those of traces.

    None: they are not JSON, or not kept.
    """
    if payload is None or payload.content_type != JSON_TYPE:
        return None
    try:
        args, kwargs, *rest = formats.load_json(payload.data)
        headers = dict(rest[0]) if rest else {}
        return list(args), dict(kwargs), {key: value for key, value in headers.items() if key not in OF_TRACES}
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _text(value: Any) -> str:
    return visible_json(json.dumps(json.loads(formats.dump_json(value)), ensure_ascii=False))


def _json(name: str, text: str) -> Any:
    try:
        return formats.load_json(text.encode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f'{name}: {text!r:.80} is not JSON: {error}. A text is in quotes: "...".') from None
