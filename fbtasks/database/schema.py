"""The SQL of the core and of features, each in a folder of files.

``migrations/NNNN_NAME.sql`` make tables; ``packages/*.sql`` are made with each generation of packages, as are
``triggers.sql``, which call them; ``queries.sql`` has named queries, and ``grants.sql`` what roles may do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks.errors import ConfigurationError

_TEXT: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/|\"[^\"]*\""
    r"|\b(?:TIMESTAMP|DATE|TIME|X|_\w+)\s*'(?:[^']|'')*'"
    r"|(?P<text>'(?:[^']|'')*')",
    re.IGNORECASE | re.DOTALL,
)
"""Comments, quoted names, texts that say of what type they are, and those that do not."""
_TERMINATOR: Final = re.compile(r"\s*SET\s+TERM\s+(\S+)\s+(\S+)\s*", re.IGNORECASE)
_TABLE: Final = re.compile(r"CREATE\s+(?:GLOBAL\s+TEMPORARY\s+)?TABLE\b", re.IGNORECASE)
_CREATE: Final = re.compile(
    r"CREATE\s+(?:OR\s+ALTER\s+|GLOBAL\s+TEMPORARY\s+|UNIQUE\s+|(?:ASC|DESC)(?:ENDING)?\s+)*"
    r"(TABLE|VIEW|INDEX|PACKAGE BODY|PACKAGE|PROCEDURE|FUNCTION|SEQUENCE|DOMAIN|EXCEPTION|TRIGGER)\s+(\w+)",
    re.IGNORECASE,
)


_GRANT: Final = re.compile(
    r"GRANT (EXECUTE(?= ON P)|(?:(?:SELECT|INSERT|UPDATE|DELETE)(?:, |(?= ON T)))+) ON (PACKAGE|TABLE)\s([\w\s,]+)\s"
    r"TO ((?:FBTASKS_(?:PRODUCER|WORKER|OPERATOR|VIEWER)(?:,\s*)?)+)"
)
_PACKAGE: Final = re.compile(r"\b(FBTASKS_(?!TASKS\b)[A-Z_]+)(?=\.[A-Z_]+\b)")


_ROOT: Final = Path(__file__).parents[1]


class Part(NamedTuple):
    """The SQL of the core, or of a feature."""

    name: str
    """That of the feature; empty for the core."""
    folder: Path

    @property
    def is_ours(self) -> bool:
        """Whether it is of this distribution: then each generation has packages of it."""
        return self.folder.is_relative_to(_ROOT)

    def text(self, name: str) -> str:
        """What is in one of its files, which it may lack. Of ours, texts are marked: see :func:`typed`."""
        return typed(self.read(name)) if self.is_ours else self.read(name)

    def read(self, name: str) -> str:
        """Returns the text of one of its files as it is written."""
        path = self.folder / name
        return path.read_text("utf-8") if path.is_file() else ""

    def names(self, folder: str) -> list[str]:
        """The files of one of its folders, which it may lack, in their order."""
        return sorted(f"{folder}/{path.name}" for path in (self.folder / folder).glob("*.sql"))


CORE: Final = Part("", _ROOT / "queue" / "schema")


@cache
def ours() -> tuple[Part, ...]:
    """The core, and the features of this distribution, whoever has them."""
    folders = [folder for room in ("features", "contrib") for folder in (_ROOT / room).glob("*/schema")]
    return (CORE, *sorted(Part(folder.parent.name, folder) for folder in folders))


class Made(NamedTuple):
    """An object of the database that a script makes."""

    kind: str
    """TABLE, VIEW, INDEX, CONSTRAINT, PACKAGE, PACKAGE BODY, FUNCTION, SEQUENCE, DOMAIN, EXCEPTION or TRIGGER."""
    name: str


class Step(NamedTuple):
    """One transaction of a migration."""

    feature: str
    """Empty for the core."""
    version: int
    number: int
    """From 1, within the migration."""
    statements: tuple[str, ...]
    is_last: bool
    """Whether it ends the migration."""
    file: Path

    @property
    def made(self) -> set[Made]:
        """What it makes."""
        return {each for statement in self.statements for each in made(statement)}


class Right(NamedTuple):
    """One right of one role."""

    privilege: str
    """EXECUTE or SELECT, and of a table of another distribution INSERT, UPDATE or DELETE."""
    kind: str
    """PACKAGE or TABLE."""
    name: str
    """The name of the table, or of the package; in a ``grants.sql`` without its generation."""
    role: str

    @property
    def grant(self) -> str:
        """The statement that grants it."""
        return f"GRANT {self.privilege} ON {self.kind} {self.name} TO ROLE {self.role}"

    @property
    def revoke(self) -> str:
        """The statement that revokes it."""
        return f"REVOKE {self.privilege} ON {self.kind} {self.name} FROM ROLE {self.role}"


@cache
def migrations(part: Part = CORE) -> Mapping[int, str]:
    """The files of the migrations of a part, by number, in the order in which they are applied."""
    found = (re.fullmatch(r"migrations/(\d{4})_\w+\.sql", name) for name in part.names("migrations"))
    return {int(match[1]): match[0] for match in found if match}


def version(part: Part) -> int:
    """The number of its last migration; 0: it has none."""
    return max(migrations(part), default=0)


def typed(sql: str) -> str:
    """*sql* with each text in it marked as ASCII: ``'a'`` is ``_ASCII 'a'`` then.

    Otherwise a text has the character set of the connection and its default collation, and the engine compares a column
    with it by that one: where it takes no notice of case, ``KIND = 'K'`` holds for a ``k`` as well. ASCII has but one
    collation, which compares bytes.
    """
    return _TEXT.sub(lambda found: f"_ASCII {found[0]}" if found["text"] else found[0], sql)


def numbered(sql: str, generation: int) -> str:
    """*sql* with the packages of a generation in the place of those that it names: FBTASKS_CORE is FBTASKS_CORE_7.

    THIS_GENERATION is the number itself.
    """
    return _PACKAGE.sub(rf"\1_{generation}", sql).replace("THIS_GENERATION", str(generation))


def statements(script: str) -> Iterator[str]:
    """The statements of a script, split where isql would split them (``SET TERM`` is obeyed)."""
    terminator = ";"
    lines: list[str] = []
    for line in script.splitlines():
        if change := _TERMINATOR.fullmatch(line):
            terminator = change[1]
        elif line.rstrip().endswith(terminator):
            lines.append(line.rstrip()[: -len(terminator)])
            yield "\n".join(lines).strip()
            lines = []
        elif lines or (line.strip() and not line.lstrip().startswith("--")):
            lines.append(line)


def transactions(script: str) -> Iterator[tuple[str, ...]]:
    """The statements of a script by transaction: each ends with a statement ``COMMIT``, the last with the script.

    ``CREATE TABLE`` begins one as well: a process that is killed in a commit leaves something for each table in it.
    """
    found: list[str] = []
    for statement in (*statements(script), "COMMIT"):
        if found and (statement == "COMMIT" or _TABLE.match(statement)):
            yield tuple(found)
            found = []
        if statement != "COMMIT":
            found.append(statement)


@cache
def steps(part: Part = CORE) -> tuple[Step, ...]:
    """The steps of the migrations of a part, in their order."""
    found = []
    for number, name in migrations(part).items():
        parts = list(transactions(part.text(name))) or [()]  # a migration may have a comment alone
        file = part.folder / name
        found += [Step(part.name, number, n, each, n == len(parts), file) for n, each in enumerate(parts, 1)]
    return tuple(found)


def made(statement: str) -> Iterator[Made]:
    """Returns what a statement of a script creates: an object, and the named constraints in it."""
    if match := _CREATE.match(statement):
        yield Made(match[1].upper(), match[2].upper())
    if "TABLE" in statement.partition("(")[0].upper():
        for name in re.findall(r"(?i)\bCONSTRAINT\s+(\w+)", re.sub("--.*", "", statement)):
            yield Made("CONSTRAINT", name.upper())


def named_queries(generation: int) -> dict[str, str]:
    """The queries of this distribution, each below a line ``-- name: NAME``, with the packages of a generation."""
    text = numbered("\n".join(part.text("queries.sql") for part in ours()), generation)
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def grants(*parts: Part) -> tuple[Right, ...]:
    """Returns the grants of each role, of *parts*; of all of this distribution when none is given.

    Raises :class:`ConfigurationError` for a file that cannot be one.
    """
    found = []
    given = ((each.folder, line) for each in parts or ours() for line in statements(each.text("grants.sql")))
    for folder, statement in given:
        match = _GRANT.fullmatch(statement)
        if match is None:
            raise ConfigurationError(
                f"{folder}/grants.sql may have GRANT EXECUTE ON PACKAGE NAME TO ROLE, and GRANT SELECT, INSERT, "
                "UPDATE, DELETE ON TABLE NAME TO ROLE, of the roles FBTASKS_PRODUCER, FBTASKS_WORKER, "
                f"FBTASKS_OPERATOR and FBTASKS_VIEWER, and has: {' '.join(statement.split()):.80}"
            )
        privileges, names, roles = (tuple(re.findall(r"\w+", match[group])) for group in (1, 3, 4))
        found += [Right(each, match[2], name, role) for each in privileges for name in names for role in roles]
    return tuple(found)
