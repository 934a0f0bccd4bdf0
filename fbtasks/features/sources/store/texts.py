"""Texts of definitions as SQL, in the character sets of the columns that they go with.

A column of CHARACTER SET NONE is compared byte by byte, so a text for it is written in the character set that the
definition names by ``charset=``. No database is asked.
"""

from __future__ import annotations

import re
from typing import Final

from fbtasks.errors import TaskDefinitionError
from fbtasks.features.sources.store.tables import Column, Table, meant, quoted
from fbtasks.firebird.driver.charsets import encoded
from fbtasks.system.checks import did_you_mean

TOKEN: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/"
    r"|[qQ]'(?:\(.*?\)|\[.*?\]|\{.*?\}|<.*?>|([^(\[{<]).*?\1)'"
    r"|'(?:[^']|'')*'"
    r'|"(?:[^"]|"")*"'
    r"|\w+|/\*|.",
    re.DOTALL,
)
"""Comments, texts, quoted names and words, each whole; else one character, or the beginning of an endless comment."""


def charset_of(column: Column, charset: str | None, table: Table, where: str) -> str | None:
    """Returns the character set in which the texts of *column* are written; None for one that holds no texts.

    *charset* is the one that the definition, a *where* such as ``on_change``, names for CHARACTER SET NONE. Raises
    :class:`TaskDefinitionError` when it is needed and missing, or when the database does not know it.
    """
    if column.charset != "NONE":
        return column.charset
    if charset is None:
        raise TaskDefinitionError(
            f"the column {column.name!r} of {table.name!r} has CHARACTER SET NONE, which does not say what its texts "
            f"are written in. Say it: {where}(..., charset='WIN1252'), for example."
        )
    if charset not in table.charsets:
        raise TaskDefinitionError(
            f"the database knows no character set {charset!r}.{did_you_mean(charset, table.charsets)}"
        )
    return charset


def constant(text: str) -> str:
    """*text* in SQL, compared byte by byte or by the collation of what it is compared with."""
    plain = text.replace("'", "''")
    return f"_ASCII '{plain}'" if text.isascii() else f"_UTF8 x'{text.encode().hex()}' COLLATE UTF8"


def constant_for(text: str, column: Column, charset: str | None, table: Table) -> str:
    """*text* in SQL as a value of *column*, to be compared by its collation. *charset* is what :func:`charset_of` says.

    A text has the default collation of its character set otherwise, and the engine compares by that one where its
    number is higher than that of the column's.
    """
    if text.isascii():
        return constant(text)
    written = f"_UTF8 x'{text.encode().hex()}'"
    if column.charset == "NONE":
        assert charset is not None
        written = f"_OCTETS x'{(encoded(text, charset) or b'').hex()}'"
    return f"CAST({written} AS TYPE OF COLUMN {quoted(table.name)}.{quoted(column.name)})"


def condition(when: str | None, charset: str | None, table: Table, where: str) -> str | None:
    """The condition *when* with its texts in *charset*, if it names a column of CHARACTER SET NONE.

    Those stay as they are that are ASCII, that say their character set themselves (``_UTF8 'x'``), and that have
    letters which *charset* does not have. Raises :class:`TaskDefinitionError` like :func:`charset_of`.
    """
    if when is None or when.isascii():
        return when
    tokens = [match[0] for match in TOKEN.finditer(when)]
    columns = {column.name: column for column in table.columns if column.charset == "NONE"}
    named = next((found for found in (meant(token, columns) for token in tokens) if found is not None), None)
    texts = [at for at, token in enumerate(tokens) if _is_text(token) and not _is_introduced(tokens, at)]
    if named is None or all(tokens[at].isascii() for at in texts):
        return when
    written_in = charset_of(columns[named], charset, table, where)
    assert written_in is not None
    for at in texts:
        if not tokens[at].isascii() and (data := encoded(_value(tokens[at]), written_in)) is not None:
            tokens[at] = f"_{written_in} x'{data.hex()}'"
    return "".join(tokens)


def _is_text(token: str) -> bool:
    return token[0] == "'" or (token[:2] in ("q'", "Q'") and len(token) > 2)


def _is_introduced(tokens: list[str], at: int) -> bool:
    """Whether the text at *at* has the name of its character set before it, or is bytes in hexadecimal digits."""
    before = next(
        (token for token in reversed(tokens[:at]) if not token.isspace() and token[:2] not in ("--", "/*")), ""
    )
    return bool(re.fullmatch(r"_\w+|[xX]", before))


def _value(token: str) -> str:
    return token[1:-1].replace("''", "'") if token[0] == "'" else token[3:-2]
