"""Cuts a script into statements: as isql does, and also without ``SET TERM``.

A statement ends with ``;`` outside of quotes, comments and, in EXECUTE BLOCK and in the definition of a procedure,
function, trigger or package, behind the END of its body alone. ``SET TERM`` is obeyed as in isql: with another
terminator nothing but that one ends a statement.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_TOKEN: Final = re.compile(
    r"(?P<blank>\s+|--[^\n]*|/\*(?:.*?\*/|.*))"
    r"|(?P<quoted>q'(?:\(.*?\)|\[.*?\]|\{.*?\}|<.*?>|(?P<end>[^(\[{<]).*?(?P=end))'|'[^']*'?|\"[^\"]*\"?)"
    r"|(?P<word>[^\W\d][\w$]*)|.",
    re.DOTALL | re.IGNORECASE,
)
"""Two quotes inside of a quoted text are its end and the beginning of another one, which comes to the same."""
_HAS_BODY: Final = re.compile(
    r"EXECUTE BLOCK|(CREATE|CREATE OR ALTER|ALTER|RECREATE) (PROCEDURE|FUNCTION|TRIGGER|PACKAGE)\b"
)
_HEAD: Final = 4
"""Words at the beginning of a statement that tell whether it has a body."""
_SET_TERM: Final = re.compile(r"SET\s+TERM(?:INATOR)?\s+(\S+)", re.IGNORECASE)


def statements(script: str) -> Iterator[str]:
    """Returns the statements of *script*, without their terminators; the last one needs none."""
    terminator, at = ";", 0
    while at < len(script):
        begin, end = _bounds(script, at, terminator)
        statement, at = script[begin:end].strip(), end + len(terminator)
        if change := _SET_TERM.fullmatch(statement):
            terminator = change[1]
        elif statement:
            yield statement


def _bounds(script: str, at: int, terminator: str) -> tuple[int, int]:
    """Returns where the statement begins that is next behind *at* and the comments there, and where it ends."""
    begin, head, last, parentheses, blocks, in_body = at, list[str](), "", 0, 0, False
    while at < len(script):
        if script.startswith(terminator, at):
            if terminator != ";" or not in_body or (blocks <= 0 and last == "END"):
                return begin, at
            last, at = terminator, at + len(terminator)
            continue
        match = _TOKEN.match(script, at)
        assert match is not None  # any character is one
        at = match.end()
        if match["blank"]:
            begin = begin if last else at
            continue
        part = match[0].upper()
        if match["word"]:
            head = [*head, part][:_HEAD]
            if not in_body and part in ("BEGIN", "DECLARE"):
                in_body = last == "AS" and parentheses == 0 and _HAS_BODY.match(" ".join(head)) is not None
            if in_body:
                blocks += (part in ("BEGIN", "CASE")) - (part == "END")
        else:
            parentheses += (part == "(") - (part == ")")
        last = part
    return begin, at
