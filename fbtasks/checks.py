"""Checks of the values that a caller gives: a value that cannot be used is refused with its name and what is wanted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from datetime import timedelta

from fbtasks.clock import LONGEST
from fbtasks.errors import ConfigurationError, FBTasksError

Refusal = type[FBTasksError]


def shown(value: object) -> str:
    """*value* as a message shows it: short, whatever it is."""
    return f"{value!r:.80}"


def flag(what: str, value: object) -> None:
    """Refuses what is neither True nor False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} {shown(value)} must be True or False.")


def number(what: str, value: object, least: int, most: int, unit: str = "") -> None:
    """Refuses what is no whole number from *least* to *most*."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        unit = unit and f" of {unit}"
        raise ConfigurationError(f"{what} {shown(value)} must be a whole number{unit} from {least} to {most}.")


def retries(what: str, value: object, error: Refusal = ConfigurationError) -> None:
    """Refuses what is neither None nor a number of retries."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise error(f"{what} {shown(value)} must be a whole number from 0, or None.")


def seconds(
    what: str, value: object, *, zero: bool = True, bounded: bool = True, flag: bool = False, also: str = ""
) -> None:
    """Refuses what is no number of seconds from 0 (or above it, without *zero*), at most a hundred years.

    One that only limits another need not be *bounded*: it is finite. With *flag*, True and False will do as well.
    """
    most = LONGEST.total_seconds() if bounded else sys.float_info.max
    is_number = isinstance(value, int | float) and (flag or not isinstance(value, bool))
    if is_number and 0 <= value <= most and (zero or value):  # type: ignore[operator]  # nan is not within
        return
    least = "from 0" if zero else "above 0"
    top = ", at most a hundred years" if bounded else ""
    also = ", or True or False" if flag else also
    raise ConfigurationError(f"{what} {shown(value)} must be a number of seconds {least}{top}{also}.")


def duration(what: str, value: object) -> None:
    """Refuses what is no timedelta above nothing, up to a hundred years."""
    if isinstance(value, timedelta) and timedelta(0) < value <= LONGEST:
        return
    if value is None:
        remedy = f"to keep it for as long as can be, give timedelta(days={LONGEST.days})"
    elif isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= LONGEST.total_seconds():
        remedy = f"give timedelta(seconds={value!r})"
    else:
        remedy = "such as timedelta(days=1)"
    raise ConfigurationError(
        f"{what} {shown(value)} must be a timedelta longer than nothing, at most a hundred years: {remedy}."
    )


def names(what: str, value: object, example: str) -> tuple[str, ...]:
    """*value* as a tuple of texts. Refuses a single text, which would be taken for its letters, and what is no text."""
    if isinstance(value, str):
        raise ConfigurationError(f"{what} {shown(value)} must be a list of {example}: {what}=[{value!r}].")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} {shown(value)} must be a list of {example}.")
    found = tuple(value)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{what} holds {shown(name)}, and must be a list of {example}.")
    return found


def hook(what: str, value: object) -> None:
    """Refuses what is neither None nor a function."""
    if value is not None and not callable(value):
        raise ConfigurationError(
            f"{what} {shown(value)} must be a function of the request and the result or exception."
        )


def text(what: str, value: object) -> None:
    """Refuses what is no text with something in it."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} {shown(value)} must be text, and not empty.")


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The words of *known* that *word* may have been meant to be, as a question behind a blank; or nothing."""
    import difflib  # for mistakes alone

    close = difflib.get_close_matches(str(word), list(known), 3, 0.6)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
