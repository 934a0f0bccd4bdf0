"""Workflows in the database: writes them whole, and reads what their steps are given of each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final, NamedTuple

from fbtasks.errors import DatabaseError, StatementRefused
from fbtasks.features.workflows.plan import Follows, Plan
from fbtasks.features.workflows.replaced import Replaced
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import codec, results, tasks
from fbtasks.queue.firsts import write_first
from fbtasks.states import State
from fbtasks.tasks.call import Finished, Input, Owner, Stale

_DIGITS: Final = 19
_GROUP: Final = -1
"""The state of a group, as QUEUE_STEP_INPUTS writes it; 0: of what is not known any more."""
_STALE: Final = 0
_REPLACED: Final = 1
"""What QUEUE_REPLACE has done; 2: it has cancelled the task, as was asked before."""
_SAVED: Final = 500
"""Saved groups that are forgotten in one transaction."""


class _Part(NamedTuple):
    """A node, *first*, that belongs to *node* in the place *number*, or follows it, as QUEUE_PUT_NODES is told."""

    mark: bytes
    node: int
    kind: int
    first: int
    number: int


def enqueue(transaction: Transaction, plan: Plan, limits: Mapping[str, Owner]) -> tuple[int, int]:
    """Writes all of *plan*. Returns the database's number of its node 0, and that of the transaction.

    *limits* are those whose gates its steps have to pass. Raises :class:`EnqueueError` when a step's ``task_id`` is
    taken, and what :func:`fbtasks.queue.tasks.enqueue` raises.
    """
    first, number, now = transaction.call("FBTASKS_WORKFLOWS_API.STEP_IDS", len(plan))
    _Writing(plan, first).write(transaction, limits, now)
    return first, number


def replace(
    transaction: Transaction, worker_id: int, slot: int, items: Iterable[Finished], limits: Mapping[str, Owner]
) -> list[Stale]:
    """Writes the workflows that tasks have asked for in their places. Returns the stale ones, as ``tasks.finish`` does.

    Raises :class:`StatementRefused` for a workflow that cannot be enqueued.
    """
    stale = []
    for claim, outcome, elapsed, _ in items:
        assert isinstance(outcome, Replaced)
        params = claim.id, claim.claim_id, worker_id, slot, int(elapsed * 1000)
        done, stands, *place = transaction.call("FBTASKS_WORKFLOWS.REPLACE_TASK", *params)
        if done == _STALE:
            stale.append(Stale(claim.id, stands))
        elif done == _REPLACED:
            try:
                _put_in_place(transaction, claim.id, outcome, _Inherited(*place), limits)
            except DatabaseError:
                raise
            except Exception as error:  # such as a task_id that is taken, a queue that is full, a call of nonsense
                raise StatementRefused(f"the workflow that is to replace the task is not enqueued: {error}") from error
    return stale


class _Inherited(NamedTuple):
    """The place of a task that is replaced, as REPLACE_TASK returns it."""

    has_task_id: bool
    is_step: bool
    """Whether others follow it, or a group counts it."""
    enqueued_by: str | None
    """None: the user of this connection."""
    source: int | None
    """What it has followed."""
    kind: int


def _put_in_place(
    transaction: Transaction, task: int, outcome: Replaced, inherited: _Inherited, limits: Mapping[str, Owner]
) -> None:
    first, _, now = transaction.call("FBTASKS_WORKFLOWS_API.STEP_IDS", len(outcome.plan))
    _Writing(outcome.plan, first, {outcome.end: task}, inherited).write(transaction, limits, now)
    if inherited.enqueued_by is not None:
        last = first + len(outcome.plan) - 1
        transaction.call("FBTASKS_WORKFLOWS.REPLACED", task, first, last, inherited.enqueued_by)


class _Writing:
    """A plan whose nodes have numbers of the database: from *first* on, but those that are *known* already."""

    def __init__(
        self,
        plan: Plan,
        first: int,
        known: Mapping[int, int] | None = None,
        inherited: _Inherited | None = None,
    ) -> None:
        self._plan = plan
        self._first = first
        self._known = known or {}
        self._inherited = inherited
        self._follows = bytearray(len(plan))
        """For each node whether it follows another one."""
        for link in plan.links:
            self._follows[link.target] = True

    def write(self, transaction: Transaction, limits: Mapping[str, Owner], now: datetime) -> None:
        """Writes it, with the time *now*."""
        for group in codec.chunks(self._nodes()):
            transaction.call("FBTASKS_WORKFLOWS_API.PUT_NODES", group)
        with tasks.ids_may_be_taken():
            head = codec.steps_at(now)
            for group in codec.chunks(self._steps(limits), codec.CALLS - len(head)):
                transaction.call("FBTASKS_PRODUCER.ENQUEUE_PACKED", head + group)
        for node, call in self._plan.steps():
            tasks.put_beside(transaction, self._number(node), call)

    def _number(self, node: int) -> int:
        return self._known.get(node, self._first + node)

    def _nodes(self) -> Iterator[bytes]:
        plan, number = self._plan, self._number
        queues = plan.queues_of_groups()
        empty = {member.node for member in plan.members if member.done}
        for group, collects in plan.groups.items():
            queue = queues[group].encode("ascii")
            yield b"G%019d%d%d%03d%b" % (number(group), collects, group in empty, len(queue), queue)
        links = (_Part(b"L", number(each.source), each.kind, number(each.target), 0) for each in sorted(plan.links))
        members = (
            _Part(b"M", number(each.group), int(each.done), number(each.node), each.number)
            for each in sorted(plan.members)
        )
        for part, count in _runs(chain(links, self._beginnings(), members)):
            yield b"%b%019d%d%019d%010d%010d" % (part.mark, part.node, part.kind, part.first, count, part.number)

    def _beginnings(self) -> Iterator[_Part]:
        """Links the steps that follow none to what the replaced task has followed. They are not given its inputs."""
        if self._inherited is not None and self._inherited.source is not None:
            on_error = Follows(self._inherited.kind).on_error
            kind = Follows.ON_ERROR_UNTOLD if on_error else Follows.WITHOUT_RESULT
            for node, _ in self._plan.steps():
                if not self._follows[node]:
                    yield _Part(b"L", self._inherited.source, kind, self._number(node), 0)

    def _steps(self, limits: Mapping[str, Owner]) -> Iterator[bytes]:
        """Yields the last ones first: what follows a step is there when it ends, even if that is at once."""
        plan = self._plan
        steps, fed = bytearray(len(plan)), bytearray(len(plan))
        for link in plan.links:
            steps[link.source] = 1
            fed[link.target] |= link.kind.feeds
        for member in plan.members:
            steps[member.node] = 1
        for node in reversed(range(len(plan))):
            call = plan.nodes[node]
            if call is None:
                continue
            heir = self._inherited if node in self._known else None
            follows = self._follows[node]
            flags = (
                follows,
                heir is not None and heir.has_task_id,
                steps[node] or (heir is not None and heir.is_step),
                fed[node],
                follows and isinstance(call.start, timedelta),
                follows and isinstance(call.expires, timedelta),
            )
            yield b"%019d%d%d%d%d%d%d%b" % (self._number(node), *flags, codec.pack_call(call, limits))


def _runs(parts: Iterable[_Part]) -> Iterator[tuple[_Part, int]]:
    """Each first part of those that go on with the next node, and how many they are. *parts* are in order."""
    first, count = None, 0
    for part in parts:
        if first is not None:
            number = first.number + count if first.mark == b"M" else 0
            if part == (first.mark, first.node, first.kind, first.first + count, number):
                count += 1
                continue
            yield first, count
        first, count = part, 1
    if first is not None:
        yield first, count


def note_group_queues(session: Session, queues: Iterable[str]) -> None:
    """Notes that tasks of *queues* follow groups, so that their workers look at what members leave undecided."""
    for queue in queues:
        write_first(session, lambda transaction, q=queue: transaction.call("FBTASKS_WORKFLOWS_API.FOLLOWS_GROUPS", q))  # type: ignore[misc]


def inputs(session: Session, step: int) -> tuple[Input, ...] | None:
    """Returns what the step of a workflow is given. None when some of it is not known any more."""
    found = _inputs(session, step, None)
    return found or None


def _inputs(session: Session, step: int, group: int | None) -> tuple[Input, ...] | None:
    """Returns the inputs of a step; with *group* the results of the members of that group."""
    found = []
    for (packed,) in session.read("FBTASKS_WORKFLOWS.STEP_INPUTS", step, group):
        for kind, node, state, is_large, each in _unpack(packed):
            if state == 0 and kind != Follows.ON_ERROR:
                return None
            if state == _GROUP:
                members = _inputs(session, step, node)
                if members is None:
                    return None
                found.append(each._replace(members=members))
            elif is_large:
                stored = results.outcome(session, node)
                if stored is None:
                    return None
                found.append(each._replace(result=stored.result or b"", content_type=stored.content_type or ""))
            else:
                found.append(each)
    return tuple(found)


def _unpack(packed: bytes) -> Iterator[tuple[int, int, int, bool, Input]]:
    at = 0
    while at < len(packed):
        colon = packed.index(b":", at)
        kind, node, state, large, *lengths = map(int, packed[at:colon].split(b";"))
        at = colon + 1
        values = []
        for length in lengths:
            values.append(packed[at : at + length])
            at += length
        error_type, message, content_type, result = values
        yield kind, node, state, bool(large), Input(
            node,
            State(state) if state > 0 else None,
            content_type.decode("ascii"),
            result,
            error_type.decode("utf-8", "replace"),
            message.decode("utf-8", "replace"),
            is_report=kind == Follows.ON_ERROR,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A task or a group of a workflow."""

    id: int
    kind: str
    """``task`` or ``group``."""
    name: str | None
    """Of a task; None when it is not known any more."""
    state: str
    """Of a task, ``gone`` when it is not known any more; of a group ``open``, ``done`` or ``failed``."""
    follows: int | None
    """The task or the group that it follows."""
    runs: str | None
    """How: ``with result``, ``without result`` or ``on failure``."""
    group: int | None
    """The group that it is a member of."""
    number: int | None
    """Its place in that."""
    try_count: int | None = None
    error_type: str | None = None
    error_msg: str | None = None


_RUNS: Final = ("with result", "without result", "on failure", "on failure")
_GROUP_STATES: Final = ("open", "done", "failed")


def node_row(row: Sequence[Any]) -> NodeRow:
    """Returns a node as FBTASKS_WORKFLOWS_VIEW.WORKFLOW has it."""
    node, source, kind, group, number, group_state, name, state, tries, error_type, message = row
    is_group = group_state is not None
    known = "gone" if state is None else State(state).name.lower()
    return NodeRow(
        node, "group" if is_group else "task", name, _GROUP_STATES[group_state] if is_group else known, source,
        None if kind is None else _RUNS[kind], group, number, tries, error_type, message,
    )  # fmt: skip


def group_state(members: Iterable[str]) -> str:
    """Returns the state of a group that is written nowhere, by those of its *members*."""
    states = set(members)
    if states & {"failed", "cancelled"}:
        return "failed"
    return "done" if states <= {"succeeded", "gone", "done"} else "open"


def revoke_many(transaction: Transaction, ids: Sequence[int], *, terminate: bool) -> tuple[int, bool]:
    """Cancels tasks that wait, and asks the workers of those that run. Returns how many, and whether some are left.

    Those are held by other transactions at this moment.
    """
    count, left = 0, False
    for group in codec.chunks(b"%0*d" % (_DIGITS, number) for number in ids):
        cancelled, requested, is_left = transaction.call("FBTASKS_READER.CANCEL_MANY", group, int(terminate))
        count, left = count + cancelled + requested, left or bool(is_left)
    return count, left


def forget_saved(session: Session) -> bool:
    """Forgets some of the groups that were saved for as long as they were to be. Returns whether there may be more."""
    return bool(session.call("FBTASKS_WORKFLOWS.FORGET_SAVED", _SAVED) >= _SAVED)
