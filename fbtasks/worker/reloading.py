"""Watches the files of the application's modules, for a worker that starts afresh when one of them has changed."""

from __future__ import annotations

import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.system.threads import Endless

if TYPE_CHECKING:
    from fbtasks.worker.loop import Loop

logger = logging.getLogger("fbtasks.worker")
POLL: Final = 0.5
"""Seconds between two looks at the files."""
_INSTALLED: Final = tuple(
    f"{os.path.realpath(path)}{os.sep}"
    for name, path in sysconfig.get_paths().items()
    if name in ("stdlib", "platstdlib", "purelib", "platlib")
)
"""Folders whose modules do not change while one develops."""


class Files:
    """The files of the modules that this process has imported so far, and which of them has changed."""

    def __init__(self, since: float) -> None:
        """*since*: when the first of them was imported, as ``time.time`` has it. A file that is newer has changed."""
        self._since = since
        self._states: dict[str, int] = {}
        self._newer = ""
        self.watch(_modules())

    def watch(self, paths: Iterable[str]) -> None:
        """Watches *paths*: of files, or of folders for modules that are made in them."""
        now = clock.wall()
        for path in paths:
            self._states[path] = state = _state_of(path)
            if self._since < state / 1e9 <= now:
                self._newer = path

    def changed(self) -> str:
        """Returns one that has changed, or is gone; empty: none. What was imported meanwhile is watched from now on."""
        for path in _modules() - self._states.keys():
            self._states[path] = _state_of(path)
        return self._newer or next((path for path, then in self._states.items() if _state_of(path) != then), "")


def watch(loop: Loop, files: Files) -> None:
    """Has the worker of *loop* drain and start afresh when one of *files* has changed; in a thread of its own."""

    def look() -> None:
        while not loop.drain.begun:
            if path := files.changed():
                logger.info("%s has changed: this worker drains and starts afresh.", _shown(path))
                loop.drain.begin(outdated=True)
                loop.wake(())
                return
            clock.sleep(POLL)

    Endless(look, name="fbtasks-reload").start()


def wait_for_change(error: BaseException, since: float, say: Callable[[str], None]) -> None:
    """Waits until a file has changed since the import that began at *since* and has raised *error*.

    The files are those of the modules that were imported, those that *error* came from, and new ones beside them.
    """
    files = Files(since)
    paths = {path for path in _of_error(error) if os.path.isfile(path) and not _is_installed(path)}
    files.watch(paths)
    files.watch({os.getcwd(), *(os.path.dirname(path) for path in (*paths, *_modules()))})
    say("Waiting for the next change of a file.")
    while not (path := files.changed()):
        clock.sleep(POLL)
    say(f"{_shown(path)} has changed: starting afresh.")


def _modules() -> set[str]:
    """Returns the files of the application's modules."""
    found = (getattr(module, "__file__", None) for module in [*sys.modules.values()])
    return {path for path in found if isinstance(path, str) and not _is_installed(path)}


def _is_installed(path: str) -> bool:
    return os.path.realpath(path).startswith(_INSTALLED) or f"{os.sep}site-packages{os.sep}" in path


def _of_error(error: BaseException | None) -> Iterable[str]:
    """Yields the files that an error, and those that it came from, name."""
    while error is not None:
        if isinstance(error, SyntaxError) and error.filename:
            yield error.filename
        yield from (frame.filename for frame in traceback.extract_tb(error.__traceback__))
        error = error.__cause__ or error.__context__


def _state_of(path: str) -> int:
    """Returns when a file was changed last, in nanoseconds; of a folder a number for the modules in it; 0: none."""
    try:
        if os.path.isdir(path):
            return hash(frozenset(name for name in os.listdir(path) if name.endswith(".py"))) % 1_000_000
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
