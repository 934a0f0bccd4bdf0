"""The definition of ``@app.on_change``. Needs no database."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from fbtasks.errors import ConfigurationError, TaskDefinitionError
from fbtasks.features.sources.kinds import changes
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import declare
from fbtasks.tasks.declare import Given, given

Kind = Literal["change", "event", "poll"]
Order = Literal["key", "total"]
Names = str | Iterable[str]
order_check: Final = checks.one_of(
    {"key": "the changes of one key in their order", "total": "all in one order", None: "at once, in any order"}
)
"""In which order what comes from a source is handled."""
_CHARSET: Final = re.compile(r"[A-Za-z][A-Za-z0-9_$]*")
_EXAMPLE: Final = "column names"
SILENT_BYTES: Final = 255
"""The most bytes of the names of all tasks that are silenced in a transaction, in UTF-8."""


SILENT_RULE: Final = "where transactions are silenced, a comma parts names, '*' stands for all."


def check_silent_name(name: str) -> None:
    """Raises :class:`TaskDefinitionError` for the name of a task that a transaction could not be silenced for."""
    size = len(name.encode())
    if size > SILENT_BYTES:
        raise TaskDefinitionError(
            f"the task name {checks.shown(name)} takes {size} bytes in UTF-8, and a task of on_change has room for "
            f"{SILENT_BYTES}: transactions that are silenced note it. Give a shorter name=."
        )
    if not may_be_silent(name):
        raise TaskDefinitionError(
            f"the task name {checks.shown(name)} cannot be that of a task of on_change: {SILENT_RULE} Give another "
            "name=."
        )


def may_be_silent(name: str) -> bool:
    """Returns True when a transaction can be silenced for one task of that name."""
    return "," not in name and name != "*"


def column_names(what: str, value: object) -> tuple[str, ...]:
    """Names of columns, each once; a single text is one name."""
    found = (value,) if isinstance(value, str) and value else checks.names(what, value, _EXAMPLE)
    return tuple(dict.fromkeys(found))


def some_columns(what: str, value: object) -> tuple[str, ...]:
    """Names of columns, one at least."""
    found = column_names(what, value)
    if not found:
        raise ConfigurationError(f"{what} {checks.shown(value)} names no column. Name one at least, or leave it out.")
    return found


def _update(what: str, value: object) -> bool | tuple[str, ...]:
    if isinstance(value, bool):
        return value
    if value is None or isinstance(value, int | float):
        raise ConfigurationError(f"{what} {checks.shown(value)} must be True, False or a list of {_EXAMPLE}.")
    return some_columns(what, value)


def condition(what: str, value: object) -> str:
    """A condition in SQL."""
    found = checks.text(what, value)
    if not found.strip():
        raise ConfigurationError(f"{what} {checks.shown(value)} is blank. Give a condition in SQL, or leave it out.")
    return found


def charset_name(what: str, value: object) -> str:
    """The character set of texts whose columns name none."""
    found = checks.text(what, value)
    if not _CHARSET.fullmatch(found) or found.upper() in ("NONE", "OCTETS", "BINARY"):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must be the character set in which the texts of CHARACTER SET NONE were "
            "written, such as 'WIN1252'."
        )
    return found.upper()


@dataclass(frozen=True, kw_only=True)
class ChangeSource:
    """The changes of one table that a task is called for.

    The names are those that the definition gives: whether the table has them is seen when the trigger is made
    (:func:`fbtasks.features.sources.store.capture.resolve`). Raises :class:`ConfigurationError` for an option that
    cannot be what it is, and :class:`TaskDefinitionError` for a definition that can never call its task.
    """

    kind: ClassVar[Kind] = "change"
    table: Annotated[str, checks.text]
    insert: Annotated[bool, checks.flag] = False
    update: Annotated[Given[bool | Names, bool | tuple[str, ...]], _update] = given(False)
    """True: every UPDATE; names of columns: an UPDATE that changes one of them."""
    delete: Annotated[bool, checks.flag] = False
    when: Annotated[str | None, optional(condition)] = None
    """A condition in SQL on ``old.`` and ``new.``; those that a change does not have are NULL."""
    columns: Annotated[Given[Names, tuple[str, ...]], column_names] = given(())
    """Columns that are recorded beside the key and those of *update*."""
    key: Annotated[Given[Names | None, tuple[str, ...] | None], optional(some_columns)] = given(None)
    """None: the primary key."""
    order: Annotated[Order | None, order_check] = "key"
    always: Annotated[bool, checks.flag] = False
    """Whether changes are recorded in transactions that are silenced, too."""
    charset: Annotated[str | None, optional(charset_name)] = None
    """The character set of what is in columns of CHARACTER SET NONE."""

    def __post_init__(self) -> None:
        declare.check_fields(self)
        if not (self.insert or self.update or self.delete):
            raise TaskDefinitionError(
                f"on_change({self.table!r}) listens to nothing. Give insert=True, update=True, "
                'update=("COLUMN", ...) or delete=True, or several of them.'
            )

    @property
    def name(self) -> str:
        """The table."""
        return self.table

    def __str__(self) -> str:
        return f"changes of the table {self.table!r}"

    def read(self, members: Any) -> changes.Change:
        """Returns the change of a JSON object of the log. Raises :class:`SerializationError` when it is none."""
        return changes.read(members)
