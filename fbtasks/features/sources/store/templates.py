"""Statements made of templates: some lines are for some definitions alone."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_CONDITION: Final = re.compile(r" *\[([\w !]+)\]")


def render(template: str, facts: Collection[str], **given: object) -> str:
    """Returns the lines of *template* that hold, with what is *given* in the place of names in braces.

    A line that begins with ``[status !wide]`` holds when "status" is one of *facts* and "wide" is not.
    """
    found = []
    for line in template.strip("\n").splitlines():
        condition = _CONDITION.match(line)
        words = condition[1].split() if condition else ()
        if all((word.lstrip("!") in facts) != word.startswith("!") for word in words):
            found.append(line[condition.end() :] if condition else line)
    return "\n".join(found).format(**given)
