"""Binding keys of topic exchanges as patterns that the database matches."""

from __future__ import annotations

import re


def pattern(key: str) -> str | None:
    r"""What ``SIMILAR TO`` takes for the binding *key*; None when everything matches.

    Words are separated by dots; ``*`` stands for one word and ``#`` for any number of them, none included, as in AMQP.
    """
    words = key.split(".")
    if set(words) == {"#"}:
        return None
    found = ""
    glue = ""
    for word in words:
        if word == "#":
            # With words before it, each of its own brings its dot along; at the front each has one behind it.
            found += "(.[^.]*)*" if glue else "([^.]*.)*"
            continue
        inner = "[^.]*" if word == "*" else re.sub(r"([\[\]()|^\-+*%_?{}\\])", r"\\\1", word)
        found += glue + inner
        glue = "."
    return found
