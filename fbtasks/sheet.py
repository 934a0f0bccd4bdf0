"""What a feature shows to people beside tasks: lists with details and actions, as data.

A dashboard draws it without knowing the feature, which returns it from :meth:`fbtasks.feature.Feature.sheets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fbtasks.states import State

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A value of a cell that leads to a task."""

    id: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Ref:
    """A value of a cell that leads to a line of a sheet: ``Ref("limits", "sms")``."""

    sheet: str
    key: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a sheet."""

    key: str
    """What its page and its actions are named by."""
    cells: Mapping[str, object]
    """Values by the titles of columns: text, numbers, booleans, ``datetime`` with a zone, ``timedelta``, lists of
    these, :class:`TaskRef`, :class:`Ref`, or None."""
    wrong: str = ""
    """What is wrong with it, as a sentence without a full stop; empty: nothing."""
    actions: Sequence[str] = ()
    """Those of the sheet's actions that can be taken now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box of a graph."""

    id: int
    label: str
    state: State | None = None
    task: int | None = None
    """The task to which it leads."""
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Boxes and the arrows between them."""

    nodes: Sequence[Node]
    arrows: Sequence[tuple[int, int]]
    """From the node of one id to that of another."""
    left_out: int = 0
    """How many nodes there are beside these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What a page shows of one line."""

    line: Line
    facts: Mapping[str, object] = field(default_factory=dict)
    """More values, as those of cells."""
    tables: Mapping[str, Sequence[Mapping[str, object]]] = field(default_factory=dict)
    """Tables by their titles: of each the rows, as cells by the titles of columns."""
    graph: Graph | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Something that an action asks for."""

    name: str
    label: str
    kind: str = "text"
    """``text``, ``number`` or ``flag``."""
    value: str = ""
    """What it is filled in with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """An action on a line of a sheet."""

    label: str
    """A verb: ``Resume``."""
    do: Callable[[FBTasks, str, Mapping[str, str]], str]
    """Does it to the line of a key, with the values of the fields. Returns what was done, as a sentence.

    Raises :class:`fbtasks.FBTasksError` for what cannot be.
    """
    ask: str = ""
    """The question before it is done, with ``{key}``; empty: it is done at once."""
    fields: Sequence[Field] = ()


class Sheet:
    """A list of what a feature has, such as limits."""

    name: str
    """In URLs: ``limits``."""
    title: str
    """In the menu: ``Limits``."""
    empty: str = "There are none."
    """What is said of an empty list."""
    actions: Mapping[str, Act] = {}
    """By their names in URLs."""

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns up to *most* lines behind the one with the key *after*, in the order of their keys."""
        raise NotImplementedError

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns what there is to show of one; None: there is none."""
        line = next((each for each in self.lines(session, None, 10_000) if each.key == key), None)
        return None if line is None else Detail(line=line)

    def of_task(self, session: Session, task: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Returns cells for the page of a task, such as its workflow. Empty: it has nothing to do with the task."""
        return {}
