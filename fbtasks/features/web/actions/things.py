"""Actions on queues and workers, and on what features have."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.features.web.actions.deed import OF_CALL, Button, Deed, perform
from fbtasks.queue.operations import pausing, queues, workers
from fbtasks.queue.results import QueueRow
from fbtasks.sheet import Act, Called, Field, Line, Sheet
from fbtasks.system.showing import count, sentence
from fbtasks.tasks.call import WorkerRow

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context


def queue_buttons(context: Context, row: QueueRow) -> list[Button]:
    """Returns what can be done with a queue."""
    names = ("resume" if row.paused else "pause", "purge")
    return [
        Button(
            name.capitalize(), context.url("do_queue", queue=row.queue, action=name), name == "purge", name == "purge"
        )
        for name in names
        if context.may(name, row.queue)
    ]


def queue(context: Context, queue: str, action: str) -> Response:
    """``/queues/QUEUE/ACTION``."""
    database, app, ask = context.database, context.app, ""
    do: Callable[[], str]
    match action:
        case "pause":
            do = partial(_pause, lambda: pausing.pause(database, [queue], app=app), "Nothing of {} begins now.")
        case "resume":
            do = partial(_pause, lambda: pausing.resume(database, [queue], app=app), "Tasks of {} begin again.")
        case "purge":
            ask = f"Delete all waiting tasks of the queue {queue}?"
            do = partial(_purge, queues.purge(database, queue, app))
        case _:
            raise NotFound("There is no such action.")
    deed = Deed(
        action=action,
        what=f"queue {queue}",
        label=action.capitalize(),
        queue=queue,
        back=context.url("queue", queue=queue),
        ask=ask,
        do=lambda _: do(),
        harms=bool(ask),
    )
    return perform(context, deed)


def worker_buttons(context: Context, row: WorkerRow) -> list[Button]:
    """Returns what can be done with a worker."""
    may = row.alive and not row.draining and context.may("stop_worker")
    return [Button("Stop", context.url("do_worker", id=row.id, action="stop"), True, True)] if may else []


def worker(context: Context, id: int, action: str) -> Response:
    """``/workers/ID/stop``."""
    if action != "stop":
        raise NotFound("There is no such action.")
    deed = Deed(
        action="stop_worker",
        what=f"worker {id}",
        label="Stop",
        back=context.url("worker", id=id),
        ask="It claims nothing more, and ends when what it runs has ended. What starts it may start it again. Stop it?",
        do=lambda _: (
            "It ends when what it runs has ended."
            if workers.stop(context.database, [str(id)])
            else "It was told already."
        ),
        harms=True,
    )
    return perform(context, deed)


def _pause(change: Callable[[], pausing.Paused], done: str) -> str:
    changed = change()
    return done.format(", ".join(changed.queues)) if changed.queues else "Nothing to do: it was so already."


def _purge(numbers: Iterable[int]) -> str:
    return f"{count(sum(numbers), 'task')} deleted."


def line_buttons(context: Context, sheet: Sheet, line: Line) -> list[Button]:
    """Returns what can be done with a line of a sheet."""
    return [
        Button(
            act.label,
            context.url("do_line", sheet=sheet.name, line=line.key, action=name),
            bool(act.ask or act.fields),
            bool(act.ask),
        )
        for name, act in sheet.actions.items()
        if name in line.actions and context.may(f"{sheet.name}.{name}")
    ]


def line(context: Context, sheet: str, line: str, action: str) -> Response:
    """``/SHEET/KEY/ACTION``."""
    from fbtasks.features.web.pages.sheets import detail_of

    of, detail = detail_of(context, sheet, line)
    act: Act | None = of.actions.get(action)
    if act is None:
        raise NotFound("There is no such action.")
    deed = Deed(
        action=f"{sheet}.{action}",
        what=f"{sheet} {line}",
        label=act.label,
        back=context.url("line", sheet=sheet, line=line),
        ask=act.ask.replace("{key}", line),
        fields=[replace(each, value=_value(context, each, detail.line)) for each in act.fields],
        do=lambda values: sentence(act.do(context.app, line, values)),
        harms=bool(act.ask),
    )
    return perform(context, deed)


def _value(context: Context, field: Field, line: Line) -> str:
    """Returns what a field is filled in with."""
    if field.kind not in OF_CALL:
        return line.values.get(field.name, field.value)
    call = next((each for each in line.cells.values() if isinstance(each, Called)), None)
    if call is None or (value := getattr(call, field.kind)) is None or context.options.arguments.hides_call(call):
        return ""
    return json.dumps(value, ensure_ascii=False)
