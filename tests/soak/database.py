"""The database of a soak: made at the start, read as one snapshot, dropped at the end."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from fbtasks import FBTasks
from fbtasks.config import DatabaseURL
from fbtasks.store import engine
from soak.accounting import Row, Rows

NAME = "(SELECT N.TASK_ID FROM QUEUE_TASK_ID N WHERE N.ID = T.ID)"
ERROR = "CAST(ERROR_MSG AS VARCHAR(1000))"
LIVE = f"SELECT ID, {NAME}, NAME, STATE, WORKER_ID, TRY_COUNT, CRASH_COUNT, NULL, {ERROR}, PAYLOAD FROM QUEUE_TASK T"
HISTORY = (
    f"SELECT ID, {NAME}, NAME, STATE, NULL, TRY_COUNT, CRASH_COUNT, ERROR_TYPE, {ERROR}, PAYLOAD FROM QUEUE_HISTORY T"
)
IDS = {
    "workers": "QUEUE_WORKER", "payloads": "QUEUE_PAYLOAD", "results": "QUEUE_RESULT", "task_ids": "QUEUE_TASK_ID",
    "cancels": "QUEUE_CANCEL",
}  # fmt: skip


class Database:
    """The supervisor's own way to the database, past any proxy."""

    def __init__(self, folder: Any, server: str | None) -> None:
        if server is None:
            self.url = f"firebird://{folder}/soak.fdb"
        else:
            base, _, query = server.partition("?")
            self.url = f"{base}.{uuid.uuid4().hex}" + (f"?{query}" if query else "")
        self.parsed = DatabaseURL.parse(self.url)
        engine.connect(self.parsed, create=True).close()
        self._app = FBTasks("soak", self.url)
        self._app.migrate()
        with self._app.connect() as connection:
            connection.execute_immediate(
                "CREATE TABLE SOAK_EFFECT (TASK VARCHAR(63) NOT NULL, RUN VARCHAR(63) NOT NULL)"
            )
            connection.commit()
        self._connection: Any = None

    def through(self, port: int) -> str:
        """The URL for those who go through a proxy on this machine."""
        parts = urlsplit(self.url)
        login = parts.netloc.rpartition("@")[0]
        return urlunsplit(parts._replace(netloc=f"{login}@127.0.0.1:{port}" if login else f"127.0.0.1:{port}"))

    def snapshot(self, *, effects: bool = True) -> Rows:
        """All tables at one moment."""
        from firebird.driver import Isolation, tpb

        if self._connection is None:
            self._connection = self._app.connect()
        connection = self._connection
        connection.begin(tpb(Isolation.SNAPSHOT))
        try:
            with connection.cursor() as cursor:
                ids = {
                    name: frozenset(r[0] for r in cursor.execute(f"SELECT ID FROM {table}").fetchall())
                    for name, table in IDS.items()
                }
                large = dict(cursor.execute("SELECT ID, DATA FROM QUEUE_PAYLOAD").fetchall())
                live = [_row(r, large) for r in cursor.execute(LIVE).fetchall()]
                history = [_row(r, large) for r in cursor.execute(HISTORY).fetchall()] if effects else []
                if not effects:
                    history = [Row(id=r[0]) for r in cursor.execute("SELECT ID FROM QUEUE_HISTORY").fetchall()]
                found = cursor.execute("SELECT TASK, RUN FROM SOAK_EFFECT").fetchall() if effects else []
        finally:
            connection.rollback()
        return Rows(live=live, history=history, effects=[(a, b) for a, b in found], **ids)

    def disconnect(self) -> None:
        """Closes the connection; the next look opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def close(self, *, drop: bool) -> None:
        self.disconnect()
        self._app.close()
        if drop:
            with suppress(Exception):  # somebody may still be attached: the violations tell who
                engine.connect(self.parsed).drop_database()


def _row(values: tuple[Any, ...], large: dict[int, Any]) -> Row:
    id, task_id, name, state, worker_id, tries, crashes, error_type, error, payload = values
    ref = ""
    with suppress(Exception):  # what cannot be read was not enqueued by us, and the account says so
        ref = json.loads(bytes(payload if payload is not None else large[id]))[0][0]
    return Row(
        id=id, task_id=task_id, ref=ref, kind=name.rpartition(".")[2], state=state, worker_id=worker_id, tries=tries,
        crashes=crashes, error_type=error_type, error=error,
    )  # fmt: skip
