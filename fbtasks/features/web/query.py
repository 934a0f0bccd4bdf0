"""The line in which people say which tasks they look for: ``state:failed name:shop.* since:1h timeout``."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.states import State
from fbtasks.system import checks

WAITING: Final = (State.READY, State.SCHEDULED, State.HELD, State.PARKED, State.AWAITING)
ENDED: Final = (State.SUCCEEDED, State.FAILED, State.CANCELLED)
REASONS: Final[dict[str, tuple[State, ...]]] = {
    "limit": (State.HELD,),
    "key": (State.HELD,),
    "paused": (State.READY, State.HELD, State.PARKED),
    "closed": (State.READY, State.HELD, State.PARKED),
    "unserved": (State.READY, State.HELD, State.PARKED),
    "unknown": (State.PARKED,),
    "steps": (State.AWAITING,),
}
"""What may keep tasks from running, and the states of those that it keeps."""
STATES: Final = {"finished": ENDED, "waiting": WAITING, **{each.name.lower(): (each,) for each in State}}
_WORD: Final = re.compile(
    r'\s*(?:(?P<key>[A-Za-z][\w.]*):)?(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s"]*))(?=\s|$)'
)
_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_LONGEST: Final = 500
"""Characters of a value."""
_KEYS: Final = ("state", "queue", "name", "worker", "error", "since", "until", "why", "id")
"""Those that stand before a colon, beside ``arg.NAME``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which tasks are looked for. ``str`` is the line that says it, always in the same order."""

    state: tuple[str, ...] = ()
    """Names of states, ``waiting`` or ``finished``; none: finished, or with *why* waiting."""
    queue: str = ""
    name: str = ""
    """With ``*`` for any text, as in *worker*."""
    worker: str = ""
    error: str = ""
    """Is in the type or the message of the error."""
    arg: tuple[tuple[str, str], ...] = ()
    """Arguments and their values: by name, by place from 0, and further inside by dots."""
    since: str = ""
    until: str = ""
    """``1h`` ago, or a time in UTC. Of finished tasks when they ended, of others when they may begin."""
    why: str = ""
    """One of :data:`REASONS`."""
    id: str = ""
    words: tuple[str, ...] = ()
    """Each is in the name, or in the error."""

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the tasks. Raises :class:`ConfigurationError` for what cannot be together."""
        found = tuple(dict.fromkeys(each for name in self.state for each in STATES[name]))
        if self.why:
            kept = REASONS[self.why]
            if found and not set(found).intersection(kept):
                names = ", ".join(each.name.lower() for each in kept)
                raise ConfigurationError(
                    f"why:{self.why} keeps no task that is {', '.join(self.state)}: leave the state out, or take "
                    f"{names}."
                )
            return tuple(each for each in kept if not found or each in found)
        if len({each.live for each in found}) > 1:
            raise ConfigurationError(
                f"state:{','.join(self.state)} has tasks that have ended, and such that have not: look for them one "
                "after the other."
            )
        return found or ENDED

    def narrowed(self, key: str, value: str) -> Query:
        """Returns this query with another value of *key*, and without what may not be together with it."""
        changed: dict[str, Any] = {"id": "", key: value}
        if key == "state":
            changed |= {"state": (value,), "why": ""}
        elif key == "why":
            changed["state"] = ()
        return replace(self, **changed)

    def __str__(self) -> str:
        said = [(key, ",".join(self.state) if key == "state" else getattr(self, key)) for key in _KEYS]
        said += [(f"arg.{path}", value) for path, value in self.arg]
        keyed = [f"{key}:{_quoted(value)}" for key, value in said if value]
        return " ".join((*keyed, *(_quoted(each, alone=True) for each in self.words)))


def _quoted(value: str, *, alone: bool = False) -> str:
    if value and '"' not in value and not re.search(r"\s", value) and not (alone and ":" in value):
        return value
    return '"{}"'.format(re.sub(r'(["\\])', r"\\\1", value))


def parse(text: str) -> Query:
    """Reads a line: ``KEY:VALUE`` and words that are in the name or the error; values with spaces are in quotes.

    Raises :class:`ConfigurationError` for what it does not mean.
    """
    found: dict[str, str] = {}
    arguments: dict[str, str] = {}
    words: list[str] = []
    text = text.strip()
    at = 0
    while at < len(text):
        match = _WORD.match(text, at)
        if match is None:
            raise ConfigurationError(
                f"{text[at:].strip()!r:.80} has a quote that does not end, or text behind one: put quotes around a "
                'whole value, as in error:"timed out", and \\" for one inside.'
            )
        at = match.end()
        key, value = match["key"], match["plain"]
        if value is None:
            value = re.sub(r"\\(.)", r"\1", match["quoted"])
        if len(value) > _LONGEST:
            raise ConfigurationError(f"{value!r:.80} is longer than {_LONGEST} characters: shorten it.")
        if key is None:
            words.append(value)
        elif not value:
            raise ConfigurationError(f"{key}: has no value: write one behind it, or leave it out.")
        elif key.startswith("arg."):
            arguments[key[4:]] = value
        elif key in found:
            raise ConfigurationError(f"{key}: is given twice: leave out {key}:{value}, or the other one.")
        else:
            found[key] = value
    for key, value in found.items():
        if key not in _KEYS:
            hint = checks.did_you_mean(key, _KEYS)
            raise ConfigurationError(
                f"{key}: is nothing that tasks are looked for by.{hint} Known: {', '.join(_KEYS)}, arg.NAME. Put "
                f'quotes around a text with a colon: "{key}:{value}".'
            )
    states = tuple(found.pop("state").split(",")) if "state" in found else ()
    query = Query(state=states, arg=tuple(arguments.items()), words=tuple(filter(None, words)), **found)
    _check(query)
    return query


def _check(query: Query) -> None:
    for name in query.state:
        _one_of("state", name, STATES)
    if query.why:
        _one_of("why", query.why, REASONS)
    if query.queue:
        checks.queue_name("queue", query.queue)
    for value in (query.since, query.until):
        moment(value, datetime.now(UTC))
    if query.id and query != Query(id=query.id):
        raise ConfigurationError(f"id:{query.id} is one task: leave out all else.")
    query.states  # noqa: B018  # which refuses what cannot be together


def _one_of(key: str, value: str, known: dict[str, tuple[State, ...]]) -> None:
    if value not in known:
        hint = checks.did_you_mean(value, known)
        raise ConfigurationError(f"{key}:{value} is unknown.{hint} Known: {', '.join(known)}.")


def moment(text: str, now: datetime) -> datetime | None:
    """Returns the time that is meant by ``1h`` or ``2026-01-31T14:05``. None: none is given.

    Raises :class:`ConfigurationError` for what is neither.
    """
    if not text:
        return None
    try:
        if match := _AGO.fullmatch(text):
            return now - timedelta(seconds=int(match[1]) * _UNITS[match[2]])
        found = datetime.fromisoformat(text)
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"{text!r:.80} is no time: give 30m, 2h or 7d ago, or a time in UTC such as 2026-01-31T14:05."
        ) from None
