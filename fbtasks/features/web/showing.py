"""What readers see of payloads: JSON alone, without what is secret, and not too much of it. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from inspect import Parameter
from itertools import count
from re import sub
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from fbtasks.system.showing import CUT, shorten, size
from fbtasks.tasks.serialize import JSON_TYPE, Payload

if TYPE_CHECKING:
    from fbtasks.tasks.definition import Task

REDACTED: Final = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "credential")
"""Words in the names of arguments whose values are not shown."""
MARK: Final = "(not shown)"
MOST: Final = 65_536
"""Characters of a value that are shown."""
LARGEST: Final = 1 << 20
"""Bytes of a payload that is read to be shown."""

POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Shown(NamedTuple):
    """An argument, a result, or a value in them."""

    name: str
    """Empty: it has none."""
    text: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """How payloads are shown."""

    hidden: bool
    """Whether neither arguments nor results are."""
    redact: Collection[str]

    def of_call(self, payload: Payload | None, task: Task[..., Any] | None) -> list[Shown]:
        """Returns the arguments of a call, with their names where the app knows its *task*, and its headers."""
        if payload is None:
            return [Shown("", "(no longer kept)")]
        body = self._body(payload)
        if body is None:
            return [Shown("", self._size(payload))]
        args, kwargs, *headers = body
        found = [*named((args, kwargs), task), *(("headers", each) for each in headers)]
        return [Shown(name, self._text(name, value)) for name, value in found]

    def of_result(self, payload: Payload | None) -> Shown | None:
        """Returns the result of a task."""
        if payload is None:
            return None
        found = self._read(payload)
        return Shown("", self._size(payload) if found is None else self._text("", found[0]))

    def call(self, payload: Payload | None) -> tuple[list[Any], dict[str, Any]] | None:
        """Returns the positional and the keyword arguments, as JSON has them. None: they are not to be shown."""
        body = None if payload is None else self._body(payload)
        return None if body is None else (body[0], body[1])

    def _body(self, payload: Payload) -> list[Any] | None:
        match self._read(payload):
            case ([list(), dict(), *_] as body,) if isinstance(body, list):
                return body
        return None

    def is_secret(self, name: str) -> bool:
        """Whether the value of an argument, or of a key in one, is not shown."""
        return any(word in name.lower() for word in self.redact)

    def hides(self, name: str, value: Any) -> bool:
        """Whether an argument, or a part of it, is not to be shown."""
        try:
            return self.hidden or self.is_secret(name) or self._without_secrets(value) != value
        except RecursionError:
            return True

    def _read(self, payload: Payload) -> tuple[Any] | None:
        if self.hidden or payload.content_type != JSON_TYPE or len(payload.data) > LARGEST:
            return None
        try:
            return (json.loads(payload.data, strict=False),)
        except (ValueError, RecursionError):
            return None

    def _size(self, payload: Payload) -> str:
        return f"({size(len(payload.data))} of {payload.content_type})"

    def _text(self, name: str, value: Any) -> str:
        if self.is_secret(name):
            return MARK
        try:
            return shorten(json.dumps(self._without_secrets(value), ensure_ascii=False, indent=2), MOST, CUT)
        except RecursionError:
            return "(nested too deep to be shown)"

    def _without_secrets(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._without_secrets(each) for each in value]
        if isinstance(value, dict):
            return {key: MARK if self.is_secret(key) else self._without_secrets(each) for key, each in value.items()}
        return value


def named(call: tuple[Sequence[Any], Mapping[str, Any]], task: Task[..., Any] | None) -> list[tuple[str, Any]]:
    """Returns the arguments of *call* by their names; where the app does not know its *task*, by their places."""
    args, kwargs = call
    names = [] if task is None else [each.name for each in task.parameters.all if each.kind in POSITIONAL]
    places = (str(number) for number in count())
    found = [(names[at] if at < len(names) else next(places), value) for at, value in enumerate(args)]
    return [*found, *kwargs.items()]


def links_of(links: Mapping[str, str], name: str, arguments: Sequence[tuple[str, Any]]) -> list[str]:
    """Returns the addresses that *links* have for a task of that name: ``{order}`` is the argument of that name.

    An address that names an argument which the task does not have is left out.
    """
    known = {key: value for key, value in arguments if isinstance(value, str | int) and not isinstance(value, bool)}
    found = []
    for pattern, address in links.items():
        if fnmatchcase(name, pattern):
            missing: list[str] = []
            text = sub(r"\{(\w+)\}", lambda word: _part(known, word[1], missing), address)  # noqa: B023  # used at once
            found += [] if missing else [text]
    return found


def _part(known: Mapping[str, Any], name: str, missing: list[str]) -> str:
    if name not in known:
        missing.append(name)
        return ""
    return quote(str(known[name]), safe="")
