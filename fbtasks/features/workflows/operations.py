"""Workflows as they stand: their tasks and groups, and what follows what."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from fbtasks.database.database import Database
from fbtasks.errors import TaskNotFound
from fbtasks.features.workflows import store as flows
from fbtasks.features.workflows.store import NodeRow as NodeRow
from fbtasks.firebird.session import Session
from fbtasks.queue import results

ON_FAILURE: Final = "on failure"
ALL: Final = 2**31 - 1
"""However many nodes there are."""
MANY: Final = 10
"""Equal lines that are all shown."""
MOST: Final = 100
"""Characters of the id of a group that was saved."""
_FIRST: Final = 2
"""How many of more than those are."""


class Line(NamedTuple):
    """A line of a workflow that is shown as a tree."""

    level: int
    node: NodeRow
    more: int = 0
    """How many more there are that are like this node, which stands for them; 0: it is the line of the node itself."""


def find_workflow(database: Database, node_id: str) -> tuple[int, list[NodeRow]]:
    """Returns the number of a task or a group, and all nodes of the workflow that it is part of, by their numbers.

    A task alone is one. Of a group that nothing follows the database knows the members when it was saved. Raises
    :class:`TaskNotFound`.
    """
    number, nodes = database.use(lambda session: find(session, node_id))
    return number, sorted(nodes.values(), key=lambda row: row.id)


def find(session: Session, node_id: str, most: int = ALL) -> tuple[int, dict[int, NodeRow]]:
    """Returns what :func:`find_workflow` does, and up to *most* nodes: that one, those beside it, and so on."""
    number = results.find_id(session, node_id)
    nodes = {} if number is None else _nodes(session, number, most)
    if number is not None and nodes and (nodes[number].name is not None or nodes[number].kind == "group"):
        return number, nodes
    saved = session.read("group_saved", node_id, more=" ") if len(node_id) <= MOST else []
    if saved:
        return _saved(session, json.loads(bytes(saved[0][0])), most)
    raise TaskNotFound(
        f"there is no task and no group {node_id!r:.120}. A group that no task follows is known by its id while what "
        "save() of its GroupResult has written is kept; else ask for one of its tasks."
    )


def _nodes(session: Session, number: int, most: int) -> dict[int, NodeRow]:
    """Returns nodes of the workflow that a node is part of."""
    found = session.run(lambda t: t.rows("FBTASKS_WORKFLOWS_VIEW.WORKFLOW", number, most))
    return {row.id: row for row in map(flows.node_row, found)}


def _saved(session: Session, saved: list[Any], most: int) -> tuple[int, dict[int, NodeRow]]:
    """Returns the number of a group as it was *saved*, and the nodes of its members' workflows, in the group."""
    number, members = int(saved[0]), saved[1]
    nodes: dict[int, NodeRow] = {}
    own: list[NodeRow] = []
    for place, member in enumerate(members[:most]):
        if isinstance(member, list):
            at, more = _saved(session, member, most)
            nodes |= more
        else:
            found = results.find_id(session, member)
            if found is None:  # it had an id of its caller's, and is not known any more
                continue
            at = found
            if at not in nodes:
                nodes |= _nodes(session, at, most)
        nodes[at] = replace(nodes[at], group=number, number=place)
        own.append(nodes[at])
    state = flows.group_state([each.state for each in own])
    nodes[number] = NodeRow(number, "group", None, state, None, None, None, None)
    return number, nodes


def outline(nodes: Sequence[NodeRow]) -> list[Line]:
    """Returns the tree of a workflow: what follows a node is below it, members of a group stand farther to the right.

    So does what else follows a task, and what runs on its failure.
    """
    return list(_Outline(nodes).lines())


def fold(lines: Sequence[Line], asked: int | None = None) -> list[Line]:
    """Returns *lines* with one in the place of many that are equal, as the members of a large group are.

    Those are equal that stand below the same line, and have one name, one state, one type of error, and the same below
    them. Of more than :data:`MANY` the first two have lines of their own, and the node with the number *asked*.
    """
    return _Folding(lines, asked).fold()


class _Folding:
    def __init__(self, lines: Sequence[Line], asked: int | None) -> None:
        self._lines = lines
        self._asked = asked
        self._below: list[list[int]] = [[] for _ in lines]
        """The places of the lines that stand directly below each one."""
        self._top: list[int] = []
        above: list[int] = []
        for at, line in enumerate(lines):
            while above and lines[above[-1]].level >= line.level:
                above.pop()
            (self._below[above[-1]] if above else self._top).append(at)
            above.append(at)
        self._kinds: list[int] = [0] * len(lines)
        """Equal lines have the same number here."""
        numbers: dict[tuple[object, ...], int] = {}
        for at in reversed(range(len(lines))):
            node = lines[at].node
            facts = node.kind, node.name, node.state, node.error_type, node.runs
            below = tuple(self._kinds[each] for each in self._below[at])
            self._kinds[at] = numbers.setdefault((*facts, below), len(numbers))

    def fold(self) -> list[Line]:
        """Returns the lines that are left."""
        found: list[Line] = []
        todo = [iter(self._shown(self._top))]
        while todo:
            each = next(todo[-1], None)
            if each is None:
                todo.pop()
                continue
            at, more = each
            found.append(self._lines[at]._replace(more=more))
            if not more:
                todo.append(iter(self._shown(self._below[at])))
        return found

    def _shown(self, places: list[int]) -> list[tuple[int, int]]:
        """Returns which of the lines below one are shown, and how many more each of them stands for."""
        counts = Counter(self._kinds[at] for at in places)
        seen: Counter[int] = Counter()
        found: list[tuple[int, int]] = []
        folded: dict[int, int] = {}  # where the line is that stands for the rest of a kind
        for at in places:
            kind = self._kinds[at]
            seen[kind] += 1
            if counts[kind] <= MANY or seen[kind] <= _FIRST or self._lines[at].node.id == self._asked:
                found.append((at, 0))
            elif kind in folded:
                first, more = found[folded[kind]]
                found[folded[kind]] = first, more + 1
            else:
                folded[kind] = len(found)
                found.append((at, 1))
        return found


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
        """Returns the lines of the whole."""
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
        """Returns where the lines of nodes begin that follow one."""
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
        """Returns the groups to which a node leads, one after the other."""
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
