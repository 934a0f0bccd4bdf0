"""The SQL of fbtasks, in files: numbered migrations, packages, named queries, what roles may do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

_TEXT: Final = re.compile(
    r"--[^\n]*|/\*.*?\*/|\"[^\"]*\""
    r"|\b(?:TIMESTAMP|DATE|TIME|X|_\w+)\s*'(?:[^']|'')*'"
    r"|(?P<text>'(?:[^']|'')*')",
    re.IGNORECASE | re.DOTALL,
)
"""Comments, quoted names, texts that say of what type they are, and those that do not."""
_TERMINATOR: Final = re.compile(r"\s*SET\s+TERM\s+(\S+)\s+(\S+)\s*", re.IGNORECASE)
_TABLE: Final = re.compile(r"CREATE (?:GLOBAL TEMPORARY )?TABLE\b")
_CREATE: Final = re.compile(
    r"CREATE (?:OR ALTER |GLOBAL TEMPORARY |UNIQUE |DESCENDING )?"
    r"(TABLE|VIEW|INDEX|PACKAGE BODY|PACKAGE|PROCEDURE|FUNCTION|SEQUENCE|DOMAIN|EXCEPTION|TRIGGER) (\w+)"
)


_PACKAGE: Final = re.compile(r"\b(FBTASKS_(?!TASKS\b)[A-Z_]+)(?=\.[A-Z_]+\b)")


class Migration(NamedTuple):
    """One numbered change of the schema."""

    version: int
    name: str
    script: str


class Made(NamedTuple):
    """An object of the database that a script makes."""

    kind: str
    """TABLE, VIEW, INDEX, CONSTRAINT, PACKAGE, PACKAGE BODY, FUNCTION, SEQUENCE, DOMAIN, EXCEPTION or TRIGGER."""
    name: str


class Step(NamedTuple):
    """One transaction of a migration."""

    version: int
    number: int
    """From 1, within the migration."""
    statements: tuple[str, ...]

    @property
    def made(self) -> set[Made]:
        """What it makes."""
        return {each for statement in self.statements for each in made(statement)}


class Grant(NamedTuple):
    """An object of ``grants.sql``, and what some roles may do with it."""

    privilege: str
    """EXECUTE or SELECT."""
    kind: str
    """PACKAGE or TABLE."""
    name: str
    """The name of the table, or of the package without its generation."""
    roles: tuple[str, ...]


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations, in the order in which they are applied."""
    found = []
    for entry in (files("fbtasks.queue") / "schema" / "migrations").iterdir():
        match = re.fullmatch(r"(\d{4})_(\w+)\.sql", entry.name)
        if match:
            found.append(Migration(int(match[1]), match[2], typed(entry.read_text("utf-8"))))
    return tuple(sorted(found))


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
def steps() -> tuple[Step, ...]:
    """The steps of all migrations, in their order."""
    return tuple(
        Step(migration.version, number, found)
        for migration in migrations()
        for number, found in enumerate(transactions(migration.script), 1)
    )


def made(statement: str) -> Iterator[Made]:
    """What a statement of a script makes: an object, and the named constraints in it."""
    match = _CREATE.match(statement)
    assert match or not statement.startswith(("CREATE", "RECREATE")), statement
    if match:
        yield Made(match[1], match[2])
    if "TABLE" in statement.partition("(")[0]:
        for name in re.findall(r"\bCONSTRAINT (\w+)", re.sub("--.*", "", statement)):
            yield Made("CONSTRAINT", name)


def named_queries(generation: int) -> dict[str, str]:
    """The queries of ``queries.sql``, each below a line ``-- name: NAME``, with the packages of a generation."""
    text = numbered(typed((files("fbtasks.queue") / "schema" / "queries.sql").read_text("utf-8")), generation)
    parts = re.split(r"^-- name: (\w+)\s*$", text, flags=re.MULTILINE)
    return {name: body.strip().rstrip(";") for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@cache
def grants() -> tuple[Grant, ...]:
    """What each role may do, as ``grants.sql`` says."""
    text = (files("fbtasks.queue") / "schema" / "grants.sql").read_text("utf-8")
    found = []
    for statement in statements(text):
        match = re.fullmatch(r"GRANT (EXECUTE|SELECT) ON (PACKAGE|TABLE)\s([\w\s,]+)\sTO ([\w, ]+)", statement)
        assert match, statement
        roles = tuple(match[4].split(", "))
        found += [Grant(match[1], match[2], name, roles) for name in re.findall(r"\w+", match[3])]
    return tuple(found)
