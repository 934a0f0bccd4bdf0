"""What a migration would run, as a script for whoever must read it, and may run it with isql."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks.database import features, generations, grants, migrate
from fbtasks.database.packages import queries
from fbtasks.database.schema import CORE, Part, Step, migrations
from fbtasks.firebird.session import Session

_TERMINATORS: Final = ("^", "!!", "@@")
_HEAD: Final = """\
-- {title}
-- For isql, connected as the owner of the database with the character set UTF8. The first error ends it: what is
-- committed by then stays, and the rest is in: fbtasks migrate --sql
SET SQL DIALECT 3;
SET BAIL ON;
SET AUTODDL OFF;
SET TERM {end} ;
"""


class Script(NamedTuple):
    """The statements of a migration."""

    transactions: Sequence[Sequence[str]]
    """Those of each transaction. None at all: there is nothing to do."""

    @property
    def statements(self) -> list[str]:
        """All of them, each transaction with its COMMIT."""
        return [statement for each in self.transactions for statement in (*each, "COMMIT")]

    def text(self, title: str) -> str:
        """Returns the script, below a comment with the *title*."""
        end = next(each for each in _TERMINATORS if not any(each in statement for statement in self.statements))
        body = "".join(f"\n{statement}{end}\n" for statement in self.statements)
        return f"{_HEAD.format(title=title, end=end)}{body}\nSET TERM ; {end}"


def script(session: Session | None, wanted: Sequence[Part] = ()) -> Script:
    """Returns what :func:`fbtasks.database.migrate.migrate` would run. Nothing is changed.

    *session*: None for a database that is not there yet. *wanted* are the features that it is to have. Raises
    :class:`SchemaError` where the migration would.
    """
    found = [each for each in _transactions(session, wanted) if each]
    return Script(found)


def _transactions(session: Session | None, wanted: Sequence[Part]) -> Iterator[list[str]]:
    version = None if session is None else migrate.current_version(session)
    if session is not None and version is not None and version > migrate.latest_version():
        migrate.check(session, version)  # raises
    ledger = set() if session is None else migrate.read_ledger(session)
    there = features.rows(session) if session is not None and "QUEUE_FEATURE" in ledger else {}
    parts = features.of_the_database(wanted, there)
    if session is not None:
        features.missing(session, there, parts)  # raises
    if version is None:
        yield [queries()["schema_create"]]
        yield [_filled("schema_applied", 0, "ledger")]
    pending = migrate.pending(session, [CORE, *parts])
    if pending and "QUEUE_SCHEMA_STEP" not in ledger:
        yield [queries()["schema_steps_create"]]
    for step in pending:
        yield [*step.statements, *_done(step)]
    for part in parts:
        yield list(features.new_package(part) if session is None else features.package(session, part))
    number, text = (session and generations.last(session)) or (0, "")
    plan = generations.planned(_with_steps(there, pending), parts)
    packages: list[str] = []
    noted = [_filled("feature_answers", *generations.note(each)) for each in plan.new]
    if text == plan.hash:
        yield noted
    else:
        number += 1
        packages = plan.sources(number)
        yield [queries()["next_generation"], *packages]
        yield [*plan.switches(number), *noted, _filled("set_generation", number, plan.hash)]
    if session is not None:
        yield grants.changes(session, wanted, _made(pending, packages))
    applied = [each for each in migrations() if each > (version or 0)]
    rows = [_filled("schema_applied", each, Path(migrations()[each]).stem[5:]) for each in applied]
    if applied and not (version and session and session.read("identity")):
        rows += [queries()["adopt"], queries(number)["adopt_all"]]
    yield rows


def _done(step: Step) -> Iterator[str]:
    yield _filled("schema_step_done", step.feature, step.version, step.number)
    if step.feature and step.is_last:
        yield _filled("feature_migrated", step.feature, step.version)


def _with_steps(there: dict[str, features.Row], pending: Iterable[Step]) -> dict[str, features.Row]:
    """Returns the features of the database as they are when *pending* steps are done."""
    new = {
        step.feature: features.Row(step.version, frozenset(), None, is_there=False)
        for step in pending
        if step.feature and step.feature not in there
    }
    return {**new, **there}


def _made(pending: Iterable[Step], packages: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the objects that roles may have rights on."""
    for step in pending:
        yield from (("TABLE" if each.kind in ("TABLE", "VIEW") else each.kind, each.name) for each in step.made)
    for statement in packages:
        if match := re.match(r"CREATE PACKAGE (?!BODY )(\w+)", statement):
            yield "PACKAGE", match[1]


def _filled(query: str, *values: str | int) -> str:
    """Returns a query with *values* in the place of its parameters."""
    parts = queries()[query].split("?")
    texts = [str(each) if isinstance(each, int) else "'" + each.replace("'", "''") + "'" for each in values]
    return "".join(part + text for part, text in zip(parts, [*texts, ""], strict=True))
