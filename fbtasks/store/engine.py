"""The client library and the embedded engine: loaded once, with a private root; and connections.

The wheel's own configuration lets one process open a database. Ours (SuperClassic) lets several, so the library is
given a root of its own: links to the wheel's files, and our firebird.conf.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from fbtasks.config import DatabaseURL
from fbtasks.errors import EngineError, ForkError, SchemaError
from fbtasks.store import libraries, lockdir, robust
from fbtasks.store.callbacks import no_callback
from fbtasks.store.facts import Facts, ask
from fbtasks.store.files import refuse_mounted, refuse_second_name
from fbtasks.store.lockdir import Guard, exclusive, folder_of, refuse_links, warn_root
from fbtasks.store.lost import bury, hush
from fbtasks.store.signals import preserved_signals
from fbtasks.store.translate import translate

_CONFIGURATION: Final = """\
# Several processes open one database; each has an engine of its own.
ServerMode = SuperClassic
DefaultDbCachePages = 4096
# Seconds after which a process that waits for a lock looks whether its owner has died.
DeadlockTimeout = 1
# Only what runs in this process is configured here.
RemoteServicePort = 0
"""
_PAGE_SIZE: Final = 8192
_NOT_CREATED: Final = 335544733
"""The engine's number for: no file was made. There may be one of that name that is not ours."""
CONNECT_TIMEOUT: Final = 10
"""Seconds in which a server must take a connection."""

_lock = threading.RLock()
_provider: Any = None
_lock_directory: Path | None = None
_guards: dict[str, Guard] = {}
_open: WeakSet[Any] = WeakSet()
_openings: set[int] = set()
_numbers = count()
_lost: WeakSet[Any] = WeakSet()
_forked_open = False


def connect(
    url: DatabaseURL,
    *,
    create: bool = False,
    charset: str | None = None,
    page_size: int = _PAGE_SIZE,
    created: Callable[[], None] = lambda: None,
    met: Callable[[Facts], None] = lambda _: None,
) -> Any:
    """A connection of firebird-driver to *url*; with *create*, the embedded file is made when it is missing.

    *created* is called when this call has made it, and *met* with what the database says of itself.

    Raises :class:`EngineError` when the library or the engine cannot be used here, and what the database answers
    as :class:`DatabaseUnavailable`, :class:`AuthenticationError` or :class:`DatabaseError`, and as
    :class:`ConfigurationError` when it does not know the character set.
    """
    refuse_fork()
    with opening():
        _load(url)
    try:
        if url.host is not None:
            _probe(url.host, url.port)  # nothing of the library's yet: a fork meanwhile does no harm
    except Exception as error:
        raise translate(error, url, connecting=True) from error
    with opening():
        connection, made, facts = _connect(url, create, charset, page_size)
    if made:
        created()
    met(facts)
    return connection


def _connect(url: DatabaseURL, create: bool, charset: str | None, page_size: int) -> tuple[Any, bool, Facts]:
    """The connection, whether the database was created for it, and what it says of itself."""
    try:
        with preserved_signals():
            connection, made = _create(url, page_size) if create else (_attach(url, charset), False)
    except Exception as error:
        raise translate(error, url, connecting=True) from error
    try:
        if url.embedded:
            _enter(connection, url)
        facts = ask(connection)
        _check_version(facts, url)
    except SchemaError:
        connection.close()
        raise
    except Exception as error:
        bury(connection)
        raise translate(error, url, connecting=True) from error
    _open.add(connection)
    return connection, made, facts


@contextmanager
def opening() -> Iterator[None]:
    """For the block, which opens a connection, or holds a lock for that, the child of a fork is refused."""
    number = next(_numbers)
    _openings.add(number)
    try:
        yield
    finally:
        _openings.discard(number)


def database_exists(url: DatabaseURL) -> bool:
    """Whether the embedded file is there; for a server, True: only a connection can tell.

    Raises :class:`EngineError` when this user may not know.
    """
    return not url.embedded or lockdir.database_exists(url.database)


def keep(url: DatabaseURL) -> None:
    """Has what opening *url* made beside an embedded file stay when this process ends: a queue is there."""
    if url.embedded:
        lockdir.keep(url.database)


def _attach(url: DatabaseURL, charset: str | None) -> Any:
    from firebird.driver import connect as attach

    return attach(
        url.dsn if url.embedded else _patient(url),
        user=url.user or ("SYSDBA" if url.embedded else None),
        password=url.password,
        charset=charset or url.options.get("charset", "UTF8"),
        role=url.options.get("role"),
        auth_plugin_list=url.options.get("auth_plugins"),
    )


def _enter(connection: Any, url: DatabaseURL) -> None:
    """Has this process's engine enter the table of events now: there is a right moment for it."""
    with robust.entering(_guards[os.path.realpath(url.database)].directory):
        connection._att.que_events(no_callback(), b"\x01")  # for no events; given back as soon as nobody refers to it


def _probe(host: str, port: int) -> None:
    """Raises :class:`OSError` unless something listens there: the client library would wait for minutes."""
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT).close()
    except TimeoutError as error:  # of the socket, which numbers all its errors but this one
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from error


def _patient(url: DatabaseURL) -> str:
    """The name under which the driver finds *url* with our connection timeout; its defaults are the application's."""
    from firebird.driver import driver_config

    name = f"fbtasks {url.dsn}"
    with _lock:
        if driver_config.get_database(name) is None:
            config = driver_config.register_database(name)
            config.dsn.value = url.dsn
            config.timeout.value = CONNECT_TIMEOUT
    return name


def _create(url: DatabaseURL, page_size: int) -> tuple[Any, bool]:
    from firebird.driver import DatabaseError, create_database, driver_config

    if not url.embedded:
        return create_database(url.dsn, user=url.user, password=url.password, charset="UTF8"), True
    with exclusive(folder_of(url.database) / "create.lock"):  # of twenty that start at once, one creates it
        if os.path.exists(url.database):
            return _attach(url, None), False
        _check_charset(url)
        driver_config.db_defaults.page_size.value = page_size
        try:
            connection = create_database(url.dsn, user="SYSDBA", charset="UTF8")
        except DatabaseError as error:
            if _NOT_CREATED not in error.gds_codes:  # no room, say: what there is of the file cannot be opened
                with suppress(OSError):
                    os.unlink(url.database)
            raise
        finally:
            driver_config.db_defaults.page_size.value = None
        return connection, True


def _check_charset(url: DatabaseURL) -> None:
    """Raises what the engine says of a character set in *url* that it does not know, before anything is made."""
    from firebird.driver import create_database

    if "charset" in url.options:
        with tempfile.TemporaryDirectory(dir=folder_of(url.database)) as folder:
            create_database(f"{folder}/charset.fdb", user="SYSDBA", charset=url.options["charset"]).drop_database()


def _check_version(facts: Facts, url: DatabaseURL) -> None:
    if facts.version < 5.0:
        raise SchemaError(
            f"{url} is served by Firebird {facts.version}; fbtasks needs Firebird 5 or newer. "
            "Upgrade the server, or keep the queue in an embedded file."
        )


def _load(url: DatabaseURL) -> None:
    """Loads the client library once, and joins the guard of an embedded database."""
    global _provider, _lock_directory
    with _lock:
        from firebird.driver import fbapi

        provider = _make_provider()
        if url.embedded and provider is None:
            raise EngineError(
                f"{url} needs the embedded engine, and the firebird-embedded package is not installed (it has wheels "
                "for x86-64 Linux and Windows). Install it, or use the URL of a server."
            )
        if fbapi.has_api() and _provider is None and url.embedded:
            raise EngineError(
                f"another Firebird client library is loaded in this process, so {url} would be opened by an engine "
                "that fbtasks did not configure. Use fbtasks first, for example app.connect() instead of "
                "firebird.driver.connect(), or use the URL of a server."
            )
        if url.embedded:
            real = os.path.realpath(url.database)
            if not os.path.isdir(os.path.dirname(real)):
                raise EngineError(f"{url}: there is no folder {os.path.dirname(real)}. Create it.")
            refuse_second_name(real)
            if real not in _guards:
                refuse_mounted(real)
                warn_root(url.database)
                _guards[real] = Guard(url.database, _lock_directory)
                _lock_directory = _guards[real].directory
            refuse_links(_guards[real].directory)
            robust.start(_guards[real].directory)
        if not fbapi.has_api():
            if _lock_directory is None:  # one for all processes that use a server first: each would leave its own
                _lock_directory = _cache_folder() / "lock"
                _lock_directory.mkdir(exist_ok=True)
            _load_library(fbapi, provider)
            _provider = provider
            hush()
            atexit.register(_close_all)  # behind the driver's own exit function in the list, so before it in time


def _load_library(fbapi: Any, provider: Any) -> None:
    # The library reads both when it first attaches, so they stay in the environment; a subprocess that uses fbtasks
    # sets its own before it loads the library.
    os.environ["FIREBIRD_LOCK"] = str(_lock_directory)
    try:
        with preserved_signals():
            fbapi.load_api(provider)
    except Exception as error:
        advice = libraries.explain() if isinstance(error, OSError) and provider is not None else None
        raise EngineError(advice or f"the Firebird client library cannot be loaded: {error}") from error


def _make_provider() -> Any:
    try:
        from firebird.embedded.provider import FirebirdProvider
    except ImportError:
        return None

    class PrivateRoot(FirebirdProvider):  # type: ignore[misc]  # the package has no types
        """The wheel's runtime with a root of ours."""

        @property
        def root(self) -> Path:
            return _private_root(Path(super().root))

        @property
        def client_library(self) -> Path:
            return Path(super().root) / Path(FirebirdProvider().client_library).name

    return PrivateRoot()


def _private_root(runtime: Path) -> Path:
    key = hashlib.sha256(f"{runtime}\0{_CONFIGURATION}".encode()).hexdigest()[:16]
    root = _cache_folder() / f"engine-{key}"
    if (root / "firebird.conf").exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="engine-", dir=root.parent))
    for entry in runtime.iterdir():
        if entry.name not in ("firebird.conf", "firebird.log"):
            (draft / entry.name).symlink_to(entry)
    (draft / "firebird.log").touch()
    (draft / "firebird.conf").write_text(_CONFIGURATION)
    try:
        draft.rename(root)
    except OSError:  # another process was first: its root is the same
        shutil.rmtree(draft, ignore_errors=True)
    return root


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home) / "fbtasks"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK) and folder.stat().st_uid == os.getuid():
            return folder
    folder = Path(tempfile.gettempdir()) / f"fbtasks-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise EngineError(f"{folder} belongs to somebody else; set XDG_CACHE_HOME to a folder of yours.")
    return folder


def _forked() -> None:
    """In a child: connections that the parent had open are not to be used, and not even to be closed.

    Where none was open the child may open its own: measured, nothing is lost then. One that another thread was about to
    open counts as well: that thread's locks, ours and the library's, are never released here.
    """
    global _forked_open
    inherited = [connection for connection in _open if not connection.is_closed()]
    if inherited or _openings:
        _forked_open = True
    _abandoned.extend((*inherited, *_lost))  # kept from the garbage collector, which would detach the parent's


_abandoned: list[Any] = []


def lose(connection: Any) -> None:
    """Counts *connection* as closed. It is lost, but whoever has it closes it only in a while."""
    _open.discard(connection)
    _lost.add(connection)


def refuse_fork() -> None:
    """Raises :class:`ForkError` in the fork of a process that had loaded the library."""
    if _forked_open:
        raise ForkError(
            "this process was forked from one that uses Firebird, and using the database here would lose commits "
            "without an error. Start processes with 'spawn' or 'forkserver', or fork before the first use."
        )


def was_forked() -> bool:
    """Whether this process is the fork of one that had loaded the library, and must not touch what it inherited."""
    return _forked_open


def _close_all() -> None:
    if _forked_open:
        return
    for connection in list(_open):
        try:
            connection.close()
        except Exception:  # noqa: BLE001
            bury(connection)


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forked)
