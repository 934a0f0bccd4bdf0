"""Brings the definition of ``on_change`` together with the description of its table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fbtasks.errors import TaskDefinitionError
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.store import texts
from fbtasks.features.sources.store.tables import BLOB, Catalog, Column, Table


class Capture(NamedTuple):
    """A definition whose names are those of columns that there are, and that can be recorded."""

    source: ChangeSource
    table: Table
    key: tuple[Column, ...]
    update: tuple[Column, ...]
    """An UPDATE is recorded when it changes one of these; when there is none, any UPDATE that the source wants."""
    others: tuple[Column, ...]
    """The columns that are recorded beside the key."""
    when: str | None = None
    """The condition of the source, with its texts in the character set of what they are compared with."""


def describe(catalog: Catalog, source: ChangeSource) -> Capture:
    """Returns what is to be recorded for *source*, of its table as it is now. Raises as :func:`resolve` does."""
    return resolve(source, catalog.describe(source.table))


def resolve(source: ChangeSource, table: Table) -> Capture:
    """Returns what is to be recorded of *table* for *source*.

    Raises :class:`TaskDefinitionError` for a column that the table does not have, or whose values cannot be recorded;
    for a table without a primary key when *source* names no key; and for a character set that is not known.
    """
    key = _key(source, table)
    update = _columns(() if isinstance(source.update, bool) else source.update, table)
    chosen = dict.fromkeys((*update, *_columns(source.columns, table)))
    others = tuple(column for column in chosen if column not in key)
    for column in (*key, *others):
        check_column(column, source.charset, table, "on_change")
    when = texts.condition(source.when, source.charset, table, "on_change")
    return Capture(source, table, key, update, others, when)


def _key(source: ChangeSource, table: Table) -> tuple[Column, ...]:
    if source.key is not None:
        return _columns(source.key, table)
    if not table.primary_key:
        raise TaskDefinitionError(
            f"the table {table.name!r} has no primary key. Name the columns that tell its rows apart: "
            'on_change(..., key="COLUMN") or key=("COLUMN", "COLUMN").'
        )
    return _columns(table.primary_key, table)


def _columns(names: Iterable[str], table: Table) -> tuple[Column, ...]:
    return tuple(dict.fromkeys(table.column(name) for name in names))


def check_column(column: Column, charset: str | None, table: Table, where: str) -> None:
    """Raises :class:`TaskDefinitionError` unless the values of *column* can be recorded.

    *charset* is the one that the definition, a *where* such as ``on_change``, names for CHARACTER SET NONE.
    """
    what = f"the column {column.name!r} of {table.name!r}"
    if column.array:
        raise TaskDefinitionError(f"{what} is an array, which is not recorded. Leave it out, and read it in the task.")
    if column.type == BLOB:
        raise TaskDefinitionError(f"{what} is a BLOB, which is not recorded. Leave it out, and read it in the task.")
    texts.charset_of(column, charset, table, where)
