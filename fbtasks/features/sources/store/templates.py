"""Statements made of templates: some lines are for some definitions alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Final

_CONDITION: Final = re.compile(r" *\[([\w !]+)\]")
_NAME: Final = re.compile(r"\{(\w+)\}")


def render(
    template: str, facts: Collection[str], given: Mapping[str, object], parts: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Returns the lines of *template* that hold, with what is *given* in the place of names in braces.

    A line that begins with ``[status !wide]`` holds when "status" is one of *facts* and "wide" is not. What a name in
    *parts* stands for is a template as well.
    """
    found = []
    for line in template.strip("\n").splitlines():
        condition = _CONDITION.match(line)
        words = condition[1].split() if condition else ()
        if all((word.lstrip("!") in facts) != word.startswith("!") for word in words):
            found.append(line[condition.end() :] if condition else line)

    def meant(name: re.Match[str]) -> str:
        part = parts.get(name[1])
        return str(given[name[1]]) if part is None else render(part, facts, given, parts)

    return _NAME.sub(meant, "\n".join(found))
