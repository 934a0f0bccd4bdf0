"""The database of an app: connections with their statements, and the schema made ready on first use."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fbtasks import timing as clock
from fbtasks.config import Settings
from fbtasks.database import features, generations, migrate
from fbtasks.database.migrate import Applied
from fbtasks.database.packages import queries
from fbtasks.database.schema import Part
from fbtasks.errors import CommitUncertain, DatabaseReplaced, DatabaseUnavailable, SchemaError
from fbtasks.feature import Feature
from fbtasks.firebird import connections, fork
from fbtasks.firebird.driver.translate import shut_down
from fbtasks.firebird.identity import Facts, KnownDatabase, file_of
from fbtasks.firebird.pool import Pool
from fbtasks.firebird.session import Session, database_info
from fbtasks.url import DatabaseURL

if TYPE_CHECKING:
    from fbtasks.database.review.script import Script

T = TypeVar("T")
_TRIES: Final = 5
"""Openings of a file that is replaced at that very moment."""
_OVERTAKEN: Final = 30.0
"""Seconds for which a process waits while another one begins to make the queue."""
SHUT_DOWN_LOOK: Final = 15.0
"""Seconds between two looks whether a database that is shut down is online again. A look is a connection, and in
single-user maintenance there is one for all. Half the default lease: what comes back last is still in time."""
logger = logging.getLogger(__name__)


class Database:
    """Lends sessions from a small pool, and opens private ones for those that keep theirs.

    Sessions are of a queue that is there. A process that enqueues or works calls :meth:`make_ready` first, which may
    create it.
    """

    def __init__(self, settings: Settings, features: Sequence[Feature] = ()) -> None:
        """*features*: those that the database is to have."""
        self._features = tuple(features)
        self._there: frozenset[str] = frozenset()
        self._made: Mapping[str, int] = {}
        """Features that were made in a new file, with their versions, until its migration says so."""
        self.as_found = False
        """Whether one that is there is used with the features that it has, and a new one alone gets *features*."""
        self._pool: Pool | None = None
        self.generation = 0
        """The number of the packages in use, when a session was opened last."""
        self._lock = threading.RLock()
        self.forgets: list[Callable[[], None]] = [self._forget]
        """Called when connections are to another database than before: all that is remembered of that one goes."""
        self.maintains = False
        """Whether an administrator uses it, who may connect while it is shut down for maintenance."""
        self.point_at(settings)

    def point_at(self, settings: Settings) -> None:
        """Uses the database of *settings* from now on, and closes the connections to the former one."""
        self.close()
        self.settings, self.url, self._note = settings, settings.url, settings.url.note
        self.known = KnownDatabase(self.url)
        """Which database the connections are to."""
        self.known.forgets = self.forgets
        # Python shows a WARNING where no logging is set up: who has started a program in a wrong folder is to see it.
        self.tell: Callable[[str], None] = logger.warning if self.url.is_default else logger.info
        """Called with one line when a database or a queue was created."""
        self._ready = self._created = False
        self._next_look = 0.0
        """The monotonic time before which a database that is shut down is left alone."""

    def _forget(self) -> None:
        self._there = frozenset()
        self.generation = 0

    def session(self) -> AbstractContextManager[Session]:
        """A session for a short while; others wait for it when all are lent."""
        self.make_ready(create=False)
        return self._pooled().session()

    def _pooled(self) -> Pool:
        with self._lock:
            if self._pool is None:
                settings = self.settings
                self._pool = Pool(self.url, self._open_queue, size=settings.pool_size, timeout=settings.pool_timeout)
                # Only now: the driver's own exit function, which shuts the library down, must run after this one.
                atexit.register(self._at_exit)
            return self._pool

    def use(self, work: Callable[[Session], T], *, ready: bool = False) -> T:
        """*work* with a session, and once more with a new one when the first turns out to have died in the pool.

        Not after a commit whose answer was lost: whether that took effect is for the caller to find out. *ready*: the
        caller has just called :meth:`make_ready`.
        """
        with self._pooled().session() if ready else self.session() as session:
            fresh, session.fresh = session.fresh, False
            try:
                return work(session)
            except CommitUncertain:
                raise
            except DatabaseUnavailable:
                if fresh:
                    raise
        self._pooled().drop_idle()  # the others are most likely dead as well
        with self.session() as session:
            session.fresh = False
            return work(session)

    def open(self, charset: str | None = None) -> Session:
        """A session of one's own; close it. *charset* is for one that a task works with."""
        self.make_ready(create=False, lends=False)
        return self._open_queue(charset)

    def open_as_it_is(self) -> Session:
        """A session of one's own, whatever schema the database has: nothing is created or migrated; close it."""
        if self._missing():
            raise SchemaError(no_queue(self.url.database, creates=self.settings.migrates))
        return self._open()

    def check(self, session: Session) -> None:
        """Raises :class:`SchemaError` unless the schema is the one that this program works with."""
        found = migrate.current_version(session)
        migrate.check(session, found)
        features.check(session, features.missing(session, self._find(session), self._wanted(found)))

    def _open_queue(self, charset: str | None = None) -> Session:
        """Opens a session of a queue that was there. Raises :class:`SchemaError` when it was uninstalled since."""
        session = self._open(charset)
        if not session.generation:
            session.close()
            migrate.check(session, None)
        return session

    def _open(self, charset: str | None = None) -> Session:
        session = Session(self.connect(charset=charset), self.url, queries())
        try:
            self._use_packages(session)
        except BaseException:
            session.close()
            raise
        return session

    def _use_packages(self, session: Session) -> None:
        generations.use(session, generations.current(session))
        self.generation = session.generation

    def connect(self, *, create: bool = False, **options: Any) -> Any:
        """A connection of the driver's, to the database that the others are to. Every connection is opened here.

        Raises :class:`DatabaseReplaced` when another one is there by now, or none, and :class:`DatabaseShutDown` when
        it is shut down: then the one place of single-user maintenance is the administrator's.
        """
        if note := self.take_note():
            logger.warning("App %r: %s.", self.settings.name, note)
        if clock.monotonic() < self._next_look:
            raise shut_down(self.url)
        if DatabaseURL.may_open is not None:
            DatabaseURL.may_open(self.url)
        for _ in range(_TRIES):
            seen, before = self.known.transaction, self.known.look()
            met: list[Facts] = []
            connection = connections.connect(self.url, create=create, met=met.append, **options)
            try:
                if met[0].shut_down and not self.maintains:
                    self._next_look = clock.monotonic() + SHUT_DOWN_LOOK
                    raise shut_down(self.url)
                found = file_of(self.url)
                if found is not None and before in (None, found):
                    self.known.meet(found, met[0], seen)
                    return connection
            except BaseException:
                connection.close()
                raise
            connection.close()  # to which of the two it is cannot be told
        raise DatabaseUnavailable(f"{self.url} is replaced by another file again and again.")

    def take_note(self) -> str:
        """Returns which of several databases that are named it is, unless it was said before; empty: one is named."""
        note, self._note = self._note, ""
        return note

    def _follow_file(self) -> None:
        """Closes the connections to a file that was deleted or replaced, so that the one that is there is opened.

        Raises :class:`DatabaseReplaced` where that is not followed.
        """
        mark = self.known.mark
        try:
            self.known.check()
        except DatabaseReplaced as error:
            if self.known.is_kept:
                raise
            with self._lock:
                if self.known.mark == mark:  # no other thread was first
                    logger.warning("%s Connecting anew.", error)
                    self.close()
                    self.known.mark = b""
                    self._ready = False

    def make_ready(self, *, create: bool = True, lends: bool = True) -> None:
        """Creates and migrates the database where the settings say so, else checks its schema. Once.

        Without *create* only a queue that is there is migrated. Raises :class:`SchemaError` when there is none. The
        session that checked is the first to be lent, for callers that borrow one next; without *lends* it is closed.
        """
        fork.refuse_fork()  # before the lock, which another thread may have held when this process was forked
        self._follow_file()
        if self._is_ready():
            return
        with fork.opening(), self._lock:
            if self._is_ready():  # another thread was first
                return
            create = create and self.settings.migrates
            if not create and self._missing():
                raise SchemaError(no_queue(self.url.database, creates=self.settings.migrates))
            session = self._create() if create and self._missing() else self._open()
            try:
                migrate.check_charset(session)
                found = migrate.current_version(session)
                outdated = create if found is None else found < migrate.latest_version()
                lacking: list[Part] = []
                if found == migrate.latest_version():
                    lacking = features.missing(session, self._find(session), self._wanted(found))
                if self.settings.migrates and (outdated or lacking):
                    self._migrate(session)
                    lends = False
                else:
                    migrate.check(session, found)
                    features.check(session, lacking)
                    if not session.generation:  # another process has made the queue since this session was opened
                        self._use_packages(session)
            except BaseException:
                session.close()
                raise
            if lends:
                self._pooled().give(session)
            else:
                session.close()
            self._ready = True

    def _find(self, session: Session) -> dict[str, features.Row]:
        """Finds out which features the database has."""
        found = features.rows(session)
        self._there = frozenset(found)
        return found

    def _wanted(self, version: int | None) -> tuple[Part, ...]:
        """Returns the features that the database, whose schema has that version, is to have."""
        return () if self.as_found and version else features.parts(self._features)

    @property
    def features(self) -> tuple[Feature, ...]:
        """The features that the database is to have; of one that is used as it was found, those that it has."""
        if not self.as_found:
            return self._features
        self.make_ready(create=False)
        return tuple(each for each in self._features if each.schema is None or each.name in self._there)

    def _is_ready(self) -> bool:
        return self._ready

    def is_one(self, connection: Any) -> bool:
        """Whether *connection* is to this database, whatever name it has for it. Nothing is created."""
        if self._missing():
            return False
        with self.session() if self._ready else closing(self._open()) as session:
            one, other = (database_info(each, "DB_GUID", "DB_FILE_ID") for each in (connection, session.connection))
        return one == other

    def migrate(self) -> Applied:
        """Brings the schema up to date, whatever the settings say. Returns what was applied."""
        self._follow_file()
        session = self._create() if self._missing() else self._open()
        try:
            applied = self._migrate(session)
        finally:
            session.close()
        self._ready = True
        return applied

    def script(self) -> Script:
        """Returns what :meth:`migrate` would run. Nothing is created and nothing is changed."""
        from fbtasks.database.review.script import script  # for one command alone

        if self._missing():
            return script(None, self._wanted(None))
        with closing(self._open()) as session:
            return script(session, self._wanted(migrate.current_version(session)))

    def _migrate(self, session: Session) -> Applied:
        applied = self._migrate_with(session)
        applied = applied._replace(features={**self._made, **applied.features})
        self._made = {}
        self._use_packages(session)
        self._find(session)
        if migrate.first_version() in applied.versions and not self._created:
            self.tell(f"created the queue in {self.url}")
        return applied

    def _migrate_with(self, session: Session) -> Applied:
        deadline = clock.monotonic() + _OVERTAKEN
        wanted = self._wanted(migrate.current_version(session))
        try:
            return migrate.migrate(session, wanted)
        except migrate.Overtaken as error:
            overtaken = error
        while clock.monotonic() < deadline:
            clock.sleep(0.05)
            with closing(self._open()) as another, suppress(migrate.Overtaken):
                return migrate.migrate(another, wanted)
        raise SchemaError(
            f"{self.url} cannot be migrated: another process has been making the queue for {_OVERTAKEN:g} s. End it, "
            f"and run: fbtasks migrate{self.url.option}"
        ) from overtaken

    def _missing(self) -> bool:
        return not connections.database_exists(self.url)

    def _create(self) -> Session:
        connection = self.connect(create=True, fill=self._fill)
        if self._created:
            why = ", since no URL names a database" if self.url.is_default else ""
            self.tell(f"created {self.url.database}{why}")
        return Session(connection, self.url, queries())

    def _fill(self, connection: Any) -> None:
        """Makes the schema in a file that nobody else knows yet: one that is cut short is never met."""
        with closing(Session(connection, self.url, queries())) as session:
            migrate.check_charset(session)
            self._made = migrate.prepare(session, self._wanted(None))
        self._created = True

    def close(self) -> None:
        """Closes the pooled connections; the next use opens new ones."""
        with self._lock:
            atexit.unregister(self._at_exit)
            if self._pool is not None:
                self._pool.close()
                self._pool = None

    def _at_exit(self) -> None:
        """Statements before connections, or the driver prints what it cannot free; nothing that a fork inherited."""
        if not fork.was_forked():
            self.close()


def no_queue(path: str, *, creates: bool = True) -> str:
    """Returns the message for a path at which there is no file. *creates*: whether the app would make one."""
    who = (
        "A worker, the first call of a task or 'fbtasks migrate' creates a queue."
        if creates
        else "The app has auto_migrate=False, so that 'fbtasks migrate' alone creates a queue."
    )
    return (
        f"there is no queue at {path}: no such file. Start in the folder that holds it, or name the database with "
        f"--url, -A or FBTASKS_URL. {who}"
    )
