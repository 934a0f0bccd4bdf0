"""SQL expressions for the values of a row as JSON.

Each makes bytes (CHARACTER SET OCTETS), so that no value is converted to the character set of another, and texts are in
UTF-8. Control characters in texts stay as they are, which Python's json reads with ``strict=False``. What JSON does not
have is written with the marks of kombu's JSON: ``{"__type__": "decimal", "__value__": "1.20"}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from fbtasks.features.sources.store import tables
from fbtasks.features.sources.store.tables import Column, quoted

_ARGUMENTS: Final = 200
"""What one call of a function is given: the engine takes up to 255 arguments."""
LONGEST: Final = 32_765
"""The most bytes of a VARCHAR."""
_MOST_CHARACTERS: Final = 8_191
"""The most characters of a VARCHAR in UTF8."""
_MOST_ENCODED: Final = 24_000
"""Bytes of which BASE64_ENCODE makes a VARCHAR; of more it makes a BLOB."""
_LINE: Final = "\n          || "
"""What stands before a text: a name, mostly, so that each value has a line."""
_SHORT: Final = 255
"""The most bytes of a value that is counted with all of them, whatever is in it."""
_MARK: Final = len('{"__type__":"datetime","__value__":""}')


class Value(NamedTuple):
    """The JSON of a column's value: ``null`` where it is NULL."""

    sql: str
    """A VARCHAR, which is right as long as the value has no more than :attr:`size` says of it."""
    most: int
    """The most bytes that it can have."""
    size: str = ""
    """The most bytes that this value can have, in SQL; empty where :attr:`most` says enough."""
    blob: str = ""
    """The same as a BLOB, for values whose JSON may be longer than a VARCHAR."""


def value(column: Column, row: str, charset: str | None = None) -> Value:
    """Returns the JSON of *column* in *row*, which is ``old`` or ``new``.

    *charset* is the character set of what is in columns of CHARACTER SET NONE. A CHAR comes without the blanks at its
    end, which SQL does not tell from none; BINARY(n) comes as it is.
    """
    field = f"{row}.{quoted(column.name)}"
    if column.is_bytes:
        return _bytes(column, field)
    if column.is_text:
        return _text(column, field, charset)
    return _scalar(column, field)


def unconverted(column: Column, row: str) -> Value:
    """Returns the JSON of *column* in *row* without converting it, so that it cannot fail.

    A text that is not in UTF-8 is bytes, and a computed value, of which the table holds nothing, is left out.
    """
    if column.computed:
        return Value(literal("null"), 4)
    if column.is_text and column.charset not in ("UTF8", "ASCII"):
        return _bytes(column._replace(length=column.length * column.width), f"{row}.{quoted(column.name)}")
    return value(column, row)


def record(columns: Iterable[Column], values: Iterable[Value]) -> list[str | Value]:
    """Returns the pieces of a JSON object of *values* by the names of *columns*."""
    pieces: list[str | Value] = []
    for column, each in zip(columns, values, strict=True):
        pieces += [f"{',' if pieces else '{'}{name(column.name)}:", each]
    return [*pieces, "}"] if pieces else ["{}"]


def name(text: str) -> str:
    """*text* as a JSON string in ASCII: it is the same whatever the character set of the connection."""
    import json

    return json.dumps(text)


def literal(text: str) -> str:
    """*text*, which is ASCII, as bytes in SQL."""
    return "_OCTETS '" + text.replace("'", "''") + "'"


def concatenated(pieces: Sequence[str | Value]) -> str:
    """The SQL of *pieces* behind each other as a VARCHAR; texts are what they stand for, values their SQL."""
    found = ""
    for each in _merged(pieces):
        if isinstance(each, str):
            found += f"{_LINE if found else ''}{literal(each)}"
        else:
            found += f"{' || ' if found else ''}{each.sql}"
    return found


def appended(pieces: Sequence[str | Value]) -> str:
    """The SQL of *pieces* behind each other as a BLOB."""
    parts = [literal(each) if isinstance(each, str) else each.blob or each.sql for each in _merged(pieces)]
    found = "NULL"
    for begin in range(0, len(parts), _ARGUMENTS):
        found = f"BLOB_APPEND({found}, {', '.join(parts[begin : begin + _ARGUMENTS])})"
    return found


def most(pieces: Iterable[str | Value]) -> int:
    """The most bytes that *pieces* can have."""
    return sum(len(each) if isinstance(each, str) else each.most for each in pieces)


def size(pieces: Iterable[str | Value]) -> str:
    """The most bytes that *pieces* can have, in SQL, by what is in the longer ones."""
    pieces = list(pieces)
    fixed = most(each for each in pieces if isinstance(each, str) or not each.size)
    return " + ".join([str(fixed), *(each.size for each in pieces if isinstance(each, Value) and each.size)])


def escaped(field: str, length: int) -> str:
    """*field*, at most *length* bytes of UTF-8, as what stands between the quotes of a JSON string."""
    return escaping(f"CAST({field} AS VARCHAR({min(length, LONGEST)}) CHARACTER SET OCTETS)")


def escaping(text: str) -> str:
    """*text*, bytes or a BLOB, with a backslash before each backslash and quote."""
    return rf"""REPLACE(REPLACE({text}, _ASCII '\', _ASCII '\\'), _ASCII '"', _ASCII '\"')"""


def _merged(pieces: Iterable[str | Value]) -> list[str | Value]:
    """*pieces* with texts that follow each other as one."""
    found: list[str | Value] = []
    for each in pieces:
        if isinstance(each, str) and found and isinstance(found[-1], str):
            found[-1] += each
        else:
            found.append(each)
    return found


def _or_null(sql: str) -> str:
    """*sql*, or ``null`` where it is NULL; also for columns that are NOT NULL today."""
    return f"COALESCE({sql}, {literal('null')})"


def _marked(kind: str, sql: str) -> str:
    start = literal(f'{{"__type__":"{kind}","__value__":"')
    return _or_null(f"{start} || {sql} || {literal(chr(34) + '}')}")


def _scalar(column: Column, field: str) -> Value:
    kind = column.type
    if column.is_integer:
        return Value(_or_null(f"CAST({field} AS VARCHAR(20))"), 20)
    if kind in (tables.FLOAT, tables.DOUBLE):
        # A DECFLOAT is made with 17 digits, of which a float comes back as it was; a VARCHAR with 16. Where all of them
        # stand before the point there is none, and it would be read as a whole number.
        digits = f"REPLACE(CAST(CAST({field} AS DECFLOAT(34)) AS VARCHAR(42)), '-NaN', 'NaN')"
        point = f"IIF(ABS({field}) >= 1e16 AND ABS({field}) < 1e17, CAST('.0' AS VARCHAR(2)), '')"
        return Value(_or_null(f"{digits} || {point}"), 44)
    if kind == tables.BOOLEAN:
        return Value(_or_null(f"LOWER(CAST({field} AS VARCHAR(5)))"), 5)
    mark, sql, most = _as_text(kind, field)
    return Value(_marked(mark, sql), _MARK + most)


def _as_text(kind: int, field: str) -> tuple[str, str, int]:
    """Returns kombu's name for a type that JSON does not have, the value as a text, and the most bytes of that."""
    if kind in (tables.TIME_TZ, tables.TIMESTAMP_TZ):
        name, most = ("time", 13) if kind == tables.TIME_TZ else ("datetime", 24)
        return name, f"LEFT(CAST({field} AS VARCHAR(60)), {most}) || {_offset(field)}", most + 6
    name, most = {tables.DATE: ("date", 10), tables.TIME: ("time", 13), tables.TIMESTAMP: ("datetime", 24)}.get(
        kind, ("decimal", 48)
    )
    return name, f"CAST({field} AS VARCHAR({most}))", most


def _offset(field: str) -> str:
    """The distance from UTC that *field* has in its own time zone, as ``+02:00``."""
    hour, minute = f"EXTRACT(TIMEZONE_HOUR FROM {field})", f"EXTRACT(TIMEZONE_MINUTE FROM {field})"
    return (
        f"IIF({hour} < 0 OR {minute} < 0, '-', '+') || LPAD(ABS({hour}), 2, '0') || ':' || LPAD(ABS({minute}), 2, '0')"
    )


def _text(column: Column, field: str, charset: str | None) -> Value:
    found = f"TRIM(TRAILING FROM {field})" if column.type == tables.CHAR else field
    octets, wide = f"COALESCE(OCTET_LENGTH({found}), 0)", found
    written_in = column.charset
    if written_in == "NONE":
        written_in = charset
        wide = f"CAST({found} AS BLOB SUB_TYPE TEXT CHARACTER SET {charset})"
        found = _cast(found, column, written_in)
    if written_in not in ("UTF8", "ASCII"):
        found = _cast(found, column, "UTF8")
    quote = literal('"')
    sql = _or_null(f"{quote} || {escaped(found, 4 * column.length)} || {quote}")
    growth = _growth(column)
    longest = column.length * (4 if column.width > 1 else growth) + 2
    if longest <= _SHORT:
        return Value(sql, longest)
    blob = escaping(f"CAST({wide} AS BLOB SUB_TYPE TEXT CHARACTER SET UTF8) COLLATE UTF8")
    return Value(sql, longest, f"{octets} * {growth} + 4", _or_null(f"{quote} || {blob} || {quote}"))


def _cast(found: str, column: Column, charset: str | None) -> str:
    return f"CAST({found} AS VARCHAR({min(column.length, _MOST_CHARACTERS)}) CHARACTER SET {charset})"


def _growth(column: Column) -> int:
    """How many bytes of JSON a byte of a text may become: two where it is escaped, three where it is converted.

    Four where a VARCHAR of UTF8 has no room for all characters of the column: so what is within a VARCHAR's bytes is
    within its characters.
    """
    if column.charset in ("UTF8", "ASCII"):
        return 2
    return 3 if column.length <= _MOST_CHARACTERS else 4


def _bytes(column: Column, field: str) -> Value:
    longest = _MARK + 4 * (column.length // 3 + 1)
    found = field if column.length <= _MOST_ENCODED else f"CAST({field} AS VARBINARY({_MOST_ENCODED}))"
    sql = _marked("base64", f"BASE64_ENCODE({found})")
    if longest <= _SHORT:
        return Value(sql, longest)
    blob = _marked("base64", f"BASE64_ENCODE(CAST({field} AS BLOB SUB_TYPE BINARY))")
    return Value(sql, longest, f"COALESCE(OCTET_LENGTH({field}), 0) * 2 + {_MARK + 4}", blob)
