"""Compares the SQL of features with what the database has of them.

Of a feature of this distribution each generation has packages. Another one has a package that is made once, with the
version of the feature behind its name: so a migration by an app that lacks the feature goes on calling it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks.database import hooks, packages
from fbtasks.database.hooks import Answering
from fbtasks.database.schema import Part, grants, ours, version
from fbtasks.errors import ConfigurationError, SchemaError
from fbtasks.feature import Feature
from fbtasks.firebird.session import Session

_OF_A_GENERATION: Final = re.compile(r"\bFBTASKS_(?!TASKS\b)\w+(?=\.)")


class Row(NamedTuple):
    """A feature as the database has it."""

    version: int
    """The number of the last of its migrations that was done."""
    hooks: frozenset[str]
    """Those that are called."""
    package: str | None
    """The name of its package; of a feature of this distribution without the generation. None: it is being made."""
    is_there: bool
    """Whether that package is there."""

    @property
    def is_ours(self) -> bool:
        """Whether it is a feature of this distribution."""
        return self.package is not None and self.package.startswith("FBTASKS_")


def rows(session: Session) -> dict[str, Row]:
    """Returns the features that the database has, by their names."""
    return {
        name: Row(number, frozenset(answered.split()), package, bool(is_there))
        for name, number, answered, package, is_there in session.read("features", more=" ")
    }


def parts(features: Iterable[Feature]) -> tuple[Part, ...]:
    """Returns the SQL of *features*. Raises :class:`ConfigurationError` for a folder that cannot be one."""
    return tuple(part for each in features if (part := _part(each)) is not None)


def _part(feature: Feature) -> Part | None:
    folder = getattr(feature, "schema", None)
    declared = frozenset(getattr(feature, "hooks", ()))
    if unknown := declared - set(hooks.hooks()):
        raise ConfigurationError(
            f"the feature {feature.name!r} answers {min(unknown)}, which is no hook. Hooks: {', '.join(hooks.hooks())}."
        )
    if folder is None:
        if declared:
            raise ConfigurationError(f"the feature {feature.name!r} answers hooks, and has no schema= with a package.")
        return None
    part = Part(feature.name, Path(folder))
    if not part.is_ours:
        _check(part, declared)
    return part


def _check(part: Part, declared: frozenset[str]) -> None:
    """Raises :class:`ConfigurationError` for what the feature of another distribution may not have in its folder."""
    feature = f"the feature {part.name!r}"
    if not version(part):
        raise ConfigurationError(f"{feature} has no migrations/NNNN_NAME.sql in {part.folder}.")
    texts = [re.sub(r"--.*", "", part.text(name)) for name in part.names("packages")]
    if called := [each for text in texts for each in _OF_A_GENERATION.findall(text)]:
        raise ConfigurationError(
            f"the package of {feature} names {called[0]}, which each generation of packages has "
            "under another name. It may call FBTASKS and FBTASKS_TASKS."
        )
    name = part.name.upper()
    if others := set(packages.packages(part)) - {name}:
        raise ConfigurationError(f"{feature} has a package {min(others)}: it may have {name} alone.")
    found = packages.answered(part, name)
    if lacking := declared - found:
        raise ConfigurationError(f"the package of {feature} has no procedure {min(lacking)}.")
    if more := found - declared:
        raise ConfigurationError(f"the package of {feature} answers {min(more)}, which is not among its hooks.")
    for file, routine in packages.files(part):
        if routine.name in declared and _one_line(routine.head) != _one_line(hooks.hooks()[routine.name].head):
            raise ConfigurationError(
                f"{file}: {routine.name} of {feature} must begin with\n{hooks.hooks()[routine.name].head}\nAS"
            )
    for line in grants(part):
        if line.name.startswith(("QUEUE_", "FBTASKS")):
            raise ConfigurationError(f"{part.folder}/grants.sql: {line.name} is not of {feature}.")


def _one_line(head: str) -> str:
    """*head* as it can be compared: without comments, and spaces where none are needed."""
    return re.sub(r"\s*([(),])\s*", r"\1", " ".join(re.sub(r"--.*|/\*[\s\S]*?\*/", "", head).upper().split()))


def answering(part: Part) -> Answering:
    """Returns a feature as a row of QUEUE_FEATURE."""
    return Answering(part.name, packages.answered(part, _base(part)), package_name(part))


def package_name(part: Part) -> str:
    """Returns the name of the package with a feature's hooks, of this distribution without the generation."""
    return _base(part) if part.is_ours else f"{_base(part)}_{version(part)}"


def _base(part: Part) -> str:
    return f"FBTASKS_{part.name.upper()}" if part.is_ours else part.name.upper()


def of_the_database(known: Iterable[Part], there: Iterable[str]) -> tuple[Part, ...]:
    """Returns *known*, and what this distribution has of features of these names, in the order of the names."""
    found = {each.name: each for each in ours() if each.name in there}
    return tuple(sorted({**found, **{each.name: each for each in known}}.values()))


def missing(session: Session, there: dict[str, Row], wanted: Iterable[Part]) -> list[Part]:
    """Returns those that the database has in an older version, or not. Raises :class:`SchemaError` for a later one."""
    found = []
    for part in wanted:
        row = there.get(part.name)
        if row is not None and row.version > version(part):
            raise SchemaError(
                f"The feature {part.name} has version {row.version} in {session.url}, and this app knows versions up "
                f"to {version(part)}. Upgrade it here."
            )
        if row is None or row.version < version(part) or row.package != package_name(part):
            found.append(part)
    return found


def check(session: Session, lacking: Iterable[Part]) -> None:
    """Raises :class:`SchemaError` for a feature that the database lacks."""
    for part in lacking:
        raise SchemaError(
            f"{session.url} has no feature {part.name} of version {version(part)}. Run: fbtasks migrate -A MODULE"
        )


def package(session: Session, part: Part) -> tuple[str, ...]:
    """Returns the statements that make the package of another distribution's feature; none: it is there, or has none.

    Raises :class:`SchemaError` when it is there with another text.
    """
    statements = new_package(part)
    found = session.read("package_source", package_name(part), more=" ") if statements else []
    if not found:
        return statements
    sources = packages.package_sources(packages.packages(part)[_base(part)])
    if tuple(map(_words, found[0])) != tuple(map(_words, sources)):
        raise SchemaError(
            f"{session.url} has the feature {part.name} of version {version(part)} with another text of its "
            "package. Give it a migration of the next number, which may have a comment alone."
        )
    return ()


def new_package(part: Part) -> tuple[str, ...]:
    """Returns the statements that make the package of another distribution's feature; none: it has none."""
    routines = () if part.is_ours else packages.packages(part).get(_base(part), ())
    if not routines:
        return ()
    name = package_name(part)
    header, body = packages.package_sources(routines)
    return f"CREATE PACKAGE {name}\nSQL SECURITY DEFINER\nAS\n{header}", f"CREATE PACKAGE BODY {name}\nAS\n{body}"


def _words(text: object) -> str:
    return " ".join(str(text).split())
