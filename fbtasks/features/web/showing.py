"""What readers see of what tasks are called with, return, write and raise. Nothing is unpickled."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from fnmatch import fnmatchcase
from inspect import Parameter
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

from fbtasks.features.web.redaction import LARGEST, MARK, Redaction
from fbtasks.features.web.redaction import REDACTED as REDACTED
from fbtasks.features.web.store import AuditRow, Try
from fbtasks.sheet import Called, Private
from fbtasks.system.showing import CUT, failure, shorten, size
from fbtasks.tasks.call import TaskRow
from fbtasks.tasks.serialize import JSON_TYPE, Payload

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.tasks.definition import Task

MOST: Final = 65_536
"""Characters of a value that are shown."""
SEARCH: Final = "tasks "
"""What the audit has before the line of a search."""
POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Shown(NamedTuple):
    """An argument, a result, or a value in them."""

    name: str
    """Empty: it has none."""
    text: str


class Arguments:
    """What is shown of what tasks are called with, return, write and raise."""

    def __init__(self, app: FBTasks, redact: Collection[str], *, hidden: bool) -> None:
        """*hidden*: none of it is. *redact*: words in the names of what is secret."""
        self._app = app
        self._redaction = Redaction(redact)
        self.hidden = hidden
        """Whether none of it is."""

    # A page

    def shown(self, value: Any) -> Any:
        """Returns *value*, all that a page is made of, as readers see it."""
        match value:
            case Private(text, kind):
                return failure(kind, self.told(text))
            case Called():
                return self._called(value)
            case TaskRow():
                return replace(value, error_msg=self.told(value.error_msg))
            case Try():
                return value._replace(error=self.told(value.error), traceback=self.told(value.traceback))
            case AuditRow() if value.what.startswith(SEARCH):
                return value._replace(what=f"{SEARCH}{self.told(value.what.removeprefix(SEARCH))}")
            case Mapping():
                return {key: self.shown(each) for key, each in value.items()}
            case list() | tuple() if not hasattr(value, "_fields"):
                return [self.shown(each) for each in value]
            case _ if is_dataclass(value) and not isinstance(value, type):
                return replace(value, **{each.name: self.shown(getattr(value, each.name)) for each in fields(value)})
        return value

    def told(self, text: str | None) -> str | None:
        """Returns a text that a task has written, or an error has, as readers see it."""
        if text and self.hidden:
            return MARK
        return self._redaction.text(text) if text else text

    def hides_call(self, call: Called) -> bool:
        """Whether not all of *call* is shown."""
        return self.hidden or any(self.hides(name, value) for name, value in self._given(call))

    def _given(self, call: Called) -> list[tuple[str, Any]]:
        return named((call.args or (), call.kwargs or {}), self._app.known_task(call.task))

    def _called(self, call: Called) -> str:
        if self.hidden or call.args is None or call.kwargs is None:
            return f"{call.task}(...)"
        values = [
            MARK if self.is_secret(name) else f"{self._redaction.value(value)!r}" for name, value in self._given(call)
        ]
        names = ["" for _ in call.args] + [f"{name}=" for name in call.kwargs]
        return f"{call.task}({', '.join(map(''.join, zip(names, values, strict=True)))})"

    # A payload

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

    def values(self, payload: Payload | None, task: str) -> dict[str, Any]:
        """Returns the arguments of a call of *task* by their names and by their places, as far as they are shown."""
        body = None if payload is None else self._body(payload)
        if body is None:
            return {}
        found = named((body[0], body[1]), self._app.known_task(task))
        told = [(name, MARK if self.is_secret(name) else self._redaction.value(value)) for name, value in found]
        return dict(told) | {str(at): value for at, (_, value) in enumerate(told[: len(body[0])])}

    def _body(self, payload: Payload) -> list[Any] | None:
        match self._read(payload):
            case ([list(), dict(), *_] as body,) if isinstance(body, list):
                return body
        return None

    def is_secret(self, name: str) -> bool:
        """Whether a name has one of the words: the value of an argument, or of a key in one, is not shown then."""
        return self._redaction.is_secret(name)

    def hides(self, name: str, value: Any) -> bool:
        """Whether an argument, or a part of it, is not to be shown."""
        return self.hidden or self.is_secret(name) or self._redaction.value(value) != value

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
        return shorten(json.dumps(self._redaction.value(value), ensure_ascii=False, indent=2), MOST, CUT)


def named(call: tuple[Sequence[Any], Mapping[str, Any]], task: Task[..., Any] | None) -> list[tuple[str, Any]]:
    """Returns the arguments of *call* by their names, or by their places where the app knows no names for them."""
    args, kwargs = call
    names = [] if task is None else [each.name for each in task.parameters.all if each.kind in POSITIONAL]
    found = [(names[at] if at < len(names) else str(at), value) for at, value in enumerate(args)]
    return [*found, *kwargs.items()]


def links_of(links: Mapping[str, str], name: str, arguments: Mapping[str, Any]) -> list[str]:
    """Returns the addresses that *links* have for a task of that name: ``{order}`` is the argument of that name.

    An address that names an argument which the task does not have is left out.
    """
    known = {key: each for key, each in arguments.items() if type(each) in (str, int) and each != MARK}
    found = []
    for pattern, address in links.items():
        if fnmatchcase(name, pattern):
            missing: list[str] = []
            text = re.sub(r"\{(\w+)\}", lambda word: _part(known, word[1], missing), address)  # noqa: B023  # used at once
            found += [] if missing else [text]
    return found


def _part(known: Mapping[str, Any], name: str, missing: list[str]) -> str:
    if name not in known:
        missing.append(name)
        return ""
    return quote(str(known[name]), safe="")
