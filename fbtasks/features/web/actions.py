"""What operators do with the dashboard. Each deed asks first or is done at once, and is written into the audit.

A deed is shown by GET, with its question and its fields, and done by POST, which answers with 303.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from werkzeug.exceptions import Forbidden, NotFound
from werkzeug.wrappers import Response

from fbtasks.cli.output import visible_json
from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.features.web import search, store
from fbtasks.features.web.showing import named
from fbtasks.firebird.session import Transaction, also_doing
from fbtasks.queue.operations import pausing, queues, tasks
from fbtasks.queue.results import QueueRow
from fbtasks.sheet import Act, Field, Line, Sheet
from fbtasks.states import State
from fbtasks.system.showing import count, sentence
from fbtasks.tasks import formats
from fbtasks.tasks.call import TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload

if TYPE_CHECKING:
    from fbtasks.features.web.app import Context
    from fbtasks.features.web.query import Query
    from fbtasks.features.web.store import Group
    from fbtasks.firebird.session import Session

MOST: Final = 10_000
"""Tasks that one deed changes."""
BATCH: Final = 500
"""Tasks that one transaction changes."""
LOOKS: Final = 60
"""Pages of the search that are read to find them."""
ENDED: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
KEYWORD: Final = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
Values = Mapping[str, str]


class Button(NamedTuple):
    """An action that can be taken now."""

    label: str
    url: str
    asks: bool
    """Whether a page asks first; else it is done by a click."""
    harms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One action on one thing."""

    action: str
    """As the callable ``authorize`` is asked: ``retry``, ``limits.set``."""
    what: str
    """What it is done to: ``task 17``."""
    label: str
    back: str
    """The address that the browser is sent to."""
    do: Callable[[Values], str]
    """Does it with the values of the fields. Returns what was done, as a sentence."""
    queue: str | None = None
    ask: str = ""
    """The question before it is done."""
    fields: Sequence[Field] = ()
    said: Callable[[Values], str] | None = None
    """What the audit has of the values; None: all of them."""
    notes: bool = False
    """Whether it writes lines of the audit itself."""
    harms: bool = False
    hidden: Sequence[tuple[str, str]] = ()
    """What the form has beside its fields."""


def perform(context: Context, deed: Deed) -> Response:
    """Shows a deed, or does it."""
    if not context.may(deed.action, deed.queue):
        why = "This dashboard is read-only" if context.options.read_only else "You may not do that"
        raise Forbidden(f"{why}: {deed.action} {deed.what}.")
    if context.request.method != "POST":
        return context.page("ask.html", f"{deed.label} {deed.what}", deed=deed)
    context.options.seal.check_post(context.request, context.who)
    values = {each.name: context.request.form.get(each.name, "").strip() for each in deed.fields}
    if deed.notes:
        return context.redirect(deed.back, deed.do(values))
    said = _said(values) if deed.said is None else deed.said(values)
    with noting(context, deed.action, deed.what, said):
        done = deed.do(values)
    return context.redirect(deed.back, done)


def _said(values: Values) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items() if value)


@contextmanager
def noting(context: Context, action: str, what: str, said: str) -> Iterator[None]:
    """For the block, which changes something: the audit has a line of it, written in the same transaction."""
    number = context.database.use(store.next_audit)
    with also_doing(partial(store.note, id=number, who=context.who, action=action, what=what, said=said)):
        yield


# One task.


def _changed(changes: tasks.TaskChanges, what: str) -> str:
    """Returns what was done. Raises an error when nothing was."""
    if changes.refused:
        state = changes.refused[0].state or "gone"
        raise FBTasksError(f"nothing was changed, for the task is {state}: {changes.condition}.")
    return "Its worker was asked to stop it." if changes.requested else f"The task is {what}."


class TaskAct(NamedTuple):
    """An action on a task."""

    label: str
    states: Sequence[State]
    """Those in which it can be done."""
    ask: str
    change: Callable[..., tasks.TaskChanges]
    done: str


ON_TASK: Final[Mapping[str, TaskAct]] = {
    "retry": TaskAct("Retry", (State.FAILED, State.CANCELLED), "", tasks.retry, "put back"),
    "cancel": TaskAct(
        "Cancel",
        tuple(each for each in State if each.live and each is not State.RUNNING),
        "Cancel task {id}, {name}? It will not run.",
        tasks.cancel,
        "cancelled",
    ),
    "stop": TaskAct("Stop", (State.RUNNING,), "Stop task {id}, {name}, while it runs?", tasks.cancel, "cancelled"),
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
    act = ON_TASK[action]
    deed = Deed(
        action=action,
        what=f"task {row.id} ({row.name})",
        label=act.label,
        queue=row.queue,
        back=context.url("tasks") if action == "discard" else back,
        ask=act.ask.format(id=row.id, name=row.name),
        do=lambda _: _changed(act.change(context.database, [str(row.id)]), act.done),
        harms=bool(act.ask),
    )
    return perform(context, deed)


def _run(context: Context, found: tasks.TaskDetail) -> Deed:
    """Returns the deed that enqueues a new call of a task, of which the arguments can be changed.

    Which code runs is what the task names. A field holds JSON, and what is not to be shown is not in it.
    """
    row, payloads = found.row, context.options.arguments
    known = context.app.tasks.get(row.name)
    call = _json_call(found.arguments)
    if call is None:
        raise FBTasksError("its arguments are no longer kept, or are not JSON: it cannot be run again from here.")
    args, kwargs = call
    fields, given = [], {}
    for at, (name, value) in enumerate(named(call, known)):
        given[f"arg{at}"] = value
        shown = "" if payloads.hides(name, value) else _text(value)
        fields.append(Field(name=f"arg{at}", label=f"argument {name}" if name.isdecimal() else name, value=shown))
    lacking = [each.name for each in ([] if known is None else known.parameters.all) if each.kind in KEYWORD]
    lacking = [name for name in lacking[len(args) :] if name not in kwargs]
    fields += [Field(name=f"new{name}", label=f"{name} (not given)") for name in lacking]
    if known is None:
        fields.append(Field(name="more", label="more arguments by name, as a JSON object"))

    def is_changed(each: Field, values: Values) -> bool:
        return values[each.name] not in ("", each.value)

    def run(values: Values) -> str:
        read = {each.name: _json(each.label, values[each.name]) for each in fields if is_changed(each, values)}
        whole = [read.get(name, value) for name, value in given.items()]
        more = read.get("more", {})
        if not isinstance(more, dict):
            raise ConfigurationError('more arguments must be a JSON object, such as {"force": true}.')
        names = dict(zip(kwargs, whole[len(args) :], strict=True)) | more
        names |= {name: read[f"new{name}"] for name in lacking if f"new{name}" in read}
        made = context.app.send_task(row.name, whole[: len(args)], names, queue=row.queue, priority=row.priority)
        return f"Enqueued as task {made.id}."

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


def _json_call(payload: Payload | None) -> tuple[list[Any], dict[str, Any]] | None:
    """Returns the arguments of a task as its function is given them. None: they are not JSON, or not kept."""
    if payload is None or payload.content_type != JSON_TYPE:
        return None
    try:
        body = formats.load_json(payload.data)
        return list(body[0]), dict(body[1])
    except (ValueError, TypeError, LookupError, RecursionError):
        return None


def _text(value: Any) -> str:
    return visible_json(json.dumps(json.loads(formats.dump_json(value)), ensure_ascii=False))


def _json(name: str, text: str) -> Any:
    try:
        return formats.load_json(text.encode())
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f'{name}: {text!r:.80} is not JSON: {error}. A text is in quotes: "...".') from None


# Many tasks.


class BulkAct(NamedTuple):
    """An action on many tasks."""

    label: str
    ask: str
    change: Callable[..., int]
    """Changes tasks by their packed ids, the first from so many milliseconds on, and one each so many. Returns how
    many were changed."""
    paced: bool = False


def _retry(transaction: Transaction, ids: bytes, first: int, step: int) -> int:
    return int(transaction.call("FBTASKS_OPERATOR.RETRY_MANY", ids, first, step))


def _cancel(transaction: Transaction, ids: bytes, *_: int) -> int:
    cancelled, requested, _ = transaction.call("FBTASKS_READER.CANCEL_MANY", ids, 1)
    return int(cancelled + requested)


def _discard(transaction: Transaction, ids: bytes, *_: int) -> int:
    return sum(transaction.call("FBTASKS_READER.DISMISS", int(ids[at : at + 19])) for at in range(0, len(ids), 19))


ON_MANY: Final[Mapping[str, BulkAct]] = {
    "retry": BulkAct("Retry", "Put {many} back into their queues?", _retry, paced=True),
    "cancel": BulkAct("Cancel", "Cancel {many}? Running ones are stopped by their workers.", _cancel),
    "discard": BulkAct("Discard", "Delete {many} for good, with their results and errors?", _discard),
}
PACE: Final = Field(name="pace", label="how many a minute may begin (empty: all at once)", kind="number")


def bulk_buttons(context: Context, query: str, rows: Sequence[TaskRow]) -> list[Button]:
    """Returns what can be done with all tasks that the search finds, of which *rows* are some."""
    return [
        Button(f"{act.label} all", context.url("do_bulk", action=name, q=query), asks=True, harms=name != "retry")
        for name, act in ON_MANY.items()
        if any(row.state in ON_TASK[name].states or (name == "cancel" and row.state is State.RUNNING) for row in rows)
        and context.may(name, _queue_of(rows))
    ]


def failure_buttons(context: Context, group: Group) -> list[Button]:
    """Returns what can be done with a group of failures."""
    return [
        Button(f"{ON_MANY[name].label} all", context.url("do_failure", group=group.key, action=name), True, harms)
        for name, harms in (("retry", False), ("discard", True))
        if context.may(name)
    ]


def _queue_of(rows: Sequence[TaskRow]) -> str | None:
    """Returns the queue that all of *rows* are in. None: they are in several."""
    queues = {row.queue for row in rows}
    return queues.pop() if len(queues) == 1 else None


def parse(context: Context, text: str) -> Query:
    """Returns the query of a search line. Raises :class:`ConfigurationError`.

    Nobody may find out what is not shown by searching for it.
    """
    query, payloads = search.parse(text), context.options.arguments
    for path, _ in query.arg:
        if payloads.hidden or any(payloads.is_secret(part) for part in path.split(".")):
            raise ConfigurationError(f"arg.{path} is not shown here, and so cannot be searched for: leave it out.")
    return query


def bulk(context: Context, action: str) -> Response:
    """``/bulk/ACTION?q=``."""
    query = parse(context, context.request.args.get("q", ""))
    found, whole = _search(context, query)
    back = context.url("tasks", q=str(query))
    ids = [row.id for row in found]
    return _many(context, action, str(query) or "all tasks", ids, back, whole=whole, queue=_queue_of(found))


def _search(context: Context, query: Query) -> tuple[list[TaskRow], bool]:
    """Returns the first tasks that the search finds, and whether these are all."""

    def read(session: Session) -> tuple[list[TaskRow], bool]:
        found: list[TaskRow] = []
        cursor: str | None = None
        for _ in range(LOOKS):
            page = search.page(context.database, session, query, cursor, BATCH)
            found += page.rows
            cursor = page.next
            if cursor is None or len(found) >= MOST:
                break
        return found[:MOST], cursor is None and len(found) <= MOST

    return context.database.use(read)


def failure(context: Context, group: str, action: str) -> Response:
    """``/failures/KEY/ACTION``."""
    from fbtasks.features.web.pages.failures import groups

    found = next((each for each in groups(context).rows if each.key == group), None)
    if found is None:
        raise NotFound("None of the newest failures is of this group any more.")
    ids = context.database.use(lambda session: store.group_ids(session, group, MOST))
    what = f"failures of {found.name}: {found.error_type}"
    back = context.url("failures")
    return _many(context, action, what, ids, back, whole=len(ids) < MOST)


def _many(
    context: Context,
    action: str,
    what: str,
    ids: Sequence[int],
    back: str,
    *,
    whole: bool,
    queue: str | None = None,
) -> Response:
    if action not in ON_MANY:
        raise NotFound("There is no such action.")
    act = ON_MANY[action]
    if "ids" in context.request.form:  # those alone that the reader was asked about
        asked = {int(each) for each in context.request.form["ids"].split(",") if each.isdecimal()}
        ids = [each for each in ids if each in asked]
    many = count(len(ids), "task") if whole else f"the first {count(len(ids), 'task')}, of more,"

    def do(values: Values) -> str:
        step = 60_000 // _pace(values["pace"]) if values.get("pace") else 0
        done = 0
        for at in range(0, len(ids), BATCH):
            some = ids[at : at + BATCH]
            packed = b"".join(b"%019d" % each for each in some)
            said = f"{count(len(some), 'task')}, {min(some)} to {max(some)}" + (f", one each {step} ms" if step else "")
            with noting(context, action, what, said):
                work = partial(_in_one, act, packed, at * step, step)
                done += context.database.use(work)
        return f"{act.label}: {count(done, 'task')} of {len(ids)}."

    deed = Deed(
        action=action,
        what=what,
        label=act.label,
        queue=queue,
        back=back,
        ask=act.ask.format(many=many),
        fields=[PACE] if act.paced else [],
        do=do,
        notes=True,
        harms=action != "retry",
        hidden=[("ids", ",".join(map(str, ids)))],
    )
    return perform(context, deed)


def _in_one(act: BulkAct, ids: bytes, first: int, step: int, session: Session) -> int:
    return session.run(lambda transaction: act.change(transaction, ids, first, step))


def _pace(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 60_000:
        raise ConfigurationError(f"{text!r:.20} a minute: give a whole number from 1 to 60000, or nothing.")
    return int(text)


# Queues.


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


def _pause(change: Callable[[], pausing.Paused], done: str) -> str:
    changed = change()
    return done.format(", ".join(changed.queues)) if changed.queues else "Nothing to do: it was so already."


def _purge(numbers: Iterable[int]) -> str:
    return f"{count(sum(numbers), 'task')} deleted."


# What features have.


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
    from fbtasks.features.web.pages.sheets import sheet_of

    act: Act | None = sheet_of(context, sheet).actions.get(action)
    if act is None:
        raise NotFound("There is no such action.")
    deed = Deed(
        action=f"{sheet}.{action}",
        what=f"{sheet} {line}",
        label=act.label,
        back=context.url("line", sheet=sheet, line=line),
        ask=act.ask.replace("{key}", line),
        fields=act.fields,
        do=lambda values: sentence(act.do(context.app, line, values)),
        harms=bool(act.ask),
    )
    return perform(context, deed)
