"""Databases of tests: embedded files, or databases beside that of FBTASKS_TEST_URL on its server."""

import os
import shutil
import time
import uuid
from contextlib import contextmanager
from pathlib import Path

from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

SERVER = os.environ.get("FBTASKS_TEST_URL")


def _beside():
    """The URL of a database beside that of FBTASKS_TEST_URL, which is not there yet."""
    base, _, query = SERVER.partition("?")
    return DatabaseURL.parse(f"{base}.{uuid.uuid4().hex}" + (f"?{query}" if query else ""))


@contextmanager
def database(path, copied=None):
    """A database without a queue, or a copy of a file: the embedded file *path*, or one on the server for the block."""
    url = DatabaseURL(str(path)) if SERVER is None else _beside()
    if copied:
        shutil.copyfile(copied, url.database)
    else:
        connections.connect(url, create=True).close()
    try:
        yield url
    finally:
        if SERVER is not None:
            _drop(url)


def _drop(url):
    """Drops a database on a server, where the connections of killed processes may live for a moment longer."""
    limit = time.monotonic() + 30
    while True:
        connection = connections.connect(url)
        try:
            connection.execute_immediate("DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION")
            connection.commit()
            connection.drop_database()
        except Exception:
            connection.close()
            if time.monotonic() > limit:
                raise
            time.sleep(0.2)
        else:
            return


def is_copied():
    """Returns True when a copy of a file is a database of the server: it is on this machine, and runs as this user."""
    with database("") as url:
        try:
            return Path(url.database).stat().st_uid == os.geteuid()
        except OSError:
            return False
