"""The database of a soak: made at the start, read as one snapshot, dropped at the end."""

import json
import os
import time
import uuid
from contextlib import contextmanager, suppress
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

from support.rules import ids
from support.services import services_of
from support.sql import execute, one

from fbtasks import FBTasks
from fbtasks.features.schedules import operations as schedules
from fbtasks.firebird import connections
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.queue import tasks
from fbtasks.states import State
from fbtasks.url import DatabaseURL
from soak import limited, sources
from soak.accounting import Row, Rows

NAME = "(SELECT N.TASK_ID FROM QUEUE_TASK_ID N WHERE N.ID = T.ID)"
ERROR = "CAST(ERROR_MSG AS VARCHAR(1000))"
LIVE = (
    f"SELECT ID, {NAME}, NAME, STATE, WORKER_ID, TRY_COUNT, CRASH_COUNT, NULL, {ERROR}, PAYLOAD, QUEUE "
    "FROM QUEUE_TASK T"
)
HISTORY = (
    f"SELECT ID, {NAME}, NAME, STATE, NULL, TRY_COUNT, CRASH_COUNT, ERROR_TYPE, {ERROR}, PAYLOAD, QUEUE "
    "FROM QUEUE_HISTORY T"
)


class Database:
    """The supervisor's own way to the database, past any proxy."""

    def __init__(self, folder, server):
        if server is None:
            self.url = f"firebird://{folder}/soak.fdb"
        else:
            base, _, query = server.partition("?")
            self.url = f"{base}.{uuid.uuid4().hex}" + (f"?{query}" if query else "")
        self.parsed = DatabaseURL.parse(self.url)
        connections.connect(self.parsed, create=True).close()
        self._app = FBTasks("soak", self.url)
        self._app.migrate()
        execute(self._app, "CREATE TABLE SOAK_EFFECT (TASK VARCHAR(63) NOT NULL, RUN VARCHAR(63) NOT NULL)")
        for statement in sources.TABLES:
            execute(self._app, statement)
        self._connection = None
        self._prepared = {}
        """The statements of that connection: to compile them at each look costs more than to run them."""

    def through(self, port):
        """The URL for those who go through a proxy on this machine."""
        parts = urlsplit(self.url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}"))

    def snapshot(self, *, effects=True):
        """All tables at one moment."""
        from firebird.driver import Isolation, tpb

        if self._connection is None:
            self._connection = self._app.connect()
        connection = self._connection
        connection.begin(tpb(Isolation.SNAPSHOT))
        try:
            with connection.cursor() as cursor:

                def query(sql):
                    if sql not in self._prepared:
                        self._prepared[sql] = cursor.prepare(sql)
                    return cursor.execute(self._prepared[sql]).fetchall()

                found_ids = ids(query)
                of_sources = sources.read(query, whole=effects)
                of_limits = limited.read(query) if effects else limited.LimitRows()
                large = dict(query("SELECT ID, DATA FROM QUEUE_PAYLOAD"))
                live = [_row(r, large) for r in query(LIVE)]
                history = [_row(r, large) for r in query(HISTORY)] if effects else []
                if not effects:
                    sql = "SELECT ID, STATE FROM QUEUE_HISTORY"
                    history = [Row(id=id, state=state) for id, state in query(sql)]
                found = query("SELECT TASK, RUN FROM SOAK_EFFECT") if effects else []
        finally:
            connection.rollback()
        return Rows(
            live=live,
            history=history,
            effects=[(a, b) for a, b in found],
            sources=of_sources,
            limits=of_limits,
            **found_ids,
        )

    def locking_connection(self):
        """A connection of its own, in a transaction that does not wait for others."""
        from firebird.driver import Isolation, tpb

        connection = self._app.connect()
        connection.begin(tpb(Isolation.READ_COMMITTED_RECORD_VERSION, lock_timeout=0))
        return connection

    @contextmanager
    def host_lock(self):
        """Holds the lock that the workers of a host take in turn."""
        lock = HostLock(self.parsed)
        try:
            with lock.held():
                yield
        finally:
            lock.close()

    def enqueue(self, refs):
        """Enqueues a short task for each."""
        for ref in refs:
            self._app.send_task("soak.tasks.quick", (ref,))

    def stop_schedules(self):
        """Has no schedule tick any longer: the queue can become empty."""
        schedules.pause(self._app.database, [each.name for each in schedules.list_schedules(self._app.database)])

    def left(self):
        """Forgets all that has ended, as maintenance does in its time. Returns how many rows are left beside tasks."""
        with self._app.database.session() as session:
            for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
                while session.run(lambda t, state=state: tasks.prune(t, state, timedelta())):
                    pass
            for _ in range(10):  # reads the notes of what has ended, and of what is forgotten
                session.run(lambda t: tasks.claim(t, 1, "default", 1))
            while session.call("FBTASKS_LIMITS.FORGET_GATES", 1000):
                pass
            after = 0
            while after is not None:
                _, after = session.call("FBTASKS_LIMITS.FORGET_TRACES", after, 2000)
            session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", 200)
        limits = " WHERE OWNER_ID IN (SELECT ID FROM QUEUE_LIMIT)"
        # Of notes those that nobody has read: the others are deleted by whoever reads the next.
        where = {"QUEUE_GATE": limits, "QUEUE_NOTE": f"{limits} AND ID > 0"}
        return {
            table: int(one(self._app, f"SELECT COUNT(*) FROM {table}{where.get(table, '')}")) for table in limited.LEFT
        }

    def waiting(self):
        """How many tasks wait."""
        return int(one(self._app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 0"))

    def back_up(self, path):
        """Writes a backup of the database to *path*, which is one of the server's host."""
        self._serve(lambda service: service.database.backup(database=self.parsed.database, backup=path))

    def restore(self, path):
        """Puts the backup in the database's place, when no process is connected any more; an embedded file as it is."""
        from firebird.driver import SrvRestoreFlag

        target = f"{self.parsed.database}.restored" if self.parsed.embedded else self.parsed.database
        limit = time.monotonic() + 30
        while True:
            try:
                self._serve(
                    lambda service: service.database.restore(backup=path, database=target, flags=SrvRestoreFlag.REPLACE)
                )
                break
            except Exception:
                if time.monotonic() > limit:
                    raise
                time.sleep(0.2)
        if self.parsed.embedded:
            os.replace(target, self.parsed.database)

    def _serve(self, ask):
        self.disconnect()
        self._app.close()
        with services_of(self.parsed) as service:
            ask(service)
            for _ in service:
                pass

    def disconnect(self):
        """Closes the connection; the next look opens another."""
        connection, self._connection = self._connection, None
        prepared, self._prepared = self._prepared, {}
        if connection is not None:
            with suppress(Exception):  # it may be lost
                for statement in prepared.values():
                    statement.free()
            connection.close()

    def close(self, *, drop):
        self.disconnect()
        self._app.close()
        if drop:
            with suppress(Exception):  # a process may still be attached: the violations tell which
                connections.connect(self.parsed).drop_database()


def _row(values, large):
    id, task_id, name, state, worker_id, tries, crashes, error_type, error, payload, queue = values
    kind = name.rpartition(".")[2]
    ref, refs = "", ()
    with suppress(Exception):  # what cannot be read was not enqueued by us, and the account says so
        arguments = json.loads(bytes(payload if payload is not None else large[id]), strict=False)[0]
        if kind in sources.HANDLERS:
            refs = sources.refs(kind, arguments)
        else:
            ref = arguments[0] if arguments else ""
    return Row(
        id=id, task_id=task_id, ref=ref, refs=refs, kind=kind, queue=queue, state=state, worker_id=worker_id,
        tries=tries, crashes=crashes, error_type=error_type, error=error,
    )  # fmt: skip
