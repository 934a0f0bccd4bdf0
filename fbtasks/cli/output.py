"""Prints text and JSON, with an escape for all that a terminal would obey.

Names, errors, tracebacks and results come from tasks, and tasks have them from the world.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any, Final, TypeVar

import click

from fbtasks.system.showing import span, with_app

T = TypeVar("T")
APP: Final = "fbtasks.app"
"""The key of a command's context for the ``-A`` that stands anywhere on the command line."""
WIDE: Final = "fbtasks.wide"
"""Where the context of a command keeps whether it was given ``--wide``."""
OBEYED: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f"  # control characters, without tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # what turns or hides text
    "\ud800-\udfff\U000e0000-\U000e007f]"  # halves of characters, and tags, which no terminal shows
)
"""The characters that a terminal would obey."""


def visible(text: str) -> str:
    r"""Returns *text* with an escape such as ``\x1b`` for what a terminal would obey. Newlines and tabs stay."""
    return OBEYED.sub(lambda match: _escape(match[0]), text.replace("\r\n", "\n"))


def visible_line(text: str) -> str:
    r"""Returns *text* as :func:`visible` does, on one line: newlines and tabs too are written as ``\n`` and ``\t``."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(text: str, *, err: bool = False) -> None:
    """Prints *text*, made visible, with the app of the command line in the commands that it names."""
    write(visible(with_app(text, given_app())), err=err)


def given_app() -> str | None:
    """Returns the app that ``-A`` of the command line names; None: it names none."""
    context = click.get_current_context(silent=True)
    return None if context is None else context.meta.get(APP)


def write(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Prints *text* as it is and *end*, with an escape for what the terminal's encoding does not have."""
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    click.echo((text + end).encode(encoding, "backslashreplace").decode(encoding), err=err, nl=False)


def answer(record: Any, text: str, *, as_json: bool) -> None:
    """Prints what a command has done: as JSON for scripts, or in words."""
    if as_json:
        print_json(record)
    else:
        say(text)


def print_json(value: Any, indent: int | None = 2) -> None:
    """Prints records as JSON. A value that JSON does not have becomes text."""
    write(_json(value, indent))


def print_json_list(rows: Iterable[Any]) -> None:
    """Prints a list of records as :func:`print_json` does; there may be many."""
    before = "[\n  "
    for row in rows:
        write(before + _json(row, 2).replace("\n", "\n  "), end="")
        before = ",\n  "
    write("[]" if before[0] == "[" else "\n]")


def _json(value: Any, indent: int | None) -> str:
    import json  # not for --help

    narrow = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    return visible_json(json.dumps(value, indent=indent, ensure_ascii=narrow, default=_plain))


def visible_json(text: str) -> str:
    """Returns JSON of the same meaning, with the characters that a terminal would obey escaped as JSON does it."""
    import json

    return OBEYED.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    return str(value)


def as_dict(record: Any) -> dict[str, Any]:
    """Returns the fields of a record, with the names of states instead of their numbers.

    Its ``facts`` are fields like the others, and what is ``shown`` to people is left out.
    """
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    fields |= fields.pop("facts", {})
    fields.pop("shown", None)
    return {name: value.name.lower() if isinstance(value, IntEnum) else value for name, value in fields.items()}


def ago(moment: datetime | None) -> str:
    """Returns how long ago, or in how long, in one short word."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    return f"in {span(-seconds)}" if seconds < 0 else f"{span(seconds)} ago"


def stamp(moment: datetime | None) -> str | None:
    """Returns a moment in the zone of this machine, and how long ago it was."""
    if moment is None:
        return None
    local = moment
    with suppress(OverflowError):
        # In the first and the last hours that a TIMESTAMP holds, some zones have no local time.
        local = moment.astimezone()
    return f"{local:%Y-%m-%d %H:%M:%S %z} ({ago(moment)})"


def since(moment: datetime | None) -> str:
    """Returns how long it has lasted since then, in one short word."""
    return "" if moment is None else span(max(0.0, (datetime.now(UTC) - moment).total_seconds()))
