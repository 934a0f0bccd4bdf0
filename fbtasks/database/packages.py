"""The packages of this distribution, each written once, made in the database with the number of a generation.

A file has sections, ``PACKAGE NAME``, and what is in them goes to that package, whichever file it stands in. A header
is made of the heads of its procedures and functions, but of those that begin with ``PRIVATE``, which the package alone
may call. Beside them stands FBTASKS_HOOKS (see ``hooks.py``).

The statements that name packages have the number as well: the named queries, and calls of procedures, which are made of
the same heads. Python names those like ``FBTASKS_QUEUES.SET_PLACES``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks.database import hooks
from fbtasks.database.hooks import Answering
from fbtasks.database.schema import Part, named_queries, numbered, ours, statements
from fbtasks.errors import ConfigurationError

_PART: Final = re.compile(
    r"^(?:PACKAGE (?P<package>\w+)"
    r"|(?P<private>PRIVATE )?(?P<head>(?P<kind>PROCEDURE|FUNCTION) (?P<name>\w+).*?)\nAS\b(?P<body>.*))",
    re.DOTALL | re.MULTILINE,
)
_ROW_AT_END: Final = re.compile(r"(?:;|\b(?:BEGIN|END))\s*SUSPEND;\s*END\s*\Z")
_DIGITS: Final = re.compile(r"\([\d, ]+\)")
_COMMENT: Final = re.compile(r"--.*")
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

    @property
    def parameters(self) -> list[str]:
        """The names of its parameters."""
        return _names(self.head.partition("\nRETURNS")[0])

    @property
    def results(self) -> list[str]:
        """The names of its results."""
        return _names(self.head.partition("\nRETURNS")[2])

    @property
    def is_selectable(self) -> bool:
        """Whether a call may return no row or several. With SUSPEND as the last statement alone, it returns one."""
        body = _COMMENT.sub("", self.body)
        suspends = body.count("SUSPEND")
        return suspends > 1 or (suspends == 1 and ("EXIT" in body or not _ROW_AT_END.search(body[-200:])))

    def call(self, package: str) -> str:
        """The statement that calls this procedure of *package* with all of its parameters."""
        given = ", ".join("?" for _ in self.parameters)
        called = f"{package}.{self.name}({given})" if given else f"{package}.{self.name}"
        if self.is_selectable:
            return f"SELECT {', '.join(self.results)} FROM {called}"  # noqa: S608  # names of the package itself
        return f"EXECUTE PROCEDURE {called}"


def _names(declared: str) -> list[str]:
    """The names in a list in parentheses, each before its type."""
    _, _, found = _DIGITS.sub("", declared).partition("(")
    return [each.split()[0] for each in found.rpartition(")")[0].split(",")] if found else []


class _Queries(dict[str, str]):
    """Statements by name, with the packages of a generation."""

    def __init__(self, generation: int) -> None:
        super().__init__(named_queries(generation))
        self._generation = generation

    def __missing__(self, name: str) -> str:
        statement = self[name] = numbered(calls()[name], self._generation)
        return statement


@cache
def queries(generation: int = 0) -> dict[str, str]:
    """The named queries; and by its name, like FBTASKS_QUEUES.SET_PLACES, the call of a procedure."""
    return _Queries(generation)


@cache
def calls() -> Mapping[str, str]:
    """The calls of all procedures but private ones, by PACKAGE.PROCEDURE."""
    return {
        f"{package}.{each.name}": each.call(package)
        for part in ours()
        for name in part.names("packages")
        for package, _, each in _routines(part.folder / name, part.read(name))  # a call has no text to be marked
        if each.kind == "PROCEDURE" and not each.private
    }


def packages(*parts: Part) -> Mapping[str, tuple[Routine, ...]]:
    """The routines of each package in *parts*; in all of this distribution, when none is given."""
    found: dict[str, list[Routine]] = {}
    for part in parts or ours():
        for package, _, each in _sections(part):
            found.setdefault(package, []).append(each)
    return {package: tuple(routines) for package, routines in found.items()}


def files(part: Part) -> Iterator[tuple[Path, Routine]]:
    """Yields the routines of a part, each with its file."""
    return ((file, each) for _, file, each in _sections(part))


@cache
def _sections(part: Part) -> tuple[tuple[str, Path, Routine], ...]:
    """Returns the routines of a part, each with the name of its package, and its file."""
    return tuple(each for name in part.names("packages") for each in _routines(part.folder / name, part.text(name)))


def _routines(file: Path, text: str) -> Iterator[tuple[str, Path, Routine]]:
    """Yields the name of a package, and a routine of it, of a *file*. Raises :class:`ConfigurationError`."""
    package = ""
    text, _, _ = text.partition("^\n\nSET TERM ; ^")
    for part in text.split("^\n"):
        match = _PART.search(part)
        package = (match and match["package"]) or package
        if match is None or not package:
            raise ConfigurationError(
                f"{file}: after SET TERM ^ ; there must be PACKAGE NAME^, and then PROCEDURE NAME (...) AS ... END^ in "
                f"capitals, with AS at the beginning of a line; and there is: {' '.join(part.split()):.80}"
            )
        if match["name"]:
            routine = Routine(match["kind"], match["name"], match["head"], match["body"], bool(match["private"]))
            yield package, file, routine


def triggers(*parts: Part) -> tuple[str, ...]:
    """The triggers of *parts* that call packages; of all of this distribution, when none is given."""
    return tuple(each for part in parts or ours() for each in statements(part.text("triggers.sql")))


def headers(generation: int, parts: Iterable[Part], features: Iterable[Answering]) -> Iterator[str]:
    """Yields the statements that make the headers of *parts*, in a database that has *features*."""
    for name, routines in with_hooks(parts, features).items():
        header, _ = package_sources(routines)
        yield numbered(f"CREATE PACKAGE {name}_{generation}\nSQL SECURITY DEFINER\nAS\n{header}", generation)


def bodies(generation: int, parts: Iterable[Part], features: Iterable[Answering]) -> Iterator[str]:
    """Yields the statements that make the bodies, for which all headers must be there."""
    for name, routines in with_hooks(parts, features).items():
        _, body = package_sources(routines)
        yield numbered(f"CREATE PACKAGE BODY {name}_{generation}\nAS\n{body}", generation)


def package_sources(routines: Iterable[Routine]) -> tuple[str, str]:
    """Returns the header and the body of a package, behind ``AS``."""
    heads = "".join(f"    {each.head};\n" for each in routines if not each.private)
    declared = "".join(f"    {each.head};\n" for each in routines if each.private)
    defined = "".join(f"{_without_defaults(each.head)}\nAS{each.body}\n" for each in routines)
    return f"BEGIN\n{heads}END", f"BEGIN\n{declared}{defined}END"


def with_hooks(parts: Iterable[Part], features: Iterable[Answering]) -> Mapping[str, tuple[Routine, ...]]:
    """Returns the routines of each package, of FBTASKS_HOOKS as well, in a database that has *features*."""
    found = hooks.procedures(features)
    called = (Routine("PROCEDURE", hook.name, hook.head, f"\n{body}", private=False) for hook, body in found)
    return {**packages(*parts), hooks.PACKAGE: tuple(called)}


def answered(part: Part, package: str) -> frozenset[str]:
    """Returns the hooks for which a package of *part* has a procedure."""
    found = packages(part).get(package, ())
    return frozenset(each.name for each in found if not each.private) & frozenset(hooks.hooks())


def _without_defaults(head: str) -> str:
    return _DEFAULT.sub("", head)
