"""Cuts what is typed, or read from a script, into statements: as isql does, and also without ``SET TERM``.

A statement ends with ``;`` outside of quotes, comments and, in EXECUTE BLOCK and in the definition of a procedure,
function, trigger or package, behind the END of its body alone. ``SET TERM`` is obeyed as in isql: with another
terminator nothing but that one ends a statement.
"""

from __future__ import annotations

import re
from typing import Final

_WORD: Final = re.compile(r"[^\W\d][\w$]*")
_HAS_BODY: Final = re.compile(
    r"EXECUTE BLOCK|(CREATE|CREATE OR ALTER|ALTER|RECREATE) (PROCEDURE|FUNCTION|TRIGGER|PACKAGE)\b"
)
_HEAD: Final = 4
"""Words at the beginning of a statement that tell whether it has a body."""
_SET_TERM: Final = re.compile(r"SET\s+TERM(?:INATOR)?\s+(\S+)", re.IGNORECASE)
_BRACKETS: Final = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Splitter:
    """Takes lines and returns statements, as soon as they are complete and without their terminators."""

    def __init__(self) -> None:
        self._terminator = ";"
        self.clear()

    def clear(self) -> None:
        """Forgets what has been begun."""
        self._text = ""
        self._at = 0
        self._begin()

    def _begin(self) -> None:
        """Behind a terminator."""
        self._head: list[str] = []
        self._any = False
        self._parentheses = 0
        self._last = ""
        self._in_body = False
        self._blocks = 0

    @property
    def pending(self) -> bool:
        """Whether a statement, or a comment, has been begun and goes on in the next line."""
        return bool(self._text.strip())

    def feed(self, line: str) -> list[str]:
        """Takes the next *line*. Returns the statements that end in it."""
        self._text += line if line.endswith("\n") else f"{line}\n"
        found = []
        while self._advance():
            end = self._at - len(self._terminator)
            statement, wanted = self._text[:end].strip(), self._any
            self._text, self._at = self._text[self._at :], 0
            self._begin()
            if change := _SET_TERM.fullmatch(statement):
                self._terminator = change[1]
            elif wanted:
                found.append(statement)
        if not self._any and self._at == len(self._text):  # nothing but comments so far
            self.clear()
        return found

    def rest(self) -> str | None:
        """Returns what has been begun when the input ends, as a statement of its own; None: nothing. Clears it."""
        statement, wanted = self._text.strip(), self._any or self._at < len(self._text)
        self.clear()
        return statement if wanted and statement else None

    def _advance(self) -> bool:
        """Reads on to the next terminator. Returns False when it is not there yet."""
        while self._at < len(self._text):
            if self._text[self._at].isspace():
                self._at += 1
            elif self._text.startswith(self._terminator, self._at):
                self._at += len(self._terminator)
                if self._ends():
                    return True
                self._last = self._terminator
            elif (end := self._comment_end()) is not None:
                if end < 0:
                    return False
                self._at = end
            elif not self._token():
                return False
        return False

    def _ends(self) -> bool:
        """Whether the terminator that was just read ends the statement, and is not one inside its body."""
        if self._terminator != ";" or not self._in_body:
            return True
        return self._blocks <= 0 and self._last == "END"

    def _comment_end(self) -> int | None:
        """Returns where the comment that begins here ends: -1: not read yet; None: no comment begins here."""
        text, at = self._text, self._at
        if text.startswith("--", at):
            return text.find("\n", at) + 1 or -1
        if text.startswith("/*", at):
            return end + 2 if (end := text.find("*/", at + 2)) >= 0 else -1
        return None

    def _token(self) -> bool:
        """Reads one word, quoted text or other character. Returns False when a quoted text has no end yet."""
        text, at = self._text, self._at
        character = text[at]
        if character in "'\"":
            end = self._quote_end(character, at + 1)
            what = "quoted"
        elif word := _WORD.match(text, at):
            what, end = word[0].upper(), word.end()
            if what == "Q" and text.startswith("'", end):  # q'{...}': quotes inside need not be doubled
                closing = _BRACKETS.get(text[end + 1], text[end + 1])
                place = text.find(f"{closing}'", end + 2)
                end = place + 2 if place >= 0 else -1
                what = "quoted"
            else:
                self._note(what)
        else:
            what, end = character, at + 1
            self._parentheses += (character == "(") - (character == ")")
        self._any = True
        if end < 0:
            return False
        self._last = what
        self._at = end
        return True

    def _quote_end(self, quote: str, at: int) -> int:
        """Returns the place behind the quoted text that begins at *at*; -1 when its end has not been read yet."""
        while (end := self._text.find(quote, at)) >= 0:
            if not self._text.startswith(quote * 2, end):
                return end + 1
            at = end + 2
        return -1

    def _note(self, word: str) -> None:
        """Notes what *word* means for the end of the statement."""
        if len(self._head) < _HEAD:
            self._head.append(word)
        if not self._in_body:
            begins = word in ("BEGIN", "DECLARE") and self._last == "AS" and self._parentheses == 0
            self._in_body = begins and _HAS_BODY.match(" ".join(self._head)) is not None
        if self._in_body and word in ("BEGIN", "CASE"):
            self._blocks += 1
        elif self._in_body and word == "END":
            self._blocks -= 1
