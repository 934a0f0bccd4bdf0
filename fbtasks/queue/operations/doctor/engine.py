"""Checks of the client library, the engine, the file of the database, and the schema in it."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from functools import cached_property
from typing import Any, Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.database import features, generations, grants
from fbtasks.database.database import Database
from fbtasks.database.migrate import latest_version
from fbtasks.database.schema import Part
from fbtasks.database.values import as_utc
from fbtasks.errors import SchemaError
from fbtasks.firebird import library
from fbtasks.firebird.events import round_trip
from fbtasks.firebird.identity import file_system
from fbtasks.firebird.session import Session, database_info
from fbtasks.queue.operations.doctor.finding import Checks, Said, error, note, ok, warning
from fbtasks.system.showing import command_line, count, size, span

SMALL_PAGE: Final = 4096
SMALL_CACHE: Final = 1024
"""Pages."""
GAP: Final = 20_000
"""Transactions, as many as after which the engine sweeps by default."""
OPEN: Final = 3600
"""Seconds for which a transaction may be open."""
ROOM: Final = 1 << 30
LEAST_ROOM: Final = 64 << 20
"""Bytes that are to be free beside an embedded file, and without which it may soon be unable to grow."""
EVENT: Final = 2.0
"""Seconds that an event may take."""
APART: Final = 5.0
"""Seconds by which the clocks of this machine and of the database may differ."""
_OF_A_NETWORK: Final = {
    "9p", "afs", "ceph", "cifs", "fuse.glusterfs", "fuse.sshfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"
}  # fmt: skip


class State(NamedTuple):
    """What MON$ tells: modes of the database, and the oldest transaction of others for which versions of rows are kept.

    Without one that this user may see, all that is told of it is None.
    """

    shutdown: int
    backup: int
    transaction: int | None
    seconds: int
    connection: int
    user: str
    program: str | None
    pid: int
    host: str | None

    @property
    def whose(self) -> str:
        """Whose transaction it is."""
        host = self.host and f"on {self.host}"
        return f"{self.user} ({', '.join(filter(None, (self.program, f'process {self.pid}', host)))})"


class Engine:
    """A database as it is, with a session of its own."""

    def __init__(self, database: Database, session: Session) -> None:
        self.database = database
        self.url = database.url
        self.session = session

    def info(self, code: str) -> Any:
        """Returns a fact by the driver's name for it."""
        return database_info(self.session.connection, code)[0]

    def gfix(self, options: str) -> str:
        """Returns a command of Firebird's own: its programs must not open an embedded file beside ours."""
        return f"gfix {options} DATABASE" + (", while no other program has it open" if self.url.embedded else "")

    @cached_property
    def state(self) -> State:
        """What MON$ tells, asked once."""
        return State(*self.session.read("engine_state")[0])

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The SQL of the features that the database is to have."""
        return features.parts(self.database.features)


def _connection(engine: Engine) -> Iterator[Said]:
    yield ok(f"{engine.url} can be opened")


def _library(_: Engine) -> Iterator[Said]:
    version, path = library.client_library()
    yield ok(f"the client library has version {version}: {path}")


def _engine(engine: Engine) -> Iterator[Said]:
    yield ok(f"the engine has version {engine.info('FIREBIRD_VERSION')}")


def _ods(engine: Engine) -> Iterator[Said]:
    found = engine.info("ODS_VERSION"), engine.info("ODS_MINOR_VERSION")
    said = f"the file has the structure {found[0]}.{found[1]}"
    yield ok(said)
    if found < (13, 1):
        yield note(f"{said}, that of an older Firebird", engine.gfix("-upgrade"))


def _page_size(engine: Engine) -> Iterator[Said]:
    found = engine.info("PAGE_SIZE")
    yield ok(f"pages have {found} bytes")
    if found <= SMALL_PAGE:
        said = f"pages have {found} bytes: indexes are deep, and their keys have to be short"
        yield warning(said, "back it up, and restore it: gbak -create -page_size 8192 BACKUP NEW")


def _page_cache(engine: Engine) -> Iterator[Said]:
    pages = engine.info("NUM_BUFFERS")
    said = f"the cache has {pages} pages, {size(pages * engine.info('PAGE_SIZE'))}"
    yield ok(said)
    if pages < SMALL_CACHE:
        yield note(f"{said}, which is small", engine.gfix(f"-buffers {2 * SMALL_CACHE}"))


def _forced_writes(engine: Engine) -> Iterator[Said]:
    yield ok("forced writes are on")
    if engine.info("FORCED_WRITES").name != "SYNC":
        said = "forced writes are off: a power cut can lose committed tasks, or corrupt the file"
        yield warning(said, engine.gfix("-write sync"))


def _sweep(engine: Engine) -> Iterator[Said]:
    interval, gap = engine.info("SWEEP_INTERVAL"), engine.info("OLDEST_ACTIVE") - engine.info("OLDEST_TRANSACTION")
    when = f"begins after {interval} transactions" if interval else "does not begin by itself, since the interval is 0"
    said = f"a sweep {when}; {count(gap, 'transaction')} not swept"
    yield ok(said)
    if gap > 2 * max(interval, GAP):
        yield warning(said, engine.gfix("-sweep"))


def _mode(engine: Engine) -> Iterator[Said]:
    yield ok("the database is online, for reading and writing")
    if engine.state.shutdown:
        yield error("the database is shut down for maintenance", engine.gfix("-online"))
    if engine.info("REPLICA_MODE").name != "NONE":
        yield note("the database is a standby, whose tasks no worker can run")
    elif engine.info("DB_READ_ONLY").name != "READ_WRITE":
        yield error("the database is read-only", engine.gfix("-mode read_write"))


def _backup_lock(engine: Engine) -> Iterator[Said]:
    yield ok("the file is not locked for a backup")
    if engine.state.backup:
        said = "the file is locked for a backup, and changes are written to a second file, which grows"
        yield warning(said, 'when the backup is done: fbtasks sql --write "ALTER DATABASE END BACKUP"')


def _snapshot(engine: Engine) -> Iterator[Said]:
    state, gap = engine.state, engine.info("NEXT_TRANSACTION") - engine.info("OLDEST_SNAPSHOT")
    kept = "the engine keeps what was changed or deleted since, which slows down all who read it"
    if state.transaction is None:
        said = f"{count(gap, 'transaction')} began since the oldest snapshot"
        yield ok(said)
        if gap > GAP:
            yield warning(f"{said}, and {kept}; whose it is this user may not see", "ask as the owner or as SYSDBA")
        return
    said = f"{state.whose} has had transaction {state.transaction} open for {span(state.seconds)}"
    said += f"; {count(gap, 'transaction')} began since the oldest snapshot"
    yield ok(said)
    if gap > GAP or state.seconds > OPEN:
        remedy = f"end that program, or its connection: it is MON$ATTACHMENT_ID {state.connection} in MON$ATTACHMENTS"
        yield warning(f"{said}, and {kept}", remedy)


def _limbo(engine: Engine) -> Iterator[Said]:
    yield ok("no transaction is in limbo")
    for number in engine.info("LIMBO"):
        said = f"transaction {number} of a two-phase commit is in limbo, and what it has changed cannot be used"
        yield error(said, engine.gfix(f"-commit {number} (or -rollback {number})"))


def _lock_folder(engine: Engine) -> Iterator[Said]:
    if not engine.url.embedded:
        yield ok("the server has the locks")
        return
    folder, file = os.fspath(library.lock_directory(engine.url)), os.path.realpath(engine.url.database)
    yield ok(f"the locks are in {folder}, on a disk of this machine")
    for path in (folder, file):
        if (kind := file_system(path)) in _OF_A_NETWORK:
            said = f"{path} is on a network file system ({kind}): two machines that open it lose each other's commits"
            yield warning(said, "move the database to a disk of this machine, or to a server")


def _disk_space(engine: Engine) -> Iterator[Said]:
    if not engine.url.embedded:
        yield ok("the server has the file")
        return
    folder = os.path.dirname(os.path.realpath(engine.url.database))
    free = shutil.disk_usage(folder).free
    said = f"the disk of {folder} has {size(free)} free"
    yield ok(said)
    if free < ROOM:
        yield (error if free < LEAST_ROOM else warning)(f"{said}, and the file grows with what waits")


def _events(engine: Engine) -> Iterator[Said]:
    name = f"fbtasks:doctor:{secrets.token_hex(4)}"
    listener = engine.database.open_as_it_is()
    took = round_trip(listener, lambda: engine.session.read("post_event", name), name, EVENT)
    if took is None:
        remedy = "let the firewall pass the port of events (RemoteAuxPort in firebird.conf)"
        yield warning(f"no event came within {EVENT:g} s: workers and callers wait for their next poll", remedy)
    else:
        yield ok(f"an event came after {span(took)}")


def _character_set(engine: Engine) -> Iterator[Said]:
    charset, collation = engine.session.read("database_charset")[0]
    said = f"the default character set is {charset or 'NONE'}, with the collation {collation or 'NONE'}"
    yield ok(said)
    if charset in (None, "NONE"):
        yield note(f"{said}: tables of yours may have texts that cannot be converted")


def _schema(engine: Engine) -> Iterator[Said]:
    try:
        engine.database.check(engine.session)
    except SchemaError as wrong:
        yield error(str(wrong))
        return
    yield ok(f"the schema has version {latest_version()}")


def _features(engine: Engine) -> Iterator[Said]:
    there = features.rows(engine.session)
    yield ok(f"the features are {', '.join(f'{name} {row.version}' for name, row in there.items()) or 'none'}")
    for name, row in there.items():
        if not row.is_there:
            yield error(f"the package {row.package} of the feature {name} is missing (fbtasks migrate -A MODULE)")
    if others := sorted(there.keys() - {each.name for each in engine.database.features}):
        said = f"this program lacks what the database has, and cannot ask what is wrong with it: {', '.join(others)}"
        yield note(said, "name an app that has it: fbtasks doctor -A MODULE")


def _packages(engine: Engine) -> Iterator[Said]:
    session, there = engine.session, features.rows(engine.session)
    yield ok(f"generation {session.generation} of the packages is in use, as this release makes them")
    wanted = generations.planned(there, features.of_the_database(engine.parts, there)).hash
    if session.read("generation", more=" ")[0][1].strip() != wanted:
        yield warning("the packages in use are not as this release makes them (fbtasks migrate)")

    def repair() -> str:
        if not (gone := generations.drop_former(session)):
            raise SchemaError("connections that may use them are open. Restart their programs.")
        return f"{count(gone, 'package')} of former generations dropped"

    if former := generations.former(session):
        yield note(f"{count(len(former), 'package')} of former generations left", repair=repair)


def _grants(engine: Engine) -> Iterator[Said]:
    yield ok("the roles have the rights of this release")

    def repair() -> str:
        return f"{count(grants.refresh(engine.session, engine.parts), 'right')} changed"

    if wrong := grants.changes(engine.session, engine.parts):
        yield warning(f"{count(len(wrong), 'right')} to be changed, such as: {wrong[0]}", repair=repair)


def _indexes(engine: Engine) -> Iterator[Said]:
    yield ok("all indexes of the queue are active")
    for (name,) in engine.session.read("inactive_indexes"):
        remedy = command_line("fbtasks sql --write {}", f"ALTER INDEX {name} ACTIVE")
        yield error(f"the index {name} is inactive", remedy)


def _statistics(engine: Engine) -> Iterator[Said]:
    yield ok("large tables of the queue have statistics")
    names = [name for (name,) in engine.session.read("unmeasured_indexes")]

    def repair() -> str:
        for name in names:
            engine.session.sql(f"SET STATISTICS INDEX {name}")
        return f"statistics of {len(names)} indexes made"

    if names:
        yield note(f"{len(names)} indexes of large tables have no statistics", repair=repair)


def _clock(engine: Engine) -> Iterator[Said]:
    before = clock.utcnow()
    moment, zone = engine.session.read("session_facts")[0]
    apart = abs((as_utc(moment) - before - (clock.utcnow() - before) / 2).total_seconds())
    said = f"the clocks of this machine and of the database are {span(apart)} apart; sessions have the zone {zone}"
    yield ok(said)
    if apart > APART:
        yield warning(f"{said}. Countdowns are counted from the one, and end by the other", "synchronise them, by NTP")


CHECKS: Final[Checks[Engine]] = {
    "connection": _connection,
    "library": _library,
    "engine": _engine,
    "ods": _ods,
    "page-size": _page_size,
    "page-cache": _page_cache,
    "forced-writes": _forced_writes,
    "sweep": _sweep,
    "mode": _mode,
    "backup-lock": _backup_lock,
    "snapshot": _snapshot,
    "limbo": _limbo,
    "lock-folder": _lock_folder,
    "disk-space": _disk_space,
    "events": _events,
    "character-set": _character_set,
    "schema": _schema,
}
OF_THE_SCHEMA: Final[Checks[Engine]] = {
    "features": _features,
    "packages": _packages,
    "grants": _grants,
    "indexes": _indexes,
    "statistics": _statistics,
    "clock": _clock,
}
"""Checks of a schema that this program works with."""
