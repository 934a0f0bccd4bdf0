"""Backup and restore by the engine's services, as gbak does them; of an embedded file they run in this process.

A backup is a stream between the engine and this process. So its file is one of this machine, also when the database is
on a server, and the engine never sees its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from fbtasks.firebird import connections, fork
from fbtasks.firebird.driver.ending import skip_unloading
from fbtasks.firebird.driver.translate import Translated
from fbtasks.firebird.signals import preserved_signals
from fbtasks.url import DatabaseURL

_WAIT: Final = 1
"""Seconds after which the engine answers in any case, so that a signal is handled and progress can be told."""
_MOST: Final = 65500
"""Bytes that the engine takes at once: their number has 16 bits."""
_END: Final = 1
_NO_DATA: Final = (4, 64)
"""The engine has nothing to say yet (isc_info_data_not_ready), or not within the time (isc_info_svc_timeout)."""


def backup(url: DatabaseURL, write: Callable[[bytes], object]) -> None:
    """Backs up a database as it is committed now, while others work on it. *write* gets the pieces, some of them empty.

    Raises what *write* raises; :class:`AuthenticationError` for a user who may not do it; else as
    :func:`connections.connect` does.
    """
    from firebird.driver import SrvBackupFlag

    connections.connect(url).close()  # which says what is wrong with the database, or its server
    with _connected(url) as server, Translated(url):
        # Not to collect garbage: that is the work of those who made it, and would keep them waiting.
        flags = SrvBackupFlag.NO_GARBAGE_COLLECT
        server.database.backup(database=url.database, backup="stdout", flags=flags)
        while not server._eof:
            write(server._read_next_binary_output(timeout=_WAIT))


def restore(url: DatabaseURL, path: str, read: Callable[[int], bytes]) -> None:
    """Makes a database at *path*, which may be another name in the folder of *url*, of a backup.

    *read* returns the next bytes of the backup, as many as it is asked for or fewer, and none at its end. It is also
    asked for 0 bytes from time to time, while the engine makes indexes.

    Raises what *read* raises; :class:`StatementRefused` when there is a database already, and for what is no backup or
    not a whole one; else as :func:`connections.connect` does. What was made until then is left.
    """
    with _connected(url) as server, Translated(url):
        server.database.restore(backup="stdin", database=path)
        wanted: int | None = 0
        while wanted is not None:
            wanted = _send(server, read(min(wanted, _MOST)), asked=wanted > 0)


def _send(server: Any, data: bytes, *, asked: bool) -> int | None:
    """Sends the next bytes of a backup, if the engine has *asked* for some. Returns how many it wants next.

    None: the service has ended.
    """
    from firebird.driver.types import SrvInfoCode

    send = server._make_request(_WAIT)
    if asked:
        send = bytes((SrvInfoCode.LINE,)) + len(data).to_bytes(2, "little") + data + bytes((_END,))
    answer = server.response
    answer.clear()
    server._svc.query(send, bytes((SrvInfoCode.STDIN, SrvInfoCode.LINE)), answer.raw)
    wanted, goes_on = 0, False
    while (tag := answer.get_tag()) != _END:
        if tag == SrvInfoCode.STDIN:
            wanted = answer.read_int()
        elif tag == SrvInfoCode.LINE:
            goes_on |= bool(answer.read_bytes())
        else:
            goes_on |= tag in _NO_DATA
    return wanted if wanted or goes_on else None


@contextmanager
def _connected(url: DatabaseURL) -> Iterator[Any]:
    """For the block, which must not fork, the services of the engine that has the database."""
    from firebird.driver import connect_server

    connections.prepare(url)
    with fork.opening():
        with Translated(url, connecting=True), preserved_signals():
            server = connect_server(
                _configured(url),
                user=url.user or ("SYSDBA" if url.embedded else None),
                password=url.password,
                role=url.options.get("role"),
                expected_db=None if url.embedded else url.database,
                encoding="utf-8",
            )
        with server:
            try:
                yield server
            finally:
                # Its thread runs on for a moment after it has said that it is done, or was cut, and a process that
                # unloads the engine then ends by SIGSEGV. After a disk was full the shutdown of 5.0.4 hangs.
                if url.embedded:
                    skip_unloading()


def _configured(url: DatabaseURL) -> str:
    """The name under which the driver finds the server of *url*; empty for the engine in this process."""
    from firebird.driver import driver_config

    if url.embedded:
        return ""
    plugins = url.options.get("auth_plugins")
    host = DatabaseURL("service_mgr", url.host, url.port).dsn
    name = f"fbtasks {host} {plugins}"
    if driver_config.get_server(name) is None:
        config = driver_config.register_server(name)
        config.host.value, config.auth_plugin_list.value = host, plugins
        config.encoding.value = "utf-8"  # of a password, too
    return name
