"""Examines a database: the engine first, then the schema, and the queue where that can be used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

from fbtasks.database.database import Database
from fbtasks.errors import FBTasksError
from fbtasks.queue.operations.doctor import engine, work
from fbtasks.queue.operations.doctor.finding import Finding, Level, error, finding, run


def examine(database: Database, *, fix: bool = False) -> list[Finding]:
    """Returns what each check finds. Nothing is created or migrated.

    *fix*: what can be repaired without a change of data is repaired.
    """
    return list(_examine(database, fix=fix))


def _examine(database: Database, *, fix: bool) -> Iterator[Finding]:
    try:
        session = database.open_as_it_is()
    except FBTasksError as refused:
        yield finding("connection", error(str(refused)))
        return
    with closing(session):
        about = engine.Engine(database, session)
        found = list(run(engine.CHECKS, about, fix=fix))
        yield from found
        if not any(each.id == "schema" and each.level is Level.ERROR for each in found):
            yield from run(engine.OF_THE_SCHEMA, about, fix=fix)
            yield from run(work.checks(database), work.Work(database, session), fix=fix)
