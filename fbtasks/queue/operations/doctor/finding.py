"""Runs checks. One that cannot be done hides nothing of the others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Final, NamedTuple, TypeVar

from fbtasks.errors import DatabaseUnavailable
from fbtasks.system.showing import brief, split_remedy

T = TypeVar("T")
_LEADS: Final = re.compile(r"(.*[.?]) ([^.?]+)")
"""Sentences, and behind them what leads to a command: ``To move its tasks``."""
Repair = Callable[[], str]
"""Repairs something, and returns what it has done."""


class Level(IntEnum):
    """How bad a finding is."""

    OK = 0
    NOTE = 1
    WARNING = 2
    ERROR = 3


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check."""

    id: str
    level: Level
    finding: str
    """A sentence without a full stop."""
    remedy: str | None = None
    """A command, or what else to do."""
    fixed: bool = False
    """Whether it was repaired now."""


class Said(NamedTuple):
    """What a check says."""

    level: Level
    text: str
    """A sentence without a full stop. A command of fbtasks with which it ends is the remedy."""
    remedy: str | None = None
    repair: Repair | None = None
    id: str = ""
    """Empty: the name of the check."""


Checks = Mapping[str, Callable[[T], Iterable[Said]]]
"""Checks by their names. What a check says first is told when it finds nothing worse."""
ok: Final = partial(Said, Level.OK)
note: Final = partial(Said, Level.NOTE)
warning: Final = partial(Said, Level.WARNING)
error: Final = partial(Said, Level.ERROR)


def run(checks: Checks[T], about: T, *, fix: bool) -> Iterator[Finding]:
    """Yields what *checks* find. *fix*: what can be repaired is repaired."""
    for name, check in checks.items():
        try:
            said = list(check(about))
        except DatabaseUnavailable as lost:
            said = [error(f"it could not be checked: {brief(lost)}")]
        except Exception as failed:  # noqa: BLE001  # of features of other distributions too
            said = [note(f"it could not be checked: {type(failed).__name__}: {brief(failed)}")]
        for each in [each for each in said if each.level] or said:
            yield finding(each.id or name, each, fix=fix)


def finding(name: str, said: Said, *, fix: bool = False) -> Finding:
    """Returns the finding of what a check has *said*, repaired with *fix*."""
    text, command = split_remedy(said.text)
    remedy = said.remedy or command
    if command and not said.text.endswith(")") and (led := _LEADS.fullmatch(text)):
        text = led[1].removesuffix(".")
        remedy = command if led[2] == "Run" else f"{led[2]}: {command}"
    if said.repair is not None and fix:
        try:
            return Finding(name, Level.OK, said.repair(), fixed=True)
        except Exception as failed:  # noqa: BLE001  # as above
            text = f"{text}; it could not be repaired: {brief(failed)}"
    elif said.repair is not None:
        remedy = "fbtasks doctor --fix"
    return Finding(name, said.level, text, remedy)
