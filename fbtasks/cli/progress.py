"""How far a command is that changes many things, some at a time."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Final, Self

from fbtasks.cli.output import say, write
from fbtasks.system.showing import count

_PAUSE: Final = 0.2
"""Seconds between two looks of a terminal."""


class Progress:
    """Adds up what has been done; on a terminal, the standard error shows it in one line that changes."""

    def __init__(self, what: str, done: str) -> None:
        """*what* is the word for one of them, and *done* what has been done: "task", "deleted"."""
        self._what, self._done = what, done
        self._total = 0
        self._shown = 0.0
        self._width = 0

    def __call__(self, number: int) -> None:
        """Adds *number*, which is committed."""
        self._total += number
        now = time.monotonic()
        if sys.stderr.isatty() and now - self._shown > _PAUSE:
            self._shown = now
            self._replace(self._text())

    def __enter__(self) -> Self:
        """Returns it; the end of the block takes the line away. Of one that is interrupted it is said what was done."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Takes the line away."""
        self._replace("")
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            say(f"Interrupted: {self._text()}.", err=True)

    def _text(self) -> str:
        return f"{count(self._total, self._what)} {self._done}"

    def _replace(self, text: str) -> None:
        """Writes *text* in the place of what this line of the terminal shows."""
        if text or self._width:
            write(f"\r{text:{self._width}}" + ("" if text else "\r"), err=True, end="")
            self._width = len(text)
