"""A user's table, as the system tables describe it."""

from __future__ import annotations

from collections.abc import Collection
from functools import cache, cached_property
from typing import Final, NamedTuple

from fbtasks.database.schema import ours, steps
from fbtasks.errors import TaskDefinitionError
from fbtasks.firebird.session import Session
from fbtasks.system.checks import did_you_mean

# Numbers of RDB$FIELDS.RDB$FIELD_TYPE.
SMALLINT, INTEGER, BIGINT, INT128 = 7, 8, 16, 26
FLOAT, DOUBLE = 10, 27
DECFLOAT_16, DECFLOAT_34 = 24, 25
DATE, TIME, TIMESTAMP, TIME_TZ, TIMESTAMP_TZ = 12, 13, 35, 28, 29
CHAR, VARCHAR = 14, 37
BOOLEAN = 23
BLOB = 261

_LONGEST: Final = 63
"""Characters of a name in the system tables."""
_VIEW: Final = 1
_EXTERNAL: Final = 2
_REFUSED: Final = {
    _VIEW: "a view, which has no changes of its own. Name the table behind it",
    _EXTERNAL: "an external table, for which the engine calls no triggers. Name a table of the database",
    3: "a virtual table of the engine's. Name a table of your own",
    4: "a temporary table, whose rows only their own connection sees. Name a permanent table",
    5: "a temporary table, whose rows only their own transaction sees. Name a permanent table",
}
"""What RDB$RELATION_TYPE says of relations whose changes cannot be recorded."""


class Column(NamedTuple):
    """A column of a table."""

    name: str
    type: int
    """One of the numbers above."""
    scale: int = 0
    """Below 0: a NUMERIC or DECIMAL with that many digits behind the point."""
    length: int = 0
    """Of texts the characters, of anything else the bytes."""
    charset: str | None = None
    width: int = 1
    """The most bytes of a character in that character set."""
    array: bool = False
    nullable: bool = True
    computed: bool = False

    @property
    def is_text(self) -> bool:
        """Whether it holds characters, or bytes that stand for some in no known character set."""
        return self.type in (CHAR, VARCHAR) and not self.is_bytes

    @property
    def is_bytes(self) -> bool:
        """Whether it holds plain bytes."""
        return self.type in (CHAR, VARCHAR) and self.charset == "OCTETS"

    @property
    def is_integer(self) -> bool:
        """Whether it holds whole numbers of 64 bits at most."""
        return self.type in (SMALLINT, INTEGER, BIGINT) and self.scale == 0


class Table(NamedTuple):
    """A table, whose changes can be recorded."""

    name: str
    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    """The names of its columns; empty when there is none."""
    charsets: frozenset[str]
    """The character sets that the database knows."""

    def column(self, name: str) -> Column:
        """Returns the column that *name* means. Raises :class:`TaskDefinitionError` when there is none."""
        known = {column.name: column for column in self.columns}
        found = meant(name, known)
        if found is None:
            hint = did_you_mean(name.upper(), known) or did_you_mean(name, known)
            raise TaskDefinitionError(f"the table {self.name!r} has no column {name!r}.{hint}")
        return known[found]


def meant(name: str, known: Collection[str]) -> str | None:
    """Returns the one of *known* that *name* means: as it is, without its double quotes, or in capitals.

    None where it means none of them. Only ASCII letters are put in capitals, as the engine does it.
    """
    return next((each for each in _spellings(name) if each in known), None)


def _spellings(name: str) -> list[str]:
    """What *name* may be in the system tables, in the order in which these are tried."""
    if len(name) > 2 and name[0] == name[-1] == '"':
        return [name, name[1:-1].replace('""', '"')]
    return [name, "".join(letter.upper() if letter.isascii() else letter for letter in name)]


def quoted(name: str) -> str:
    """*name* as an identifier of SQL, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


class Catalog:
    """Describes the tables of a database. Keeps what it has read beside them: a command makes one."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def describe(self, name: str, refused: str = "changes of {!r} cannot be recorded") -> Table:
        """Returns the table that *name* means, as it is now. *refused* is for the message of an error.

        Raises :class:`TaskDefinitionError` where there is none, and where its changes cannot be recorded: views,
        external, temporary and system tables, and the queue's own.
        """
        spellings = (each if len(each) <= _LONGEST else "" for each in _spellings(name))
        relations = {each: rest for each, *rest in self._session.read("source_relations", *spellings)}
        found = meant(name, relations)
        if found is None:
            hint = did_you_mean(name.upper(), self._users) or did_you_mean(name, self._users)
            raise TaskDefinitionError(f"the database has no table {name!r}.{hint or ' Create it first.'}")
        kind, system = relations[found]
        refusal = "a system table. Name a table of your own" if system else _REFUSED.get(kind)
        if found in own_tables():
            refusal = "one of the tables of fbtasks itself. Name a table of your own"
        if refusal:
            raise TaskDefinitionError(f"{refused.format(found)}: it is {refusal}.")
        return Table(
            found,
            tuple(Column(*row) for row in self._session.read("source_columns", found)),
            tuple(row[0] for row in self._session.read("source_primary_key", found)),
            self._charsets,
        )

    @cached_property
    def _users(self) -> list[str]:
        """All tables and views of the application, for a hint."""
        return [name for name, _ in self._session.read("sql_tables") if name not in own_tables()]

    @cached_property
    def _charsets(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._session.read("source_charsets"))


@cache
def own_tables() -> frozenset[str]:
    """The names of the tables that the migrations of fbtasks make."""
    made = (each for part in ours() for step in steps(part) for each in step.made)
    return frozenset(each.name for each in made if each.kind == "TABLE")
