"""The schema: brought up to date one migration at a time, under a lock, and checked before it is used."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from fbtasks.errors import (
    ConfigurationError,
    ConflictError,
    DatabaseError,
    DuplicateKey,
    ForeignDatabaseError,
    SchemaError,
)
from fbtasks.firebird.identity import is_at
from fbtasks.firebird.session import INSERT, READ, Session, Transaction
from fbtasks.sql import migrations, transactions
from fbtasks.url import DatabaseURL

_PATIENCE: Final = 20.0
"""Seconds that a migration waits for what others have in use."""


def current_version(session: Session) -> int | None:
    """The version of the schema, 0 when it is being made, None when there is none."""
    with session.transaction(READ) as transaction:
        tables = {row[0] for row in transaction.rows("schema_tables")}
        if "QUEUE_SCHEMA" in tables:
            return int(transaction.value("schema_version") or 0)
    foreign = sorted(tables)
    if foreign:
        raise SchemaError(
            f"{session.url} has a table {foreign[0]} that fbtasks did not make, and needs that name itself. "
            "Rename yours, or give the queue a database of its own."
        )
    return None


def first_version() -> int:
    """The version that a new queue begins with."""
    return migrations()[0].version


def latest_version() -> int:
    """The version that this release works with."""
    return migrations()[-1].version


def check_charset(session: Session) -> None:
    """Raises :class:`ConfigurationError` when the database does not know the character set that the URL names."""
    charset = session.url.charset
    if charset != "UTF8" and not session.read("charset_known", charset.upper())[0][0]:
        raise ConfigurationError(
            f"{session.url} cannot be used: the database knows no CHARACTER SET {charset}. Correct charset, or leave "
            "it out for UTF8."
        )


def check(session: Session, found: int | None) -> None:
    """Raises :class:`SchemaError` unless *found* is the version of the schema that this release works with."""
    if found == latest_version():
        return
    url = session.url
    _refuse_development_version(session, found)
    if found is not None and found > latest_version():
        raise SchemaError(
            f"The schema of {url} has version {found}, and this fbtasks knows versions up to {latest_version()}. "
            "Upgrade fbtasks here."
        )
    what = "has no queue yet" if not found else f"has schema version {found}, not {latest_version()}"
    raise SchemaError(f"{url} {what}. Run: fbtasks migrate --url URL")


def _refuse_development_version(session: Session, found: int | None) -> None:
    if found and found < first_version():
        raise SchemaError(
            f"{session.url} has schema version {found}, of a development version before the first release. Those are "
            "not migrated: let that version's workers finish what is queued, and give this one a new database."
        )


def migrate(session: Session) -> list[int]:
    """Brings the schema up to date. Returns the versions that this call applied.

    Safe when many processes start at once: the first row of QUEUE_SCHEMA is the lock that lets one work while
    the others wait. Raises :class:`SchemaError` when the database cannot hold the queue.
    """
    if current_version(session) is None:
        _check_database(session)
        _create_ledger(session)
    applied: list[int] = []
    lock = Session(session.connection, session.url, session.queries)
    # The lock is held by one transaction of this connection while others of it change the schema.
    manager = lock.connection.transaction_manager(INSERT)
    try:
        _take_lock(lock, manager)
        done = current_version(session) or 0
        _refuse_development_version(session, done)
        for migration in migrations():
            if migration.version > done:
                for statements in transactions(migration.script):
                    _change(session, statements)
                session.run(lambda t, m=migration: t.execute("schema_applied", m.version, m.name))  # type: ignore[misc]
                applied.append(migration.version)
        if done == 0:
            adopt(session)
    finally:
        manager.close()
    check(session, current_version(session))
    return applied


def _change(session: Session, statements: Sequence[str]) -> None:
    """Runs one transaction of a migration; what another process has in use for a moment is waited for."""

    def change(transaction: Transaction) -> None:
        for statement in statements:
            transaction.script(statement)

    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            session.run(change)
            return
        except ConflictError as error:
            if time.monotonic() > deadline:
                raise SchemaError(
                    f"{session.url} cannot be migrated while others use it: {error}. Stop the workers and programs "
                    "that do, and run: fbtasks migrate --url URL"
                ) from error


def _take_lock(lock: Session, manager: Any) -> None:
    """Locks the first row of QUEUE_SCHEMA, which the first process to come here writes."""
    manager.begin()
    while not Transaction(manager, lock.url, lock.queries, lock).rows("schema_lock", more=" "):
        with suppress(DuplicateKey, ConflictError):
            lock.run(lambda t: t.execute("schema_applied", 0, "ledger"))


def _check_database(session: Session) -> None:
    dialect, page_size, _, _ = session.read("database_facts")[0]
    if dialect != 3:
        raise SchemaError(
            f"{session.url} has SQL dialect {dialect}; fbtasks needs dialect 3. Use another database for the "
            "queue, or change the dialect with gfix."
        )
    if page_size < 4096:
        raise SchemaError(f"{session.url} has pages of {page_size} bytes; fbtasks needs 4096 or more.")


def _create_ledger(session: Session) -> None:
    """Makes QUEUE_SCHEMA. Of several at once one wins, and the others wait until it is there."""
    deadline = time.monotonic() + 30
    while True:
        try:
            session.run(lambda t: t.execute("schema_create"))
            return
        except DatabaseError:
            if time.monotonic() > deadline:
                raise
        with suppress(ConflictError):
            if current_version(session) is not None:
                return
        time.sleep(0.05)


def adopt(session: Session) -> None:
    """Declares that this database, as it is and where it is, runs its tasks; its sources are read from their start."""
    session.run(_adopt)


def _adopt(transaction: Transaction) -> None:
    transaction.execute("adopt")
    transaction.execute("adopt_processes")  # numbers of connections begin anew after a restore
    transaction.execute("poll_adopt")  # a restored database has counted its transactions anew
    transaction.execute("adopt_sources")


def check_identity(session: Session) -> None:
    """Raises :class:`ForeignDatabaseError` when the database is a restored or moved copy that was not adopted."""
    with session.transaction(READ) as transaction:
        refuse_copy(transaction, session.url)


def refuse_copy(transaction: Transaction, url: DatabaseURL) -> None:
    """The same, in a transaction of the caller's."""
    facts = transaction.rows("database_facts")[0]
    known = transaction.rows("identity")
    guid, path = facts[2].strip(), facts[3]
    if known and known[0][0].strip() == guid and (known[0][1] == path or is_at(url, known[0][1])):
        return
    before = f"it was {known[0][1]} before" if known else "it has no identity"
    mounted = " If it is the same file, mounted elsewhere: mount it there." if url.embedded and known else ""
    raise ForeignDatabaseError(
        f"{url} is a copy that was restored or moved ({before}). Its tasks may be those of another, "
        f"living system, so no worker runs them.{mounted} If this database is the one that should: fbtasks adopt"
    )
