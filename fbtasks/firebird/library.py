"""The client library and the embedded engine: loaded once, with a root of our own."""

from __future__ import annotations

import atexit
import ctypes
import locale
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fbtasks.errors import EngineError
from fbtasks.firebird import fork
from fbtasks.firebird.driver.checking import check_quickly
from fbtasks.firebird.driver.discard import silence_disposal
from fbtasks.firebird.driver.ending import skip_unloading
from fbtasks.firebird.driver.freeing import free_once
from fbtasks.firebird.embedded import libraries, mutex_repair
from fbtasks.firebird.embedded.lockdir import Guard, refuse_links, warn_root
from fbtasks.firebird.embedded.root import cache_folder, engine_root, set_temporary_folder
from fbtasks.firebird.identity import refuse_colon, refuse_mounted, refuse_second_name
from fbtasks.firebird.signals import preserved_signals
from fbtasks.system.descriptors import fill_standard
from fbtasks.url import DatabaseURL

_lock = threading.RLock()
_provider: Any = None
_lock_directory: Path | None = None
_guards: dict[str, Guard] = {}


def lock_directory(url: DatabaseURL) -> Path:
    """The lock directory of the embedded database *url*, for which the library was loaded."""
    return _guards[os.path.realpath(url.database)].directory


def client_library() -> tuple[str, str]:
    """Returns the version of the client library that is loaded, and its path."""
    from firebird.driver import fbapi

    api = fbapi.get_api()
    return ".".join(map(str, api.util.get_client_version())), str(api.client_library_name)


def load(url: DatabaseURL, at_exit: Callable[[], None]) -> None:
    """Loads the client library once, and joins the guard of an embedded database. *at_exit* is called at the exit."""
    global _provider, _lock_directory
    fill_standard()
    _use_plain_letters()
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
        check_quickly()
        if not fbapi.has_api():
            if _lock_directory is None:  # one for all processes that use a server first: each would leave its own
                _lock_directory = cache_folder() / "lock"
                _lock_directory.mkdir(exist_ok=True)
            _load_library(fbapi, provider)
            _provider = provider
            silence_disposal()
            # In a child the engine's threads are missing, and what it would shut down is the parent's.
            fork.register(in_child=skip_unloading)
            atexit.register(at_exit)  # behind the driver's own exit function in the list, so before it in time


def _use_plain_letters() -> None:
    """Sets LC_CTYPE to C.UTF-8 where the C library has another upper case of *i*: in Turkish locales, say.

    The client library and the engine compare names by it: of their configuration, and of what procedures name.
    """
    if os.name == "posix" and ctypes.CDLL(None).toupper(ord("i")) != ord("I"):
        for name in ("C", "C.UTF-8"):
            with suppress(locale.Error):  # not each system has the last one
                locale.setlocale(locale.LC_CTYPE, name)


def _load_library(fbapi: Any, provider: Any) -> None:
    # The library reads them when it first attaches, so they stay in the environment; a subprocess that uses fbtasks
    # sets its own before it loads the library.
    os.environ["FIREBIRD_LOCK"] = str(_lock_directory)
    set_temporary_folder()
    try:
        with preserved_signals():
            fbapi.load_api(provider)
    except EngineError:  # there is no place for a root
        raise
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
            return engine_root(Path(super().root))

        @property
        def client_library(self) -> Path:
            return Path(super().root) / Path(FirebirdProvider().client_library).name

    return PrivateRoot()
