"""Workflows as they stand: their tasks and groups, and what follows what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from fbtasks.errors import TaskNotFound
from fbtasks.services.tasks import find_number
from fbtasks.store import flows
from fbtasks.store.database import Database
from fbtasks.store.flows import NodeRow as NodeRow

ON_FAILURE: Final = "on failure"


class Line(NamedTuple):
    """A line of a workflow that is shown as a tree."""

    level: int
    node: NodeRow


def get_workflow(database: Database, task_id: str) -> list[NodeRow]:
    """Returns all nodes of the workflow that the task is part of, by their numbers; a task alone is one.

    Raises :class:`TaskNotFound`.
    """
    number = find_number(database, task_id)
    found = database.use(lambda session: session.run(lambda t: flows.workflow(t, number)))
    if not found:
        raise TaskNotFound(f"there is no task {task_id!r}.")
    return found


def outline(nodes: Sequence[NodeRow]) -> list[Line]:
    """Returns the tree of a workflow: what follows a node is below it, members of a group stand farther to the right.

    So does what else follows a task, and what runs on its failure.
    """
    return list(_Outline(nodes).lines())


class _Outline:
    def __init__(self, nodes: Sequence[NodeRow]) -> None:
        self._nodes = {node.id: node for node in nodes}
        self._followers: dict[int, list[int]] = {}
        self._left = Counter(node.group for node in nodes if node.group is not None)
        """How many members of each group have not been shown."""
        self._levels: dict[int, int] = {}
        """Where groups of several members stand."""
        self._beginnings: list[int] = []
        for node in nodes:
            if node.follows in self._nodes:
                self._followers.setdefault(node.follows, []).append(node.id)
            elif node.kind == "task":
                self._beginnings.append(node.id)

    def lines(self) -> Iterator[Line]:
        """The lines of the whole."""
        todo = self._side_by_side(self._beginnings, 0)[::-1]
        while todo:
            level, number = todo.pop()
            node = self._nodes[number]
            yield Line(level, node)
            if node.group is not None:
                self._left[node.group] -= 1
                if self._left[node.group] == 0:  # it has ended when its last member has
                    todo.append((self._levels.get(node.group, level), node.group))
            followers = self._followers.get(number, [])
            failed = [each for each in followers if self._nodes[each].runs == ON_FAILURE]
            others = [each for each in followers if self._nodes[each].runs != ON_FAILURE]
            todo += reversed([*((level + 1, each) for each in failed), *self._side_by_side(others, level)])

    def _side_by_side(self, nodes: list[int], level: int) -> list[tuple[int, int]]:
        """Where the lines of nodes begin that follow one."""
        if len(nodes) < 2:
            return [(level, node) for node in nodes]
        groups = {node: self._groups_behind(node) for node in nodes}
        others = [set(some) for some in groups.values()]
        common = next((group for group in groups[nodes[0]] if all(group in some for some in others)), None)
        if common is None:
            return [(level + 1, node) for node in nodes]
        self._levels.setdefault(common, level)
        inner: dict[int, list[int]] = {}  # those that a group in it has in common, by the first of them
        for node in nodes:
            place = groups[node].index(common)
            inner.setdefault(groups[node][place - 1] if place else -node, []).append(node)
        return [line for some in inner.values() for line in self._side_by_side(some, level + 1)]

    def _groups_behind(self, node: int) -> list[int]:
        """The groups to which a node leads, one after the other."""
        found: list[int] = []
        at: int | None = node
        while at is not None:
            group = self._nodes[at].group
            if group is not None:
                found.append(group)
                at = group
            else:
                at = next((each for each in self._followers.get(at, ()) if self._nodes[each].runs != ON_FAILURE), None)
        return found
