"""The definition of ``@app.poll_table``. Needs no database."""

from dataclasses import dataclass
from itertools import product
from typing import Annotated, Any, ClassVar, Final

from fbtasks.errors import ConfigurationError, TaskDefinitionError
from fbtasks.features.sources.definition import Kind, Names, charset_name, column_names, condition, some_columns
from fbtasks.features.sources.kinds import rows
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import declare
from fbtasks.tasks.declare import Given, given

Status = str | int
_STATUSES: Final = ("ready", "taken", "done", "failed")
SHORTEST: Final = 0.01
"""The least seconds between two looks."""


def _status(what: str, value: object) -> Status:
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be what the status column holds then: a text or a whole number."
        )
    return value


def _every(what: str, value: object) -> tuple[float, float]:
    if isinstance(value, list | tuple) and len(value) == 2:
        least, most = (checks.seconds(what, each, zero=False) for each in value)
        if SHORTEST <= least <= most:
            return least, most
    raise ConfigurationError(
        f"{what} {checks.shown(value)} must be the seconds from one look to the next: (0.1, 5) looks after 0.1 seconds "
        f"while rows come, and after up to 5 while none do. The first is {SHORTEST} at the least, and not above the "
        "second."
    )


@dataclass(frozen=True, kw_only=True)
class PollSource:
    """A table whose rows become tasks, and how it shows what became of them.

    The names are those that the definition gives: whether the table has them is seen when it is described
    (:func:`fbtasks.features.sources.store.polls.resolve`). Raises :class:`ConfigurationError` for an option that cannot
    be what it is, and :class:`TaskDefinitionError` for options that contradict each other.
    """

    kind: ClassVar[Kind] = "poll"
    order: ClassVar[None] = None
    """In which order rows are handled: each is a task of its own, and waits for no other."""
    table: Annotated[str, checks.text]
    key: Annotated[Given[Names | None, tuple[str, ...] | None], optional(some_columns)] = given(None)
    """Columns that tell the rows apart. None: the primary key, where the table has one."""
    sequence: Annotated[str | None, optional(checks.text)] = None
    """Instead of a key, a column of numbers that are drawn in order by the transactions which insert the rows."""
    status: Annotated[str | None, optional(checks.text)] = None
    """The column that says what is to be done with a row; the next four are its values."""
    ready: Annotated[Status | None, optional(_status)] = None
    taken: Annotated[Status | None, optional(_status)] = None
    """None: of a table without a key, the status names the task meanwhile."""
    done: Annotated[Status | None, optional(_status)] = None
    failed: Annotated[Status | None, optional(_status)] = None
    error: Annotated[str | None, optional(checks.text)] = None
    """A column for the error of a task that failed."""
    delete: Annotated[bool, checks.flag] = False
    """Whether a row is deleted when its task is done."""
    order_by: Annotated[Given[Names, tuple[str, ...]], column_names] = given(())
    """Columns by which the rows are taken, the lowest first."""
    columns: Annotated[Given[Names | None, tuple[str, ...] | None], optional(column_names)] = given(None)
    """Columns that the row has beside its key. None: of a table without a key all of them, else none."""
    when: Annotated[str | None, optional(condition)] = None
    """A condition in SQL on the columns; rows for which it does not hold are left alone."""
    charset: Annotated[str | None, optional(charset_name)] = None
    """The character set of what is in columns of CHARACTER SET NONE."""
    every: Annotated[tuple[float, float], _every] = (0.1, 5.0)
    """Seconds from one look to the next: while rows come, and at the most."""

    def __post_init__(self) -> None:
        declare.check_fields(self)
        if self.key is not None and self.sequence is not None:
            raise self._refusal("key= and sequence= both name what tells the rows apart. Give one of them")
        if self.status is None:
            self._check_without_status()
        else:
            self._check_status(self.status)

    @property
    def name(self) -> str:
        """The table."""
        return self.table

    def __str__(self) -> str:
        return f"rows of the table {self.table!r}"

    def read(self, members: Any) -> rows.Row:
        """Returns the row of a JSON object. Raises :class:`SerializationError` when it is none."""
        return rows.read(self.table, members)

    @property
    def statuses(self) -> dict[str, Status]:
        """The values of the status column that the definition names, by the names of their options."""
        values: dict[str, Any] = {name: getattr(self, name) for name in _STATUSES}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def marks(self) -> tuple[object, ...]:
        """By what rows are known, and what they show while they are tasks: what was noted of others says nothing then.

        As the definition gives it, to compare two of one table.
        """
        return self.key, self.sequence, self.status, self.taken, self.failed, self.delete

    def _check_without_status(self) -> None:
        if self.statuses:
            name, value = next(iter(self.statuses.items()))
            raise self._refusal(f"{name}={value!r} is a value of a status column. Name it: status='STATUS'")
        if self.sequence is None or self.delete:
            return
        if self.order_by:
            raise self._refusal(
                f"order_by={self.order_by!r} has no effect: the rows of a sequence without a status are taken by their "
                "numbers. Leave it out"
            )
        if self.error is not None:
            raise self._refusal(
                f"error={self.error!r} cannot be written: of a sequence without a status nothing is kept by which a "
                "row is found again. Give key= instead of sequence=, or a status, or leave error= out"
            )

    def _check_status(self, status: str) -> None:
        given = self.statuses
        if self.delete and self.done is not None:
            raise self._refusal("delete=True deletes a row that is done, which then has no status. Leave done= out")
        for name in ("ready", "failed") if self.delete else ("ready", "done", "failed"):
            if name not in given:
                raise self._refusal(f"status={status!r} needs {name}= as well: what the column holds then")
        if len({type(value) for value in given.values()}) > 1:
            raise self._refusal(f"the statuses must be all texts or all numbers, not {list(given.values())!r:.100}")
        for one, other in product(("ready", "taken"), ("taken", "done", "failed")):
            if one != other and one in given and given[one] == given.get(other):
                raise self._refusal(
                    f"{one}= and {other}= are both {given[one]!r}: rows that are {one} could not be told from those "
                    f"that are {other}. Give them different values"
                )

    def _refusal(self, why: str) -> TaskDefinitionError:
        return TaskDefinitionError(f"poll_table({self.table!r}): {why}.")
