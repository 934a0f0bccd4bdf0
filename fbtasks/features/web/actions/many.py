"""Actions on tasks of a search, ticked ones or all, and on groups of failures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from werkzeug.exceptions import NotFound
from werkzeug.wrappers import Response

from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.features.web import search, store
from fbtasks.features.web.actions.deed import Button, Deed, Values, perform
from fbtasks.features.web.actions.one import ON_TASK
from fbtasks.features.web.showing import SEARCH
from fbtasks.firebird.session import Transaction
from fbtasks.queue import results
from fbtasks.sheet import Field
from fbtasks.states import State
from fbtasks.system.showing import count
from fbtasks.tasks.call import TaskRow

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context
    from fbtasks.features.web.query import Query
    from fbtasks.features.web.store import Group
    from fbtasks.firebird.session import Session

MOST: Final = 10_000
"""Tasks that one deed changes."""
BATCH: Final = 500
"""Tasks that one transaction changes."""
LOOKS: Final = 60
"""Pages of the search that are read to find them."""


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


def _cancel(transaction: Transaction, ids: bytes, *_: int, stops: bool) -> int:
    cancelled, requested, _ = transaction.call("FBTASKS_READER.CANCEL_MANY", ids, int(stops))
    return int(cancelled + requested)


def _discard(transaction: Transaction, ids: bytes, *_: int) -> int:
    return sum(transaction.call("FBTASKS_READER.DISMISS", int(ids[at : at + 19])) for at in range(0, len(ids), 19))


ON_MANY: Final[Mapping[str, BulkAct]] = {
    "retry": BulkAct("Retry", "Put {many} back into their queues?", _retry, paced=True),
    "cancel": BulkAct("Cancel", "Cancel {many}?", partial(_cancel, stops=False)),
    "stop": BulkAct("Stop", "Stop {many}? Their workers end them.", partial(_cancel, stops=True)),
    "discard": BulkAct("Discard", "Delete {many} for good, with their results and errors?", _discard),
}
PACE: Final = Field(name="pace", label="how many a minute may begin (empty: all at once)", kind="number")


def bulk_buttons(context: Context, rows: Sequence[TaskRow]) -> list[Button]:
    """Returns what can be done with tasks that the search finds, of which *rows* are some."""
    return [
        Button(act.label, context.url("do_bulk", action=name), asks=True, harms=name != "retry")
        for name, act in ON_MANY.items()
        if any(row.state in ON_TASK[name].states for row in rows) and context.may(name, _queue_of(rows))
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
    if payloads.hidden and (query.error or query.words):
        given = f"error:{query.error}" if query.error else query.words[0]
        raise ConfigurationError(
            f"{given!r:.80} would be looked for in messages of errors, which are not shown here: leave it out. A name "
            "of a task is found by name:, with * for any text."
        )
    for path, _ in query.arg:
        if payloads.hidden or any(payloads.is_secret(part) for part in path.split(".")):
            raise ConfigurationError(f"arg.{path} is not shown here, and so cannot be searched for: leave it out.")
    return query


def bulk(context: Context, action: str) -> Response:
    """``/bulk/ACTION?q=&id=``: on the tasks with these ids; without any on all that the search finds."""
    args = context.request.args
    query, ticked = parse(context, args.get("q", "")), args.getlist("id")
    if ticked:
        found, whole = _ticked(context, ticked), True
        what = f"tasks {', '.join(str(row.id) for row in found)}"
        back = context.url("tasks", q=str(query), after=args.get("after"))
    else:
        found, whole = _search(context, query)
        what = f"{SEARCH}{query}" if str(query) else "all tasks"
        back = context.url("tasks", q=str(query))
    if action in ("cancel", "stop"):  # each takes a right of its own
        found = [row for row in found if (row.state is State.RUNNING) == (action == "stop")]
    ids = [row.id for row in found]
    return _many(context, action, what, ids, back, whole=whole, queue=_queue_of(found), ticked=bool(ticked))


def _ticked(context: Context, ids: Sequence[str]) -> list[TaskRow]:
    """Returns those of these tasks that there are."""
    if len(ids) > BATCH or not all(each.isdecimal() and len(each) < 19 for each in ids):
        raise ConfigurationError(
            f"id={','.join(ids):.80} must be the numbers of {BATCH} tasks or fewer: tick them again."
        )
    numbers = [int(each) for each in ids]

    def read(session: Session) -> list[TaskRow]:
        found = results.find_all(session, numbers, live=True) | results.find_all(session, numbers, live=False)
        return [found[number] for number in sorted(found)]

    return context.database.use(read)


def _search(context: Context, query: Query) -> tuple[list[TaskRow], bool]:
    """Returns the first tasks that the search finds, and whether these are all."""

    def read(session: Session) -> tuple[list[TaskRow], bool]:
        found: dict[int, TaskRow] = {}  # a task may move to a page that is read later
        cursor: str | None = None
        for _ in range(LOOKS):
            page = search.page(context.database, session, query, context.options.arguments, cursor, BATCH)
            found |= {row.id: row for row in page.rows}
            cursor = page.next
            if cursor is None or len(found) >= MOST:
                break
        return [*found.values()][:MOST], cursor is None and len(found) <= MOST

    return context.database.use(read)


def failure(context: Context, group: str, action: str) -> Response:
    """``/failures/KEY/ACTION``."""
    from fbtasks.features.web.pages.failures import groups

    found = next((each for each in groups(context).rows if each.key == group), None)
    if found is None:
        raise NotFound("None of the newest failures is of this group any more.")
    told = context.options.arguments.told
    ids = context.database.use(lambda session: store.group_ids(session, told, group, MOST))
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
    ticked: bool = False,
) -> Response:
    if action not in ON_MANY:
        raise NotFound("There is no such action.")
    act = ON_MANY[action]
    if "ids" in context.request.form:  # those alone that the reader was asked about
        asked = set(context.request.form["ids"].split(","))
        ids = [each for each in ids if str(each) in asked]
    many = count(len(ids), "task") if whole else f"the first {count(len(ids), 'task')}, of more,"

    def step_of(values: Values) -> int:
        return 60_000 // _pace(values["pace"]) if values.get("pace") else 0

    def do(values: Values) -> str:
        step, done = step_of(values), 0
        try:
            for at in range(0, len(ids), BATCH):
                packed = b"".join(b"%019d" % each for each in ids[at : at + BATCH])
                done += context.database.use(partial(_in_one, act, packed, at * step, step))
        except FBTasksError as error:
            if not done:
                raise
            raise FBTasksError(f"{count(done, 'task')} of {len(ids)} were changed, and then: {error}") from error
        return f"{act.label}: {count(done, 'task')} of {len(ids)}."

    def said(values: Values) -> str:
        which = count(len(ids), "task")
        if ids:
            which += f": {', '.join(map(str, ids))}" if ticked else f", {min(ids)} to {max(ids)}"
        return which + (f", one each {step} ms" if (step := step_of(values)) else "")

    deed = Deed(
        action=action,
        what=what,
        label=act.label,
        queue=queue,
        back=back,
        ask=act.ask.format(many=many),
        fields=[PACE] if act.paced else [],
        do=do,
        said=said,
        harms=action != "retry",
        hidden=[("ids", ",".join(map(str, ids)))],
    )
    return perform(context, deed)


def _in_one(act: BulkAct, ids: bytes, first: int, step: int, session: Session) -> int:
    return session.run(lambda transaction: act.change(transaction, ids, first, step))


def _pace(text: str) -> int:
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 60_000:
        raise ConfigurationError(f"{text!r:.20} a minute: give a whole number from 1 to 60000, or nothing.")
    return int(text)
