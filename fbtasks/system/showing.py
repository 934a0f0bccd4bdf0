"""Values and errors as texts for people, whatever their classes do when they are asked for one."""

from __future__ import annotations

import re
import shlex
from typing import Final

_REMEDY: Final = re.compile(r"(.*?)(?::? *\(|: )(fbtasks [a-z](?:(?!\. |, (?!with the same URL))[^()])*?)\)?\.?")
CUT: Final = " ... "
"""What stands for the middle of a text that was too long."""


def show(error: BaseException) -> str:
    """The message of *error*, whatever its class does when asked for it."""
    try:
        return sendable(str(error))
    except BaseException:  # noqa: BLE001  # it may raise SystemExit
        return "(its message cannot be shown)"


def brief(error: BaseException) -> str:
    """The message of *error* without a full stop, where it goes into another message."""
    return shorten(show(error), 300, CUT).rstrip(".")


def sentence(text: str) -> str:
    """*text* with a full stop, unless it ends as a sentence does."""
    return text if text.endswith((".", "?", "!")) else f"{text}."


def split_remedy(text: str) -> tuple[str, str | None]:
    """Returns *text*, on one line, without the command of fbtasks with which it ends, and that command."""
    line = " ".join(text.split())
    found = _REMEDY.fullmatch(line)
    return (found[1], found[2]) if found else (line, None)


def command_line(template: str, *words: object) -> str:
    """Returns a command to be copied into a shell: *template* with *words*, quoted, in the places of its ``{}``.

    In the place of a list stand all of its words.
    """
    return template.format(*(shlex.join(map(str, word if isinstance(word, list) else [word])) for word in words))


def with_app(text: str, path: str | None) -> str:
    """Returns *text* with what names the app, *path*, behind the ``-A`` of commands; None: that is not known."""
    return text if path is None else text.replace("-A MODULE", command_line("-A {}", path))


def ending(text: str) -> str:
    """*text* as the end of a message: a sentence, or one that ends with a command, which is copied as it is."""
    return text if ": fbtasks " in text.rpartition(". ")[2] else sentence(text)


def count(number: float, what: str) -> str:
    """*number* and the word for one of *what*, in the plural unless it is one: ``1 task``, ``2 tasks``."""
    return f"{f'{number:g}' if isinstance(number, float) else number} {what}{'' if number == 1 else 's'}"


def show_value(value: object) -> str:
    """A short representation of *value*, whatever its class does when asked for it."""
    try:
        return shorten(sendable(repr(value)), 80, CUT)
    except Exception:  # noqa: BLE001
        return "(it cannot be shown)"


def sendable(text: str) -> str:
    """*text* without lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(text: str, limit: int, mark: str) -> str:
    """*text* with *mark* instead of its middle where it has more than *limit* characters."""
    if len(text) <= limit:
        return text
    room = max(0, limit - len(mark))
    head = room // 2
    return (text[:head] + mark + text[len(text) - (room - head) :])[: max(0, limit)]


def name_of(kind: type) -> str:
    """The module and the qualified name of a class."""
    return sendable(f"{kind.__module__}.{kind.__qualname__}")


def kind_of(error_type: str) -> str:
    """The name of an exception's class for people: without the module of Python's own ones and of those of fbtasks."""
    return error_type.removeprefix("builtins.").removeprefix("fbtasks.errors.")


def failure(error_type: str | None, message: str | None) -> str:
    """Returns an exception as Python names it: its type and its message."""
    return ": ".join(part for part in (kind_of(error_type or ""), message) if part)


def span(seconds: float) -> str:
    """Returns a duration in one short word."""
    for limit, unit, size in ((1, "ms", 0.001), (120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def size(number: float) -> str:
    """Returns a number of bytes in one short word."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} TB"
