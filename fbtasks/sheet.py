"""What a feature shows to people beside tasks: lists with details and actions, as data.

A dashboard draws it without knowing the feature, which returns it from :meth:`fbtasks.feature.Feature.sheets`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.states import State
from fbtasks.system import checks

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session

MOST: Final = 1000
"""Up to which number what dashboards show is counted, so that no page costs more: one more stands for all above."""
SHOWN: Final = 50
"""Rows of a table of a detail."""


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


@dataclass(frozen=True, slots=True)
class Spark:
    """A value of a cell that is drawn as small bars: ``Spark("Seconds", {"succeeded": [2, 0], "failed": [0, 3]})``."""

    title: str
    """What the numbers are."""
    values: Mapping[str, Sequence[float]]
    """The parts of each bar, from the left to the right, by names of states: their colours. All have one length."""


@dataclass(frozen=True, slots=True)
class Private:
    """A value of a cell with what tasks are called with, write or raise, of which dashboards may show *kind* alone."""

    text: str | None = field(repr=False)
    kind: str = ""
    """What stands before it: the class of an error."""


@dataclass(frozen=True, slots=True)
class Called:
    """A value of a cell that is the call of a task. Dashboards show of its arguments what they show of a task's."""

    task: str
    args: Sequence[Any] | None = field(repr=False)
    """None: they are not in JSON."""
    kwargs: Mapping[str, Any] | None = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a sheet."""

    key: str
    """What its page and its actions are named by."""
    cells: Mapping[str, object]
    """Values by the titles of columns: text, numbers, booleans, ``datetime`` with a zone, ``timedelta``, lists of
    these, :class:`TaskRef`, :class:`Ref`, :class:`Spark`, :class:`Private`, :class:`Called`, or None."""
    wrong: str | Private = ""
    """What is wrong with it, as a sentence without a full stop; empty: nothing."""
    actions: Sequence[str] = ()
    """Those of the sheet's actions that can be taken now."""
    values: Mapping[str, str] = field(default_factory=dict)
    """What fields of these are filled in with, by the names of the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A box of a graph."""

    id: int
    label: str
    state: State | None = None
    task: int | None = None
    """The task to which it leads."""
    detail: str | Private = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Graph:
    """Boxes and the arrows between them."""

    nodes: Sequence[Node]
    arrows: Sequence[tuple[int, int]]
    """From the node of one id to that of another."""
    left_out: int = 0
    """How many nodes there are beside these, at least."""


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
    """``text``, ``number`` or ``flag``; ``args`` and ``kwargs``: those of the :class:`Called` among the cells, in JSON.

    The latter are not in the audit. They are filled in where nothing of the call is hidden; else the field is empty.
    """
    value: str = ""
    """What it is filled in with, unless the line says it."""


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
    title: str = ""
    """In the menu: ``Limits``. Empty: there is no list, and it only tells of tasks."""
    empty: str = "There are none."
    """What is said of an empty list."""
    actions: Mapping[str, Act] = {}
    """By their names in URLs."""

    @property
    def served(self) -> Callable[[Any, Any], Any] | None:
        """The WSGI application that answers in the place of a list; None: none does."""
        return None

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:  # noqa: ARG002
        """Returns up to *most* lines behind the one with the key *after*; None: the first ones.

        They are in an order of the sheet's own. Fewer than *most* are the last ones.
        """
        return ()

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns what there is to show of one; None: there is none."""
        line = next((each for each in self.lines(session, None, 10_000) if each.key == key), None)
        return None if line is None else Detail(line=line)

    def of_task(self, session: Session, task: int) -> Mapping[str, Any]:  # noqa: ARG002
        """Returns cells for the page of a task, such as its workflow. Empty: it has nothing to do with the task."""
        return {}


def behind(keys: Sequence[str], after: str | None, most: int) -> Sequence[str]:
    """Returns up to *most* of *keys* behind *after*; where that is gone, from the first one on."""
    at = keys.index(after) + 1 if after in keys else 0
    return keys[at : at + most]


def counted(number: int, most: int, *, more: bool = False) -> int | str:
    """Returns the cell of a *number*, of which one above *most* stands for all above. *more*: not all was counted."""
    return f"{min(number, most):,} or more" if more or number > most else number


def task_cells(id: int, name: str, state: State, since: datetime | None) -> dict[str, object]:
    """Returns the first cells of a table of tasks."""
    return {"Task": TaskRef(id, name), "State": state.name.lower(), "Since": since}


def given(values: Mapping[str, str], name: str) -> str | None:
    """Returns what the field *name* was filled in with; None: it was left empty."""
    return values.get(name, "").strip() or None


def needed(values: Mapping[str, str], name: str) -> str:
    """Returns what the field *name* was filled in with. Raises :class:`ConfigurationError` when it was left empty."""
    found = given(values, name)
    if found is None:
        raise ConfigurationError(f"{name} is empty: fill it in.")
    return found


def whole_number(values: Mapping[str, str], name: str) -> int | None:
    """Returns the number in the field *name*; None: it was left empty. Raises :class:`ConfigurationError`."""
    found = given(values, name)
    if found is not None and not (found.isascii() and found.isdecimal() and len(found) < 19):
        raise ConfigurationError(f"{name} {checks.shown(found)} must be a whole number.")
    return None if found is None else int(found)
