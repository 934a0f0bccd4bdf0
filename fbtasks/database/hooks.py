"""The package FBTASKS_HOOKS: what the core calls of features, generated from the features that a database has.

``hooks.sql`` declares the hooks. A feature answers one with a procedure of the same name, parameters and results in its
package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from textwrap import wrap
from typing import Final, NamedTuple

from fbtasks.database.schema import CORE, statements

PACKAGE: Final = "FBTASKS_HOOKS"
_HOOK: Final = re.compile(r"HOOK (\w+)(?: \((.*?)\))?(?:\nRETURNS \((.*)\))?", re.DOTALL)
_COMMA: Final = re.compile(r",\s+")
_MERGED: Final = {
    "GREATEST": "COALESCE(MAXVALUE({0}, ONE_{0}), {0}, ONE_{0})",
    "LEAST": "COALESCE(MINVALUE({0}, ONE_{0}), {0}, ONE_{0})",
    "SUM": "COALESCE({0} + ONE_{0}, {0}, ONE_{0})",
}
"""By word, what a result becomes by one more answer."""
_CARRIED: Final = "EXISTS(SELECT 1 FROM QUEUE_EXTRA E WHERE E.TASK_ID = :ID AND E.FEATURE = _ASCII '{}')"
_WIDTH: Final = 120


class Answering(NamedTuple):
    """A row of QUEUE_FEATURE."""

    name: str
    hooks: frozenset[str]
    """The names of those that its package answers."""
    package: str
    """Its name; of a feature in this distribution without the generation."""

    @property
    def is_ours(self) -> bool:
        """Whether it is of this distribution: then each generation has packages of it."""
        return self.package.startswith("FBTASKS_")


class Result(NamedTuple):
    """A result of a hook."""

    name: str
    kind: str
    word: str
    """What several answers make, as ``hooks.sql`` says; empty for one that goes by the first result."""


class Hook(NamedTuple):
    """A hook, as ``hooks.sql`` declares it."""

    name: str
    parameters: tuple[str, ...]
    results: tuple[Result, ...]

    @property
    def is_of_a_task(self) -> bool:
        """Whether it is about one task."""
        return self.parameters[:1] == ("ID BIGINT",)

    @property
    def head(self) -> str:
        """Its name, parameters and results, as a procedure has them."""
        given = f" ({', '.join(self.parameters)})" if self.parameters else ""
        results = ", ".join(f"{each.name} {each.kind}" for each in self.results)
        return "\n".join((*_lines(f"PROCEDURE {self.name}{given}"), *_lines(f"RETURNS ({results})" if results else "")))

    def body(self, answering: Sequence[Answering]) -> str:
        """Returns the body of the procedure that calls these features, from ``DECLARE`` or ``BEGIN`` on."""
        asks_first = any(each.word == "FIRST" for each in self.results)
        merges = len(answering) > 1 and bool(self.results) and not asks_first
        lines = [f"    DECLARE ONE_{each.name} {each.kind};" for each in self.results] if merges else []
        lines.append("BEGIN")
        for number, feature in enumerate(answering):
            if number and asks_first:
                lines += [f"    IF ({self.results[0].name} IS NOT NULL) THEN", "        EXIT;"]
            indent = "    "
            if self.is_of_a_task and not feature.is_ours:
                lines.append(f"    IF ({_CARRIED.format(feature.name)}) THEN")
                indent = "        "
            lines += _lines(self._call(feature, "ONE_" if number and merges else ""), indent)
            if number and merges:
                lines += [f"    {each.name} = {_MERGED[each.word].format(each.name)};" for each in self.results]
        return "\n".join([*lines, "END"])

    def _call(self, feature: Answering, prefix: str) -> str:
        given = ", ".join(each.split()[0] for each in self.parameters)
        results = ", ".join(prefix + each.name for each in self.results)
        return (
            f"EXECUTE PROCEDURE {feature.package}.{self.name}"
            + (f"({given})" if given else "")
            + (f" RETURNING_VALUES {results};" if results else ";")
        )


def _lines(text: str, indent: str = "") -> list[str]:
    """*text* in lines, divided behind commas."""
    parts = text.replace(" ", "\0").replace(",\0", ", ").replace("\0RETURNING", " RETURNING")
    return [
        line.replace("\0", " ")
        for line in wrap(parts, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}    ")
    ]


@cache
def hooks() -> Mapping[str, Hook]:
    """Returns the hooks by name, in the order of their declarations."""
    found = {}
    for statement in statements(CORE.text("hooks.sql")):
        match = _HOOK.fullmatch(" ".join(statement.split()).replace(" RETURNS", "\nRETURNS"))
        assert match, statement
        parameters = _COMMA.split(match[2]) if match[2] else ()
        results = _COMMA.split(match[3]) if match[3] else ()
        found[match[1]] = Hook(match[1], tuple(map(str.strip, parameters)), tuple(map(_result, results)))
    return found


def _result(text: str) -> Result:
    name, _, kind = text.strip().partition(" ")
    head, _, word = kind.rpartition(" ")
    return Result(name, head, word) if word == "FIRST" or word in _MERGED else Result(name, kind, "")


def procedures(features: Iterable[Answering]) -> Iterator[tuple[Hook, str]]:
    """Yields each hook with the body that it has for *features*, which are asked in the order of their names."""
    in_order = sorted(features)
    for hook in hooks().values():
        yield hook, hook.body([each for each in in_order if hook.name in each.hooks])
