"""JSON for scripts."""

from __future__ import annotations

import dataclasses
import json
import sys
from datetime import datetime
from enum import IntEnum
from typing import Any

from fbtasks.cli.escapes import OBEYED, write


def print_json(value: Any, indent: int | None = 2) -> None:
    """Prints records as JSON. A value that JSON does not have becomes text."""
    narrow = not (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    write(visible_json(json.dumps(value, indent=indent, ensure_ascii=narrow, default=_plain)))


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_dict(value)
    return str(value)


def as_dict(record: Any) -> dict[str, Any]:
    """Returns the fields of a record, with the names of states instead of their numbers."""
    fields = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
    return {name: value.name.lower() if isinstance(value, IntEnum) else value for name, value in fields.items()}


def visible_json(text: str) -> str:
    """Returns JSON of the same meaning, with the same characters escaped as JSON does it."""
    return OBEYED.sub(lambda match: json.dumps(match[0])[1:-1], text)
