"""The one way out of the command line: text in which nothing is left that a terminal would obey.

Names, errors, tracebacks and results come from tasks, and tasks have them from the world.
"""

from __future__ import annotations

import re
import sys
from typing import Final

import click

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
    r"""Returns the same on one line: newlines and tabs too are written as ``\n`` and ``\t``."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(text: str, *, err: bool = False) -> None:
    """Prints *text*, made visible."""
    write(visible(text), err=err)


def write(text: str, *, err: bool = False) -> None:
    """Prints *text* as it is, with an escape for what the terminal's encoding does not have."""
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)
