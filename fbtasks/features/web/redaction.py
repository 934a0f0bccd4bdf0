"""Hides secrets in names and values, and in the texts that tasks write.

One rule: a name is secret when it has one of some words in it, whatever its case and its separators. In a text, all
that follows such a name is hidden, to the end of its line or of its quoted value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

from fbtasks.errors import ConfigurationError

REDACTED: Final = (
    "password", "passwd", "passphrase", "pwd", "secret", "token", "api_key", "access_key", "private_key",
    "authorization", "credential", "cookie",
)  # fmt: skip
"""Words in the names of arguments whose values are not shown."""
MARK: Final = "(not shown)"
LARGEST: Final = 1 << 20
"""Bytes of a payload, and characters of JSON in a text, that are read to be shown."""
DEEPEST: Final = 300
"""Lists and dicts in each other that are shown: more than Python can enqueue, and fewer than it can follow."""
TOO_DEEP: Final = "(nested too deep to be shown)"
_APART: Final = re.compile(r"[\W_]+")
# All quantifiers are possessive: what was read once is not read again, so that no text takes long.
_ADDRESS: Final = re.compile(r"(://[^\s/:@]*+:)[^\s/]*(?=@)")
_ASSIGNED: Final = re.compile(r"([\w.-]*+)\\*+[\"'`]?+[^\S\n]*+[:=]++>?+[^\S\n]*+[|>]?+\s*+")
"""The rest of a name, the end of its quote, and an operator. The value may be on the next line."""
_OPENED: Final = re.compile(r"[bBfFrRuU]{0,2}+(\\*+)(\"\"\"|'''|[\"'`])")
_QUOTE: Final = {quote: re.compile(rf"(?<!\\)(\\*+){quote}") for quote in ('"', "'", "`", '"""', "'''")}
_CLOSED: Final = re.compile(r"[,;)\]}\n]|\Z")
"""Behind a quoted value, when it is whole."""
_BENDS: Final = re.compile(r"(?<!\\)(\\*+)([\"'`])|[\[({\])}\n]|\\\n")
"""Places at which a line may end, or go on in the next one, and quotes."""
_NOTHING: Final = re.compile(r"[\s\"'`)\]}.,;:]*+")
"""Behind a name of which nothing is said."""


class Redaction:
    """Knows names of secrets, and hides what belongs to them."""

    def __init__(self, words: Collection[str]) -> None:
        """*words* are in the names of secrets. Raises :class:`ConfigurationError` for one without a letter."""
        self._words = [_plain(word) for word in words]
        for word, plain in zip(words, self._words, strict=True):
            if not plain:
                raise ConfigurationError(f"redact holds {word!r}, which has no letter: it would be in every name.")
        self._name = re.compile("|".join(map(_spelled, words)) or r"(?!)", re.IGNORECASE)

    def is_secret(self, name: str) -> bool:
        """Returns True when *name* has one of the words."""
        plain = _plain(name)
        return any(word in plain for word in self._words)

    def text(self, text: str) -> str:
        """Returns *text* without what follows the names of secrets, and without the passwords of addresses.

        A line goes on while a bracket is open in it, and a quoted value to the end of the text if nothing closes it.
        """
        return "".join(self._pieces(_ADDRESS.sub(rf"\1{MARK}", text))) if self._words else text

    def _pieces(self, text: str) -> Iterator[str]:
        at = 0
        while (name := self._name.search(text, at)) is not None:
            begin = name.end()
            assigned = _ASSIGNED.match(text, begin)
            if _is_hidden(text, begin):
                end = begin
            elif assigned is None:
                end = _end_of_line(text, begin)
                end = begin if _NOTHING.fullmatch(text, begin, end) else end
            else:
                end = _end_of_value(text, assigned.end())
                begin = begin if assigned[1] else assigned.end()  # what is glued to the name may be a value
            yield text[at:begin]
            if begin < end:
                yield MARK
            at = end
        yield text[at:]

    def value(self, value: Any, levels: int = DEEPEST) -> Any:
        """Returns *value*, which JSON can hold, without the values of secret names in it, and in its texts."""
        if not levels:
            return TOO_DEEP
        if isinstance(value, str):
            return self._json(value, levels) or self.text(value)
        if isinstance(value, list):
            return [self.value(item, levels - 1) for item in value]
        if isinstance(value, dict):
            return {key: MARK if self.is_secret(key) else self.value(item, levels - 1) for key, item in value.items()}
        return value

    def _json(self, text: str, levels: int) -> str:
        """Returns *text*, which holds a list or a dict as JSON, without secrets. Empty: it holds none, or no secret."""
        if not self._words or len(text) > LARGEST or not text.lstrip().startswith(("{", "[")):
            return ""
        try:
            value = json.loads(text, strict=False)
        except (ValueError, RecursionError):
            return ""
        shown = self.value(value, levels - 1)
        return "" if shown == value else json.dumps(shown, ensure_ascii=False)


def _plain(name: str) -> str:
    return _APART.sub("", name).casefold()


def _spelled(word: str) -> str:
    """Returns a pattern for *word* in a text: ``api_key`` is ``ApiKey``, ``API key`` and ``a.p.i.-.k.e.y`` as well."""
    parts = [letters for letters in _APART.split(word) if letters]
    return r"[\W_]{0,3}?".join(r"[_.-]?".join(map(re.escape, letters)) for letters in parts)


def _end_of_value(text: str, begin: int) -> int:
    """Returns where a value ends: behind its quote, if what follows belongs to others, else at the end of its line."""
    if _is_hidden(text, begin):
        return begin
    opened = _OPENED.match(text, begin)
    if opened is None:
        return _end_of_line(text, begin)
    end = _end_of_quoted(text, opened, len(text))
    if end is None:
        return len(text)
    return end if _CLOSED.match(text, end) else _end_of_line(text, end)


def _end_of_quoted(text: str, opened: re.Match[str], most: int) -> int | None:
    """Returns the place behind the quote that closes the one which *opened* has found; None: up to *most* none does."""
    for quote in _QUOTE[opened[2]].finditer(text, opened.end(), most):
        if quote[1] == opened[1]:  # with more before it, it is a quote in the value
            return quote.end()
    return None


def _is_hidden(text: str, at: int) -> bool:
    return text.startswith(MARK, at) and _CLOSED.match(text, at + len(MARK)) is not None


def _end_of_line(text: str, begin: int) -> int:
    """Returns where the line ends, with the lines that its brackets and a backslash at its end add to it."""
    depth = depth_unquoted = 0  # with the brackets in quotes, and without: nobody knows which apostrophe is a quote
    quoted_to = line_end = begin
    for bend in _BENDS.finditer(text, begin):
        at = bend.start()
        match bend[0]:
            case "[" | "(" | "{" | "]" | ")" | "}" as bracket:
                step = 1 if bracket in "[({" else -1
                depth += step
                depth_unquoted += step if at >= quoted_to else 0
            case "\n":
                if depth <= 0 and depth_unquoted <= 0:
                    return at
            case "\\\n":
                pass
            case _ if at >= quoted_to:
                if line_end <= at:
                    newline = text.find("\n", at)
                    line_end = len(text) if newline < 0 else newline
                quoted_to = _end_of_quoted(text, bend, line_end) or quoted_to
    return len(text)
