"""Checks of the values that a caller gives.

Each is called with the name that the caller knows the value by, and with the value. It returns the value as it is kept,
or refuses it with a message that says what is wanted.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta, tzinfo
from typing import Any, Final, TypeVar

from fbtasks.errors import ConfigurationError, FBTasksError
from fbtasks.timing import LONGEST

Check = Callable[[str, Any], Any]
T = TypeVar("T")
_QUEUE: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}")


def shown(value: object) -> str:
    """*value* as a message shows it: short, whatever it is."""
    return f"{value!r:.80}"


def optional(check: Check) -> Check:
    """*check*, with None let through."""
    return lambda what, value: None if value is None else check(what, value)


def flag(what: str, value: object) -> bool:
    """True or False."""
    if not isinstance(value, bool):
        raise ConfigurationError(f"{what} {shown(value)} must be True or False.")
    return value


def one_of(words: Mapping[str | None, str]) -> Check:
    """A check for one of *words*, which are shown with their meanings."""
    shows = [f"{word if word is None else repr(word)} ({meaning})" for word, meaning in words.items()]
    wanted = f"{', '.join(shows[:-1])} or {shows[-1]}"

    def check(what: str, value: object) -> object:
        if not (value is None or isinstance(value, str)) or value not in words:
            raise ConfigurationError(f"{what} {shown(value)} must be {wanted}.")
        return value

    return check


def is_name(value: str, most: int) -> bool:
    """Returns True when *value* can be a name: 1 to *most* printable characters, without spaces at its ends.

    SQL takes names for equal that differ in the spaces at their ends, and Python does not.
    """
    return 0 < len(value) <= most and value.isprintable() and value == value.strip()


def name(what: str, value: object, most: int) -> str:
    """Text that can be a name."""
    if not isinstance(value, str) or not is_name(value, most):
        raise ConfigurationError(
            f"{what} {shown(value)} must be text of 1 to {most} printable characters, without spaces at its ends."
        )
    return value


def number(what: str, value: object, least: int, most: int, unit: str = "") -> int:
    """A whole number from *least* to *most*."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        unit = unit and f" of {unit}"
        raise ConfigurationError(f"{what} {shown(value)} must be a whole number{unit} from {least} to {most}.")
    return value


def priority(what: str, value: object) -> int:
    """The priority of a task."""
    if isinstance(value, bool) or not isinstance(value, int) or not -9999 <= value <= 9999:
        raise ConfigurationError(f"{what} {shown(value)} must be a whole number from -9999 to 9999; higher runs first.")
    return value


def queue_name(what: str, value: object) -> str:  # noqa: ARG001  # the message says what it is
    """The name of a queue: 1 to 63 ASCII letters, digits and ``_ . : -``."""
    if not isinstance(value, str) or not _QUEUE.fullmatch(value):
        raise ConfigurationError(
            f"{shown(value)} is not a queue name: use 1 to 63 letters, digits and '_', '.', ':', '-' (ASCII), "
            "beginning with a letter, a digit or '_'."
        )
    return value


def retries(what: str, value: object, error: type[FBTasksError] = ConfigurationError) -> int | None:
    """A number of retries, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise error(f"{what} {shown(value)} must be a whole number from 0, or None.")
    return value


def seconds(
    what: str, value: Any, *, zero: bool = True, bounded: bool = True, flag: bool = False, also: str = ""
) -> float:
    """A number of seconds from 0 (or above it, without *zero*), at most a hundred years.

    One that only limits another need not be *bounded*: it is finite. With *flag*, True and False will do as well.
    """
    most = LONGEST.total_seconds() if bounded else sys.float_info.max
    is_number = isinstance(value, int | float) and (flag or not isinstance(value, bool))
    if is_number and 0 <= value <= most and (zero or value):  # nan is not within
        return value  # type: ignore[no-any-return]  # a number, as the line above says
    least = "from 0" if zero else "above 0"
    top = ", at most a hundred years" if bounded else ""
    also = ", or True or False" if flag else also
    raise ConfigurationError(f"{what} {shown(value)} must be a number of seconds {least}{top}{also}.")


def duration(what: str, value: object) -> timedelta:
    """A timedelta above nothing, up to a hundred years."""
    if isinstance(value, timedelta) and timedelta(0) < value <= LONGEST:
        return value
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
    """Texts. A single text, which would be taken for its letters, is refused."""
    if isinstance(value, str):
        raise ConfigurationError(f"{what} {shown(value)} must be a list of {example}: {what}=[{value!r}].")
    if isinstance(value, bytes | Mapping) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{what} {shown(value)} must be a list of {example}.")
    found = tuple(value)
    for name in found:
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f"{what} holds {shown(name)}, and must be a list of {example}.")
    return found


def is_function(value: object) -> bool:
    """Whether *value* can be called to compute something. A class is given by mistake, in the place of an object."""
    return callable(value) and not isinstance(value, type)


def no_class(value: object) -> str:
    """Returns what a message adds when *value* is a class."""
    return f" {value.__name__} is a class: give an object of it, or a function." if isinstance(value, type) else ""


def hook(what: str, value: object) -> object:
    """A function, or None."""
    if value is not None and not is_function(value):
        raise ConfigurationError(
            f"{what} {shown(value)} must be a function of the request and the result or exception.{no_class(value)}"
        )
    return value


def text(what: str, value: object) -> str:
    """A text with something in it."""
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{what} {shown(value)} must be text, and not empty.")
    if not is_utf8(value):
        raise ConfigurationError(f"{what} {shown(value)} holds half of a surrogate pair, which UTF-8 does not have.")
    return value


def is_utf8(value: str) -> bool:
    """Whether *value* has letters only that UTF-8 has: no half of a surrogate pair."""
    return value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)


def timezone(what: str, value: object) -> tzinfo:
    """A time zone, or the name of one. One of pytz becomes that of its name.

    A zone of pytz counts by the mean solar time of its place until its own ``localize`` has seen a datetime.
    """
    if isinstance(value, tzinfo):
        key = getattr(value, "zone", None) if hasattr(value, "localize") else None
        if not isinstance(key, str):
            return value
        value = key
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} {shown(value)} must be a tzinfo, or None.")
    import zoneinfo  # for those who name a zone

    try:
        return zoneinfo.ZoneInfo(value)
    except (LookupError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        remedy = did_you_mean(value, known) or " Give a name such as 'Europe/Berlin'."
        if not known:
            remedy = " There are no time zones on this machine: pip install tzdata"
        raise ConfigurationError(f"there is no {what} {shown(value)}.{remedy}") from None


_LIKE: Final = 0.6
"""How alike two words are, from 0 to 1, of which one may have been meant by the other."""
_NEARLY: Final = 0.1
"""How much less alike than the closest word another one may be."""


def did_you_mean(word: object, known: Iterable[str], least: float = _LIKE) -> str:
    """The words of *known* that *word* may have been meant to be, as a question behind a blank; or nothing.

    What is before the last dot, the module of a task, does not count where it is the same or left out: else all tasks
    of a module were alike. *least*: how alike they are at least, from 0 to 1.
    """
    from difflib import SequenceMatcher  # for mistakes alone

    text = str(word)
    module, _, name = text.rpartition(".")
    likeness = {}
    for each in known:
        home, _, other = each.rpartition(".")
        pair = (other, name) if module in ("", home) else (each, text)
        likeness[each] = SequenceMatcher(None, *pair).ratio()
    least = max(least, max(likeness.values(), default=0.0) - _NEARLY)
    close = sorted((each for each in likeness if likeness[each] >= least), key=likeness.__getitem__, reverse=True)[:3]
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


def json_argument(text: str, like: T, what: str) -> T:
    """Returns the list or the object, as *like* is, that the JSON of an option has.

    Raises :class:`ConfigurationError`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what} {shown(text)} is not JSON: {error}.") from None
    if not isinstance(value, type(like)):
        kind = "list" if isinstance(like, list) else "object"
        raise ConfigurationError(f"{what} {shown(text)} must be a JSON {kind}.")
    return value
