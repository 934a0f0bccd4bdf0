"""The schema: brought up to date one step at a time, under a lock, and checked before it is used.

A step is one transaction, in which it is recorded too, so a migration that was cut is gone on with where that was. A
process that is killed in the commit of a ``CREATE TABLE`` leaves rows in RDB$PAGES for a table that is not there. The
next table gets the same number: with a key it cannot be made, and without one it takes no rows. So what is left is
removed before a table is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.database import features, generations, grants
from fbtasks.database.schema import CORE, Made, Part, Step, migrations, ours, steps, version
from fbtasks.errors import (
    AuthenticationError,
    ConfigurationError,
    ConflictError,
    DuplicateKey,
    ForeignDatabaseError,
    SchemaError,
    StatementRefused,
)
from fbtasks.firebird.identity import is_at
from fbtasks.firebird.session import READ, SNAPSHOT, Session, Transaction, database_info
from fbtasks.firebird.signals import held_signals
from fbtasks.system.checks import did_you_mean
from fbtasks.url import DatabaseURL

_PATIENCE: Final = 20.0
"""Seconds that a migration waits for what others have in use."""
_TRIES: Final = 100
"""How often a statement is tried that another process may run at the same moment."""
LEDGER: Final = {
    "QUEUE_SCHEMA": {"VERSION", "NAME", "APPLIED_TIME"},
    "QUEUE_SCHEMA_STEP": {"FEATURE", "VERSION", "STEP"},
    "QUEUE_SPARE": {"QUEUE_SPARE"},
    "QUEUE_FEATURE": {"NAME", "VERSION", "HOOKS", "PACKAGE"},
}
"""Tables that say how far a migration has come, with their columns: one of an application's has others."""
_SPACES: Final = {"TABLE": "RELATION", "VIEW": "RELATION", "PROCEDURE": "RELATION", "CONSTRAINT": "INDEX"}
"""Kinds of objects that share their names with another kind."""


class NoQueue(SchemaError):
    """The database has no queue."""


class Overtaken(Exception):
    """Another process makes QUEUE_SCHEMA at this moment.

    The engine gives the number of the table that was refused to the next one, and this connection has noted that no
    table has that number. So a new connection goes on.
    """


def current_version(session: Session) -> int | None:
    """The version of the schema, 0 when it is being made, None when there is none."""
    with session.transaction(READ) as transaction:
        return _version(transaction, _ledger(transaction))


def _version(transaction: Transaction, ledger: set[str]) -> int | None:
    return int(transaction.value("schema_version") or 0) if "QUEUE_SCHEMA" in ledger else None


def _ledger(transaction: Transaction) -> set[str]:
    """The tables of :data:`LEDGER` that are there."""
    columns: dict[str, set[str]] = {}
    for table, column in transaction.rows("ledger_columns"):
        columns.setdefault(table, set()).add(column)
    return {table for table, found in columns.items() if found == LEDGER[table]}


def first_version() -> int:
    """The version that a new queue begins with."""
    return min(migrations())


def latest_version() -> int:
    """The version that this release works with."""
    return max(migrations())


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
    if found is not None and found > latest_version():
        raise SchemaError(
            f"The schema of {url} has version {found}, and this fbtasks knows versions up to {latest_version()}. "
            "Upgrade fbtasks here."
        )
    what = f"has schema version {found}, not {latest_version()}" if found else "has no queue yet"
    if found == 0:
        what = "has a queue that is not complete: its migration goes on, or was cut"
    raise (NoQueue if found is None else SchemaError)(f"{url} {what}. Run: fbtasks migrate{url.option}")


class Applied(NamedTuple):
    """The result of a migration."""

    versions: list[int]
    """Those of the core that it has applied."""
    features: Mapping[str, int]
    """Those that it has made or brought to another version, with their versions."""
    packages: bool = False
    """True: it has made the packages anew."""


def migrate(session: Session, wanted: Sequence[Part] = ()) -> Applied:
    """Brings the schema up to date, with what the database has of features. Returns what was applied.

    *wanted* are features that it is to have.

    Safe when many processes start at once. Raises :class:`SchemaError` when the database cannot hold the queue, or
    refuses a step; close the session then: it may have loaded what was undone. Raises :class:`Overtaken` when it is to
    be called again, with another session.
    """
    with _locked(session, wanted):
        found = current_version(session)
        if found is not None and found > latest_version():
            check(session, found)  # raises: what a later release has made stays in use
        made, renewed = _make(session, wanted)
        generations.drop_former(session, locked=True)
        grants.refresh(session, wanted)  # before the schema counts as complete
        done = current_version(session) or 0
        applied = [number for number in migrations() if number > done]
        if applied:
            session.run(lambda transaction: _complete(transaction, applied), point="migrate")
    check(session, current_version(session))
    return Applied(applied, made, renewed)


def prepare(session: Session, wanted: Sequence[Part] = ()) -> Mapping[str, int]:
    """Makes the schema in a file that does not have its name yet; it is for :func:`migrate` to complete it there.

    Returns the features that were made, with their versions.
    """
    with _locked(session, wanted):
        return _make(session, wanted)[0]


def drop_feature(session: Session, name: str) -> list[str]:
    """Takes a feature of another distribution out of the queue, whose next packages do not call it.

    Returns its package and the tables that this uses, as ``DROP`` has them: they stay. Raises
    :class:`ConfigurationError` for what is no such feature, and :class:`SchemaError` while tasks or workers have it.
    """
    with _locked(session, ()):
        there = features.rows(session)
        if name not in there:
            raise ConfigurationError(
                f"the database has no feature {name!r}.{did_you_mean(name, there)} They are in: fbtasks features list"
            )
        row = there[name]
        if row.is_ours:
            raise ConfigurationError(
                f"{name!r} is a feature of this distribution, and those are not dropped: other apps may use it. An app "
                "that is not to have it leaves it out of features=[...]."
            )
        if found := session.read("tasks_of_feature", name):
            raise SchemaError(
                f"task {found[0][0]} needs the feature {name!r}, and has not ended, or may be put back. Run or "
                "discard such tasks, and then drop it."
            )
        if any(name in names.split() for names, *_ in session.read("worker_features")):
            raise SchemaError(f"a worker has the feature {name!r}, and needs it. Stop it, and then drop the feature.")
        left = [] if row.package is None or not row.is_there else [f"PACKAGE {row.package}"]
        left += [f"TABLE {table}" for (table,) in session.read("tables_of_package", row.package)]

        def forget(transaction: Transaction) -> None:
            transaction.execute("feature_forget", name)
            transaction.execute("feature_steps_forget", name)

        session.run(forget, point="migrate")
        generations.renew(session, features.of_the_database((), features.rows(session)))
        generations.drop_former(session, locked=True)
        grants.refresh(session)
    return left


def _make(session: Session, wanted: Sequence[Part]) -> tuple[Mapping[str, int], bool]:
    """Makes the tables that are missing, and the packages.

    Returns the features whose tables were, with their versions, and whether the packages were made anew.
    """
    _take_steps(session, [CORE])
    there = features.rows(session)
    parts = features.of_the_database(wanted, there)
    missing = features.missing(session, there, parts)  # raises: what a later release has made stays in use
    _take_steps(session, parts)
    for part in parts:
        if statements := features.package(session, part):
            _change(session, statements, [part.folder / name for name in part.names("packages")])
    renewed = generations.renew(session, parts)
    return {part.name: version(part) for part in missing}, renewed


@contextmanager
def _locked(session: Session, wanted: Sequence[Part]) -> Iterator[None]:
    """For the block, no other process migrates: the first row of QUEUE_SCHEMA is locked.

    The lock is held by one transaction of the connection while others of it change the schema.
    """
    _pending(session, [CORE, *wanted])  # before anything is written
    if current_version(session) is None:
        _check_database(session)
        _create_ledger(session)
    with session.transaction_beside() as lock:
        lock.begin()
        while not lock.rows("schema_lock", more=" "):  # the first process to come here writes that row
            with suppress(DuplicateKey, ConflictError):
                session.run(lambda t: t.execute("schema_applied", 0, "ledger"))
        yield


def _take_steps(session: Session, parts: Sequence[Part]) -> None:
    pending = _pending(session, parts)
    if pending:
        _remove_orphaned_pages(session)
        if "QUEUE_SCHEMA_STEP" not in read_ledger(session):
            _change(session, [session.queries["schema_steps_create"]])
    for step in pending:
        _change(session, step.statements, [step.file], step)


def _complete(transaction: Transaction, applied: list[int]) -> None:
    """Records that migrations are complete. A new queue is adopted with that."""
    for number in applied:
        transaction.execute("schema_applied", number, Path(migrations()[number]).stem[5:])
    if not transaction.rows("identity"):
        _adopt(transaction)


def pending(session: Session | None, parts: Sequence[Part]) -> list[Step]:
    """The steps that a migration would take; None: of a database that is not there yet. Raises :class:`SchemaError`."""
    if session is None:
        return [step for part in parts for step in steps(part)]
    found = _pending(session, parts)
    if current_version(session) is None:
        _check_database(session)
    return found


def _pending(session: Session, parts: Iterable[Part]) -> list[Step]:
    """The steps of *parts* that are not done.

    Raises :class:`SchemaError` when others have objects of the names that they need.

    What the steps before have made is ours: each is recorded in the transaction that did it.
    """
    parts = [*parts]
    with session.transaction(SNAPSHOT) as transaction:  # another process may make the queue meanwhile
        ledger = _ledger(transaction)
        done = _steps_done(transaction, ledger, parts)
        pending = [step for part in parts for step in steps(part) if step not in done]
        taken = transaction.rows("taken_names") if pending else []
    made_before = _names(each for step in done for each in step.made)
    made_before |= _names(Made("TABLE", table) for table in ledger)
    needed = _names(each for step in pending for each in step.made)
    needed |= _names(Made("TABLE", table) for table in LEDGER)
    clashes = {(space, name): kind for kind, space, name in taken if (space, name) in needed - made_before}
    if clashes:
        named = ", ".join(sorted(f"{kind} {name}" for (_, name), kind in clashes.items()))
        raise SchemaError(
            f"{session.url} has objects that fbtasks did not make, under names that it needs itself: {named}. Nothing "
            "was changed. Rename or drop them, or give the queue a database of its own."
        )
    return pending


def _steps_done(transaction: Transaction, ledger: set[str], parts: Iterable[Part] = ()) -> set[Step]:
    """The steps that were done: of this distribution, and of *parts*."""
    done = set(transaction.rows("schema_steps")) if "QUEUE_SCHEMA_STEP" in ledger else set()
    versions = {"": _version(transaction, ledger) or 0}
    if "QUEUE_FEATURE" in ledger:
        versions |= {name: number for name, number, *_ in transaction.rows("features")}
    return {
        step
        for part in {*ours(), *parts}
        for step in steps(part)
        if step.version <= versions.get(step.feature, 0) or (step.feature, step.version, step.number) in done
    }


def made_here(session: Session) -> set[Made]:
    """What the migrations of this distribution have made in the database."""
    with session.transaction(SNAPSHOT) as transaction:
        done = _steps_done(transaction, _ledger(transaction))
    return {each for step in done for each in step.made}


def _names(objects: Iterable[Made]) -> set[tuple[str, str]]:
    """The names of *objects*, each with what it must not share it with."""
    return {(_SPACES.get(each.kind, each.kind), each.name) for each in objects}


def read_ledger(session: Session) -> set[str]:
    """The tables of :data:`LEDGER` that the database has."""
    with session.transaction(READ) as transaction:
        return _ledger(transaction)


def _change(session: Session, statements: Sequence[str], files: Sequence[Path] = (), done: Step | None = None) -> None:
    """Runs one transaction of a migration, which is *done* with it; what another process has in use is waited for.

    Signals that ask to end are held meanwhile. Raises :class:`SchemaError`, which names the *files* that have the
    statement, when the database refuses it.
    """
    statement = ""

    def change(transaction: Transaction) -> None:
        nonlocal statement
        for statement in statements:
            transaction.script(statement)
        if done is not None:
            transaction.execute("schema_step_done", done.feature, done.version, done.number)
            if done.feature and done.is_last:
                transaction.execute("feature_migrated", done.feature, done.version)

    deadline = clock.monotonic() + _PATIENCE
    while True:
        try:
            with held_signals():
                session.run(change, point="migrate", attempts=1)
            return
        except ConflictError as error:
            if clock.monotonic() > deadline:
                raise SchemaError(
                    f"{session.url} cannot be migrated while others use it: {error}. Stop the workers and programs "
                    f"that do, and run: fbtasks migrate{session.url.option}"
                ) from error
            clock.sleep(0.02)
        except AuthenticationError:
            raise
        except StatementRefused as error:
            raise _stopped(session.url, statement, error, files) from error


def _stopped(url: DatabaseURL, statement: str, error: StatementRefused, files: Sequence[Path] = ()) -> SchemaError:
    first = statement.partition("\n")[0].rstrip(" (")
    reason = " ".join(str(error.__cause__ or error).split())
    if files:
        first += f" ({', '.join(map(str, files))})"
    return SchemaError(
        f"{url} refuses a step of the migration that begins with {first}: {reason}. What was done before stays. "
        "Programs that were connected meanwhile may have loaded what was undone: they do well to connect anew. When "
        f"the cause is gone, run: fbtasks migrate{url.option}"
    )


def _remove_orphaned_pages(session: Session) -> bool:
    """Removes what a process has left in RDB$PAGES that was killed while it committed ``CREATE TABLE``.

    A table without a key takes the number and the rows, and with it they are dropped. If this is killed as well, that
    table can be dropped later: one with a key could not, when its pages are gone and its row in RDB$RELATIONS is not.
    Returns whether another process did the same at the same moment.
    """
    refused = False
    for attempt in range(_TRIES):
        if "QUEUE_SPARE" in read_ledger(session):
            statement = "spare_drop"
        elif session.read("orphaned_pages")[0][0]:
            statement = "spare_create"
        else:
            break
        try:
            with held_signals():
                session.run(lambda t, s=statement: t.script(session.queries[s]), attempts=1)  # type: ignore[misc]
        except (ConflictError, StatementRefused) as error:
            refused = True
            if attempt == _TRIES - 1 and isinstance(error, StatementRefused):
                raise _stopped(session.url, session.queries[statement], error) from error
            clock.sleep(0.05)
    return refused


def _check_database(session: Session) -> None:
    dialect, page_size = database_info(session.connection, "DB_SQL_DIALECT", "PAGE_SIZE")
    if dialect != 3:
        raise SchemaError(
            f"{session.url} has SQL dialect {dialect}; fbtasks needs dialect 3. Use another database for the "
            "queue, or change the dialect with gfix."
        )
    if page_size < 4096:
        raise SchemaError(f"{session.url} has pages of {page_size} bytes; fbtasks needs 4096 or more.")


def _create_ledger(session: Session) -> None:
    """Makes QUEUE_SCHEMA. Of several at once one wins, and the others raise :class:`Overtaken`."""
    if _remove_orphaned_pages(session):
        raise Overtaken
    try:
        with held_signals():
            session.run(lambda t: t.script(session.queries["schema_create"]), point="migrate", attempts=1)
    except (ConflictError, DuplicateKey) as error:
        raise Overtaken from error
    except StatementRefused as error:
        if current_version(session) is None:
            raise _stopped(session.url, session.queries["schema_create"], error) from error
        raise Overtaken from error


def adopt(session: Session) -> None:
    """Declares that this database, as it is and where it is, runs its tasks; features go on with it."""
    session.run(_adopt)


def _adopt(transaction: Transaction) -> None:
    transaction.execute("adopt")
    transaction.execute("adopt_all")


def check_identity(session: Session) -> None:
    """Raises :class:`ForeignDatabaseError` when the database is a restored or moved copy that was not adopted."""
    with session.transaction(READ) as transaction:
        refuse_copy(transaction, session.url)


def refuse_copy(transaction: Transaction, url: DatabaseURL) -> None:
    """Raises :class:`ForeignDatabaseError` as :func:`check_identity` does, in a transaction of the caller's."""
    if copy := copied(transaction, url):
        remedy = f"If this database is the one that should run them: fbtasks adopt{url.option}"
        raise ForeignDatabaseError(f"{copy} {remedy}")


def copied(transaction: Transaction, url: DatabaseURL) -> str | None:
    """Returns what makes the database a restored or moved copy that was not adopted. None: it is none."""
    guid, path = transaction.rows("database_identity")[0]
    known = transaction.rows("identity")
    if known and known[0][0] == guid and (known[0][1] == path or is_at(url, known[0][1])):
        return None
    before = f"it was {known[0][1]} before" if known else "it has no identity"
    mounted = " If it is the same file, mounted elsewhere, mount it there." if url.embedded and known else ""
    return (
        f"{url} is a copy that was restored or moved ({before}). Its tasks may be those of another, living system, so "
        f"no worker runs them.{mounted}"
    )


@contextmanager
def deploying(session: Session) -> Iterator[None]:
    """For the block: no other process deploys or migrates. The lock is held by a transaction of its own."""
    with session.transaction_beside() as transaction:
        while True:
            transaction.begin()
            with suppress(ConflictError):
                transaction.rows("FBTASKS_UPKEEP.DEPLOY_LOCK", more=" ")
                break
            transaction.rollback()
        yield
