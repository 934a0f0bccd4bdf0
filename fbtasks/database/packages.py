"""The packages of the queue, each written once in ``packages``, made in the database with the number of a generation.

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
from importlib.resources import files
from typing import Final, NamedTuple

from fbtasks.database import hooks
from fbtasks.database.hooks import Answering
from fbtasks.database.schema import named_queries, numbered, statements, typed

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
        for package, each in _routines()
        if each.kind == "PROCEDURE" and not each.private
    }


@cache
def packages() -> Mapping[str, tuple[Routine, ...]]:
    """The routines of each package."""
    entries = sorted((files("fbtasks.queue") / "schema" / "packages").iterdir(), key=lambda each: each.name)
    found = sections((entry.name, typed(entry.read_text("utf-8"))) for entry in entries)
    return {name: tuple(routines) for name, routines in found.items()}


def sections(texts: Iterable[tuple[str, str]]) -> dict[str, list[Routine]]:
    """Returns the routines of each package in files, of which each is a name and the text."""
    found: dict[str, list[Routine]] = {}
    for name, text in texts:
        for package, each in _parts(name, text):
            found.setdefault(package, []).append(each)
    return found


def _routines() -> Iterator[tuple[str, Routine]]:
    """Yields the name of a package, and a routine of it as it is written."""
    for entry in sorted((files("fbtasks.queue") / "schema" / "packages").iterdir(), key=lambda each: each.name):
        yield from _parts(entry.name, entry.read_text("utf-8"))


def _parts(name: str, text: str) -> Iterator[tuple[str, Routine]]:
    """Yields the name of a package, and a routine of it, of the file *name*."""
    package = ""
    text, _, _ = text.partition("^\n\nSET TERM ; ^")
    for part in text.split("^\n"):
        match = _PART.search(part)
        assert match is not None, f"{name}: {part:.80}"
        package = match["package"] or package
        assert package, f"{name}: {match['name']} stands before the first package"
        if match["name"]:
            yield package, Routine(match["kind"], match["name"], match["head"], match["body"], bool(match["private"]))


@cache
def triggers() -> tuple[str, ...]:
    """The triggers that call packages."""
    return tuple(statements(typed((files("fbtasks.queue") / "schema" / "triggers.sql").read_text("utf-8"))))


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
