"""The packages of the queue, each written once in ``packages``, made in the database with the number of a generation.

A file has sections, ``PACKAGE NAME``, and what is in them goes to that package, whichever file it stands in. A header
is made of the heads of its procedures and functions, but of those that begin with ``PRIVATE``, which the package alone
may call. Beside them stands FBTASKS_HOOKS (see ``hooks.py``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from fbtasks.sql import hooks, numbered, statements, typed
from fbtasks.sql.hooks import Answering

_SECTION: Final = re.compile(r"PACKAGE (\w+)")
_ROUTINE: Final = re.compile(r"(PRIVATE )?((PROCEDURE|FUNCTION) (\w+).*?)\nAS\b(.*)", re.DOTALL)
_DEFAULT: Final = re.compile(r"\s*=\s*(?:_ASCII )?(?:'[^']*'|-?\w+)")


class Routine(NamedTuple):
    """A procedure or a function of a package."""

    kind: str
    """PROCEDURE or FUNCTION."""
    name: str
    head: str
    """Its name, parameters and results."""
    body: str
    private: bool


@cache
def packages() -> Mapping[str, tuple[Routine, ...]]:
    """The routines of each package."""
    entries = sorted((files(__package__) / "packages").iterdir(), key=lambda each: each.name)
    found = sections((entry.name, typed(entry.read_text("utf-8"))) for entry in entries)
    return {name: tuple(routines) for name, routines in found.items()}


def sections(texts: Iterable[tuple[str, str]]) -> dict[str, list[Routine]]:
    """Returns the routines of each package in files, of which each is a name and the text."""
    found: dict[str, list[Routine]] = {}
    for name, text in texts:
        section: list[Routine] | None = None
        for statement in statements(text):
            if match := _SECTION.fullmatch(statement):
                section = found.setdefault(match[1], [])
                continue
            match = _ROUTINE.fullmatch(statement)
            assert match is not None, f"{name}: {statement:.80}"
            assert section is not None, f"{name}: {match[4]} stands before the first package"
            section.append(Routine(match[3], match[4], match[2], match[5], bool(match[1])))
    return found


@cache
def triggers() -> tuple[str, ...]:
    """The triggers that call packages."""
    return tuple(statements(typed((files(__package__) / "triggers.sql").read_text("utf-8"))))


def headers(generation: int, features: Iterable[Answering]) -> Iterator[str]:
    """Yields the statements that make the headers, in a database that has *features*."""
    for name, routines in with_hooks(features).items():
        header, _ = package_sources(routines)
        yield numbered(f"CREATE PACKAGE {name}_{generation}\nSQL SECURITY DEFINER\nAS\n{header}", generation)


def bodies(generation: int, features: Iterable[Answering]) -> Iterator[str]:
    """Yields the statements that make the bodies, for which all headers must be there."""
    for name, routines in with_hooks(features).items():
        _, body = package_sources(routines)
        yield numbered(f"CREATE PACKAGE BODY {name}_{generation}\nAS\n{body}", generation)


def package_sources(routines: Iterable[Routine]) -> tuple[str, str]:
    """Returns the header and the body of a package, behind ``AS``."""
    heads = "".join(f"    {each.head};\n" for each in routines if not each.private)
    declared = "".join(f"    {each.head};\n" for each in routines if each.private)
    defined = "".join(f"{_without_defaults(each.head)}\nAS{each.body}\n" for each in routines)
    return f"BEGIN\n{heads}END", f"BEGIN\n{declared}{defined}END"


def with_hooks(features: Iterable[Answering]) -> Mapping[str, tuple[Routine, ...]]:
    """Returns the routines of each package, of FBTASKS_HOOKS as well, in a database that has *features*."""
    found = hooks.procedures(_there(features))
    called = (Routine("PROCEDURE", hook.name, hook.head, f"\n{body}", private=False) for hook, body in found)
    return {**packages(), hooks.PACKAGE: tuple(called)}


def _there(features: Iterable[Answering]) -> Iterator[Answering]:
    """Yields *features* with those hooks that this release has a procedure for, where their packages are its own."""
    own = packages()
    for each in features:
        if not each.is_ours:
            yield each
        elif each.package in own:
            yield each._replace(hooks=each.hooks & {routine.name for routine in own[each.package]})


def _without_defaults(head: str) -> str:
    return _DEFAULT.sub("", head)
