"""Processes that a worker starts: reaped as soon as they die, and signalled so that no other process can be hit."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from fbtasks.errors import FBTasksError
from fbtasks.system.threads import Background, deferred

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]

_PROCESSES: Final = (
    "Raise the limit on processes (ulimit -u, TasksMax= of systemd, the container's pids limit), or lower "
    "--concurrency."
)
_REMEDIES: Final = {
    errno.EAGAIN: _PROCESSES,
    errno.ENOMEM: "Free memory, or lower --concurrency.",
    errno.EMFILE: "Raise the limit on open files of the worker (ulimit -n, LimitNOFILE= of systemd), or lower "
    "--concurrency.",
    errno.ENFILE: "Raise the system's limit on open files (sysctl fs.file-max).",
}
SCARCE: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of the system that may be over in a moment."""
_RESERVE: Final = 48
"""Descriptors that processes leave to the worker, for its connections to the database above all."""


def interpreter() -> list[str]:
    """The command of this interpreter, with the options that it was started with, such as -W, -O and -X."""
    # Private, and what the standard library's own multiprocessing starts its processes with.
    return [sys.executable, *subprocess._args_from_interpreter_flags()]  # type: ignore[attr-defined]


def keep_children() -> None:
    """Restores SIGCHLD where it is ignored, as it may have been inherited: no end of a child would be told.

    To be called in the main thread, before the first child. A handler of the application's stays.
    """
    if hasattr(signal, "SIGCHLD") and not callable(signal.getsignal(signal.SIGCHLD)):
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


class CannotStart(FBTasksError):
    """The machine cannot start a process now."""


@contextmanager
def starting() -> Iterator[None]:
    """Raises :class:`CannotStart`, with the reason and a remedy, for what the system refuses in the block."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, "The system's own log may tell more.")
        raise CannotStart(f"{error.strerror or error}. {remedy}") from error
    except MemoryError as error:
        raise CannotStart(f"{os.strerror(errno.ENOMEM)}. {_REMEDIES[errno.ENOMEM]}") from error
    except RuntimeError as error:  # a thread, which counts as a process
        raise CannotStart(f"{error}. {_PROCESSES}") from error


def leave_descriptors(highest: int) -> None:
    """Raises :class:`OSError` when *highest*, a descriptor that was just made, shows that the worker needs the rest."""
    if resource is not None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if limit != resource.RLIM_INFINITY and highest + _RESERVE > limit:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class Process:
    """A new interpreter that runs *module* of this package, in a process group of its own; never a fork.

    A thread reaps it as soon as it dies, whatever the worker is doing then: the engine takes a zombie for alive and
    waits for its locks, and a worker that waits for them inside the engine would wait for itself.
    """

    def __init__(
        self, module: str, arguments: Sequence[object], files: Sequence[int], folder: str | None = None
    ) -> None:
        """Starts it, in *folder*, with this interpreter's options; it inherits *files*.

        To be called inside :func:`starting`.
        """
        command = [*interpreter(), "-m", module, *map(str, arguments)]
        with deferred():  # it takes signals that ask to end when it has handlers for them
            self._popen = subprocess.Popen(
                command, pass_fds=files, stdin=subprocess.DEVNULL, process_group=0, cwd=folder
            )
        self.pid = self._popen.pid
        self._code: int | None = None
        self._reaped = threading.Event()
        self.fileno: int | None = None
        """A descriptor that becomes readable when it dies; None where there is none to be had."""
        try:
            self.fileno = _open(self.pid)  # before it can be reaped: until then the number is its own
            Background(target=self._reap, name=f"reaper-{self.pid}").start()
        except BaseException:
            self._kill_group()
            self._popen.wait()
            self.close()
            raise

    def _reap(self) -> None:
        """Waits for its end, kills what it has started and left behind, and reaps it.

        In this order: as long as it is not reaped, no other process and no other group can get its number. Afterwards
        another group could, if this one has no members left. Nothing else may reap it, so nothing else polls it.
        """
        if hasattr(os, "waitid"):
            with suppress(ChildProcessError):  # the application has reaped it: its number may be another one's by now
                ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
                assert ended is not None  # it is without WNOHANG
                self._code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                self._kill_group()
            self._popen.wait()
        else:
            self._code = self._popen.wait()
            self._kill_group()
        self._reaped.set()

    def _kill_group(self) -> None:
        with suppress(OSError):  # none of it is left, or it is another user's by now
            os.killpg(self.pid, signal.SIGKILL)

    @property
    def ended(self) -> bool:
        """Whether it has died and was reaped."""
        return self._reaped.is_set()

    def signal(self, number: int) -> None:
        """Sends a signal to it, if it still lives."""
        if self._reaped.is_set():
            return
        with suppress(OSError):
            if self.fileno is not None:
                signal.pidfd_send_signal(self.fileno, number)
            else:
                os.kill(self.pid, number)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end. Returns whether it has come."""
        return self._reaped.wait(seconds)

    def kill(self, patience: float = 0.0) -> None:
        """Ends it with all that it has started, at the latest after *patience* seconds, and waits for that."""
        if not self.wait(patience):
            self.signal(signal.SIGKILL)
            self.wait()

    def how_it_ended(self) -> str:
        """The signal or the exit code, once it has ended."""
        code = self._code
        if code is None:
            return "in a way that is not known: the application itself has reaped it"
        if code >= 0:
            return f"with exit code {code}"
        with suppress(ValueError):
            return f"by signal {-code} ({signal.Signals(-code).name})"
        return f"by signal {-code}"

    def close(self) -> None:
        """Closes the descriptor. The process should have ended."""
        if self.fileno is not None:
            os.close(self.fileno)
            self.fileno = None


def _open(pid: int) -> int | None:
    if not hasattr(os, "pidfd_open") or not hasattr(signal, "pidfd_send_signal"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno in SCARCE:
            raise
        return None  # an old kernel, or a sandbox that does not let it
