"""The client library and the embedded engine: loaded once, with a private root.

The wheel's own configuration lets one process open a database. Ours (SuperClassic) lets several, so the library is
given a root of its own: links to the wheel's files, and our firebird.conf.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fbtasks.errors import EngineError
from fbtasks.firebird.discard import silence_disposal
from fbtasks.firebird.embedded import libraries, mutex_repair
from fbtasks.firebird.embedded.lockdir import Guard, refuse_links, warn_root
from fbtasks.firebird.freeing import free_once
from fbtasks.firebird.identity import refuse_colon, refuse_mounted, refuse_second_name
from fbtasks.firebird.signals import preserved_signals
from fbtasks.url import DatabaseURL

_CONFIGURATION: Final = """\
# Several processes open one database; each has an engine of its own.
ServerMode = SuperClassic
DefaultDbCachePages = 4096
# Seconds after which a process that waits for a lock looks whether its owner has died, and whether there is a deadlock.
# After one second it took a page that was only given up late for a deadlock.
DeadlockTimeout = 2
# Only what runs in this process is configured here.
RemoteServicePort = 0
"""

_lock = threading.RLock()
_provider: Any = None
_lock_directory: Path | None = None
_guards: dict[str, Guard] = {}


def lock_directory(url: DatabaseURL) -> Path:
    """The lock directory of the embedded database *url*, for which the library was loaded."""
    return _guards[os.path.realpath(url.database)].directory


def load(url: DatabaseURL, at_exit: Callable[[], None]) -> None:
    """Loads the client library once, and joins the guard of an embedded database. *at_exit* is called at the exit."""
    global _provider, _lock_directory
    with _lock:
        from firebird.driver import fbapi

        provider = _make_provider()
        if url.embedded and provider is None:
            raise EngineError(
                f"{url} needs the embedded engine, and the firebird-embedded package is not installed (it has wheels "
                "for x86-64, aarch64 and armv7l Linux with glibc, and for Windows). Install it, or use the URL of a "
                "server."
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
            refuse_colon(url.database, real)
            refuse_second_name(real)
            if real not in _guards:
                refuse_mounted(real)
                warn_root(url.database)
                _guards[real] = Guard(url.database, _lock_directory)
                _lock_directory = _guards[real].directory
            refuse_links(_guards[real].directory)
            mutex_repair.start(_guards[real].directory)
        free_once()
        if not fbapi.has_api():
            if _lock_directory is None:  # one for all processes that use a server first: each would leave its own
                _lock_directory = _cache_folder() / "lock"
                _lock_directory.mkdir(exist_ok=True)
            _load_library(fbapi, provider)
            _provider = provider
            silence_disposal()
            atexit.register(at_exit)  # behind the driver's own exit function in the list, so before it in time


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
        raise EngineError(f"{folder} belongs to another user; set XDG_CACHE_HOME to a folder of yours.")
    return folder
