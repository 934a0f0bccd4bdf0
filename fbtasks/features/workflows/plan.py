"""A workflow as it is written into the database: steps, groups, and what follows what. Nodes are numbered from 0."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from fbtasks.tasks.call import Call


class Follows(IntEnum):
    """How a step follows a node. The values are those of QUEUE_LINK.KIND."""

    WITH_RESULT = 0
    WITHOUT_RESULT = 1
    ON_ERROR = 2
    """It runs when the node has failed, and is told why."""
    ON_ERROR_UNTOLD = 3

    @property
    def on_error(self) -> bool:
        """Whether the step runs only when the node has failed."""
        return self >= Follows.ON_ERROR

    @property
    def feeds(self) -> bool:
        """Whether the step is given something."""
        return self in (Follows.WITH_RESULT, Follows.ON_ERROR)


class Link(NamedTuple):
    """The node *source* is followed by the step *target*. The fields are in the order in which links are written."""

    source: int
    kind: Follows
    target: int


class Member(NamedTuple):
    """A member of a group, a node."""

    group: int
    number: int
    node: int
    done: bool = False
    """Whether it is an empty group, which has nothing to wait for."""


@dataclass(slots=True)
class Plan:
    """The nodes of one workflow. What a step follows has a lower number than the step."""

    nodes: list[Call | None] = field(default_factory=list)
    """The step of each node, by its number; None: it is a group."""
    groups: dict[int, bool] = field(default_factory=dict)
    """Groups that something follows, and whether that is given the errors of members that fail."""
    members: list[Member] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.nodes)

    def steps(self) -> Iterator[tuple[int, Call]]:
        """Returns the steps, with their numbers."""
        return ((number, step) for number, step in enumerate(self.nodes) if step is not None)

    def step(self, number: int) -> Call:
        """Returns the step of that number."""
        found = self.nodes[number]
        assert found is not None
        return found

    def step_count(self) -> int:
        """Returns how many of the nodes are steps."""
        return sum(1 for _ in self.steps())

    def add_step(self, call: Call) -> int:
        """Returns the number of a new step."""
        self.nodes.append(call)
        return len(self.nodes) - 1

    def add_group(self, *, collects: bool) -> int:
        """Returns the number of a new group."""
        number = self.number_group()
        self.groups[number] = collects
        return number

    def number_group(self) -> int:
        """Returns the number of a new group that nothing follows: its result is known by it, and it has no row."""
        self.nodes.append(None)
        return len(self.nodes) - 1

    def queues_of_groups(self) -> dict[int, str]:
        """Returns for each group the queue whose workers look at it: that of what follows it, or its outer group."""
        found: dict[int, str] = {}
        for link in self.links:
            if link.source in self.groups:
                found.setdefault(link.source, self.step(link.target).queue)
        outer = {member.node: member.group for member in self.members if member.node in self.groups}
        for group in self.groups:
            at: int | None = group
            while at is not None and at not in found:
                at = outer.get(at)
            found[group] = next(self.steps())[1].queue if at is None else found[at]
        return found
