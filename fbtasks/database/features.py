"""The schemas of features of other distributions: read from their folders, and compared with a database.

Each numbered file is one transaction. A package is made once, with the version of its feature behind its name, and not
with each generation: so a migration by an app that lacks the feature goes on calling it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks.database import hooks, packages
from fbtasks.database.hooks import Answering
from fbtasks.database.packages import Routine
from fbtasks.database.schema import statements
from fbtasks.errors import ConfigurationError, SchemaError
from fbtasks.feature import Feature
from fbtasks.firebird.session import Session

_OF_A_GENERATION: Final = re.compile(r"\bFBTASKS_(?!TASKS\b)\w+(?=\.)")


class Schema(NamedTuple):
    """What a feature has in a database."""

    name: str
    version: int
    """The number of its last migration."""
    migrations: tuple[tuple[int, tuple[str, ...]], ...]
    """The statements of each, by number."""
    hooks: frozenset[str]
    package: str
    """The name of its package, which has the version at its end; one without hooks may have none."""
    sources: tuple[str, str]
    """The header and the body of the package, behind ``AS``; empty where it has none."""

    @property
    def answering(self) -> Answering:
        """It as a row of QUEUE_FEATURE."""
        return Answering(self.name, self.hooks, self.package)

    @property
    def statements(self) -> tuple[str, ...]:
        """What makes its package."""
        header, body = self.sources
        if not header:
            return ()
        head = f"CREATE PACKAGE {self.package}\nSQL SECURITY DEFINER\nAS\n{header}"
        return head, f"CREATE PACKAGE BODY {self.package}\nAS\n{body}"


def schema(feature: Feature) -> Schema | None:
    """Returns what *feature* has in a database; None: nothing. Raises :class:`ConfigurationError` for a bad folder."""
    folder = getattr(feature, "schema", None)
    answers = frozenset(getattr(feature, "hooks", ()))
    if unknown := answers - set(hooks.hooks()):
        raise ConfigurationError(
            f"the feature {feature.name!r} answers {min(unknown)}, which is no hook. Hooks: {', '.join(hooks.hooks())}."
        )
    if folder is None:
        if answers:
            raise ConfigurationError(f"the feature {feature.name!r} answers hooks, and has no schema= with a package.")
        return None
    migrations = tuple(_migrations(Path(folder) / "migrations"))
    if not migrations:
        raise ConfigurationError(f"the feature {feature.name!r} has no migrations/NNNN_NAME.sql in {folder}.")
    version, name = migrations[-1][0], feature.name.upper()
    routines = _package(feature, Path(folder) / "packages", name)
    if lacking := answers - {each.name for each in routines if not each.private}:
        raise ConfigurationError(f"the package of the feature {feature.name!r} has no procedure {min(lacking)}.")
    sources = packages.package_sources(routines) if routines else ("", "")
    return Schema(feature.name, version, migrations, answers, f"{name}_{version}", sources)


def _migrations(folder: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    files = sorted(folder.iterdir()) if folder.is_dir() else ()
    for path in files:
        if match := re.fullmatch(r"(\d{4})_(\w+)\.sql", path.name):
            yield int(match[1]), tuple(each for each in statements(path.read_text("utf-8")) if each != "COMMIT")


def _package(feature: Feature, folder: Path, name: str) -> tuple[Routine, ...]:
    texts = [path.read_text("utf-8") for path in sorted(folder.glob("*.sql"))] if folder.is_dir() else []
    if called := [each for text in texts for each in _OF_A_GENERATION.findall(re.sub(r"--.*", "", text))]:
        raise ConfigurationError(
            f"the package of the feature {feature.name!r} names {called[0]}, which each generation of packages has "
            "under another name. It may call FBTASKS and FBTASKS_TASKS."
        )
    found = packages.sections((str(folder), text) for text in texts)
    if others := set(found) - {name}:
        raise ConfigurationError(f"the feature {feature.name!r} has a package {min(others)}: it may have {name} alone.")
    return tuple(found.get(name, ()))


def schemas(features: Iterable[Feature]) -> list[Schema]:
    """Returns what *features* have in a database."""
    return [found for each in features if (found := schema(each)) is not None]


def is_outdated(session: Session, wanted: Schema) -> bool:
    """Whether the database has an older version of it, or none. Raises :class:`SchemaError` when it has a later one."""
    found = _row(session, wanted.name)
    if found is not None and found[0] > wanted.version:
        raise SchemaError(
            f"The feature {wanted.name} has version {found[0]} in {session.url}, and this app knows versions up to "
            f"{wanted.version}. Upgrade it here."
        )
    return found is None or found[0] < wanted.version or found[2] != wanted.package


def check(session: Session, wanted: Iterable[Schema]) -> None:
    """Raises :class:`SchemaError` unless the database has them in these versions."""
    for each in wanted:
        if is_outdated(session, each):
            raise SchemaError(
                f"{session.url} has no feature {each.name} of version {each.version}. Run: fbtasks migrate -A APP"
            )


def done(session: Session, wanted: Schema) -> int:
    """Returns the last of its migrations that was done; 0: none."""
    found = _row(session, wanted.name)
    return found[0] if found else 0


def has_package(session: Session, wanted: Schema) -> bool:
    """Whether its package is there. Raises :class:`SchemaError` when it is, and has another text."""
    found = session.read("package_source", wanted.package, more=" ")
    if found and tuple(_words(text) for text in found[0]) != tuple(map(_words, wanted.sources)):
        raise SchemaError(
            f"{session.url} has the feature {wanted.name} of version {wanted.version} with another text of its "
            "package. Give it a migration of the next number, which may have a comment alone."
        )
    return bool(found) or not wanted.statements


def _row(session: Session, name: str) -> tuple[int, str, str] | None:
    found: list[tuple[int, str, str]] = session.read("feature", name, more=" ")
    return found[0] if found else None


def _words(text: object) -> str:
    return " ".join(str(text).split())
