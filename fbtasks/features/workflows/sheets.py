"""Workflows in dashboards: the newest ones, how far each has come, and its steps as a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fbtasks.database.values import as_utc
from fbtasks.errors import TaskNotFound
from fbtasks.features.workflows.node_result import revoke_ids
from fbtasks.features.workflows.operations import ON_FAILURE, find, find_workflow
from fbtasks.features.workflows.store import NodeRow
from fbtasks.queue import results
from fbtasks.queue.operations.tasks import retry
from fbtasks.sheet import MOST, SHOWN, Act, Detail, Graph, Line, Node, Private, Ref, Sheet, TaskRef, counted
from fbtasks.states import State
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session

_NODES: Final = 200
"""Nodes of a graph."""
_NEWER: Final = 2**63 - 2
"""More than the number of any task."""
_ENDED: Final = {state.name.lower() for state in State if not state.live} | {"gone"}


def _cancel(app: FBTasks, key: str, _: Mapping[str, str]) -> str:
    ids = [node.id for node in find_workflow(app.database, key)[1] if _is_unended(node)]
    with app.database.session() as session:
        done = revoke_ids(session, ids[::-1], terminate=True)  # what follows others first
    return f"{count(done, 'task')} cancelled, or asked to stop."


def _retry(app: FBTasks, key: str, _: Mapping[str, str]) -> str:
    nodes = find_workflow(app.database, key)[1]
    changes = retry(app.database, [str(node.id) for node in nodes if (node.kind, node.state) == ("task", "failed")])
    left = [each for each in changes.refused if each.state == "failed"]
    said = f"{count(changes.count, 'task')} put back."
    return f"{said} {count(len(left), 'task')} left: {changes.condition}." if left else said


class WorkflowSheet(Sheet):
    """Workflows of which a step is known that follows another one, the newest first."""

    name = "workflows"
    title = "Workflows"
    empty = "There are no workflows of which a step is still known."
    actions: Mapping[str, Act] = {
        "cancel": Act(label="Cancel", do=_cancel, ask="Cancel all tasks of the workflow {key} that have not ended?"),
        "retry": Act(label="Retry failed steps", do=_retry, ask="Put the failed tasks of the workflow {key} back?"),
    }

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the workflows. One of which a task was replaced by others stands at these, too."""
        at = _NEWER if after is None else results.number_of(after) or 0
        rows = session.read("workflows_newest", at + 1, most + 1, MOST + 1)
        if rows and rows[0][0] == at:
            del rows[0]  # to go on below it
        found = []
        for last, first, name, since, is_whole, unended, *ended in rows[:most]:
            more = sum(ended) > MOST
            counts = Counter(unended=unended, succeeded=ended[0], failed=ended[1], cancelled=ended[2], more=more)
            if not is_whole:
                counts = _counted(find(session, str(last), MOST + 1)[1].values())
            found.append(_line(str(last), first, name, as_utc(since), counts))
        return found

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns the steps of the workflow of a task or a group."""
        try:
            found = [*find(session, key, MOST + 1)[1].values()]
        except TaskNotFound:
            return None
        tasks = sorted((node for node in found if node.kind == "task"), key=lambda node: node.id)  # a cause comes first
        if len(found) < 2 or not tasks:
            return None
        first = tasks[0]
        row = results.find(session, first.id)
        failed = [
            {
                "Step": TaskRef(each.id, each.name or ""),
                "State": each.state,
                "Why": _why(each),
            }
            for each in tasks
            if each.state in ("failed", "cancelled")
        ]
        return Detail(
            line=_line(key, first.id, first.name, None if row is None else row.raise_time, _counted(found)),
            tables={"Failed and cancelled steps": failed[:SHOWN]},
            graph=_graph(found),
        )

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns the workflow that a task is a step of, what it follows, and what follows it."""
        titles = {"F": "Follows", "T": "Followed by", "M": "Member of"}
        found: dict[str, list[object]] = {}
        for kind, node, is_group in session.read("workflow_around", task, task, task):
            to = Ref(self.name, str(node), f"group {node}") if is_group else TaskRef(node)
            found.setdefault(titles[kind], []).append(to)
        return {"Workflow": Ref(self.name, str(task), "its steps"), **found} if found else {}


def _is_unended(node: NodeRow) -> bool:
    return node.kind == "task" and node.state not in _ENDED


def _counted(nodes: Collection[NodeRow]) -> Counter[str]:
    found = Counter("unended" if _is_unended(node) else node.state for node in nodes if node.kind == "task")
    return found | Counter(partly=len(nodes) > MOST)


def _line(key: str, first: int, name: str | None, since: datetime | None, counts: Counter[str]) -> Line:
    failed, unended = counts["failed"] + counts["cancelled"], counts["unended"]
    partly = counts["partly"] > 0  # of all nodes; more: of those that have ended
    more = partly or counts["more"] > 0
    state = "failed" if failed else "not ended" if unended else "succeeded"
    return Line(
        key=key,
        cells={
            "Workflow": Ref("workflows", key, name or f"of {first}"),
            "Begins with": TaskRef(first),
            "State": state,
            "Not ended": counted(unended, MOST, more=partly),
            "Succeeded": counted(counts["succeeded"], MOST, more=more),
            "Failed": counted(counts["failed"], MOST, more=more),
            "Cancelled": counted(counts["cancelled"], MOST, more=more),
            "Enqueued": since,
        },
        wrong=f"{counts['failed']} of its steps failed" if counts["failed"] else "",
        actions=[name for name, possible in (("cancel", unended), ("retry", counts["failed"])) if possible],
    )


def _graph(found: Sequence[NodeRow]) -> Graph:
    shown = {node.id: node for node in found[:_NODES]}
    follows = [(node.follows, node.id) for node in shown.values() if node.follows in shown]
    counts = [(node.id, node.group) for node in shown.values() if node.group in shown]
    return Graph(
        nodes=[_node(node) for node in shown.values()],
        arrows=[(one, other) for one, other in follows + counts if one is not None and other is not None],
        left_out=len(found) - len(shown),
    )


def _node(node: NodeRow) -> Node:
    if node.kind == "group":
        return Node(id=node.id, label="end of the group", detail=node.state)
    label = node.name or "no longer kept"
    known = node.state != "gone"
    return Node(
        id=node.id,
        label=f"on failure: {label}" if node.runs == ON_FAILURE else label,
        state=State[node.state.upper()] if known else None,
        task=node.id if known else None,
        detail=_why(node),
    )


def _why(node: NodeRow) -> Private:
    return Private(node.error_msg, node.error_type or "")
