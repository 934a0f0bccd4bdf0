"""Servers of Debian's packages, each on a private port and with a folder of its own, ended with the benchmark."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.database import NotMeasured
from benchmarks.processes import die_with_parent


def free_port() -> int:
    """A port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def output_of(command: list[str]) -> str:
    """What *command* prints; nothing when it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except OSError:
        return ""


class Server:
    """One server; started at its first use."""

    name = ""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._refused: NotMeasured | None = None
        self._started = False

    def ensure_started(self) -> None:
        """Starts it, once. Raises :class:`NotMeasured`, and the same again at once the next time."""
        if self._refused is not None:
            raise self._refused
        if not self._started:
            try:
                self.start()
            except NotMeasured as error:
                self._refused = error
                raise
            self._started = True

    def start(self) -> None:
        """Starts it. Raises :class:`NotMeasured`."""

    def answers(self) -> bool:
        """Whether it serves already."""
        return True

    def version(self) -> str:
        """The server's version."""
        raise NotImplementedError

    def fresh(self) -> str:
        """The URL of an empty broker."""
        raise NotImplementedError

    def launch(self, command: Sequence[str | Path], prepare: Callable[[], None]) -> None:
        """Starts its process, and waits until it answers."""
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, preexec_fn=prepare,
                start_new_session=True,
            )  # fmt: skip

        limit = time.monotonic() + 30
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > limit:
                self.close()
                raise NotMeasured(f"it did not start: {(self.folder / 'log').read_text(errors='replace')[-500:]}")
            time.sleep(0.05)

    def close(self) -> None:
        """Stops it."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Redis(Server):
    """redis-server, keeping nothing on disk."""

    name = "Redis"
    program = "redis-server"

    def version(self) -> str:
        words = output_of([self.program, "--version"]).split()
        return next((word.removeprefix("v=") for word in words if word.startswith("v=")), "unknown")

    def start(self) -> None:
        if shutil.which(self.program) is None:
            raise NotMeasured("redis-server is not installed")
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.launch([self.program, *options, "--dir", str(self.folder)], die_with_parent())

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def fresh(self) -> str:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(b"FLUSHALL\r\n")
            assert connection.recv(16).startswith(b"+OK")
        return f"redis://127.0.0.1:{self.port}/0"


class Postgres(Server):
    """postgres with its own defaults. It refuses to run as root: then it runs as the package's user."""

    name = "PostgreSQL"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.databases = 0
        self.data = self.folder / "data"

    @staticmethod
    def programs() -> Path | None:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
        if found:
            return found[-1].parent
        other = shutil.which("initdb")
        return None if other is None else Path(other).parent

    def version(self) -> str:
        programs = self.programs()
        words = output_of([str(programs / "postgres"), "--version"]).split() if programs else []
        return words[2] if len(words) > 2 else "unknown"

    def start(self) -> None:
        programs = self.programs()
        if programs is None:
            raise NotMeasured("postgresql is not installed")
        prefix: list[str | Path] = []
        if os.geteuid() == 0:
            prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
            shutil.chown(self.folder, "postgres", "postgres")
        done = subprocess.run(
            [*prefix, programs / "initdb", "-D", self.data, "-A", "trust", "-U", "bench", "-E", "UTF8", "--locale=C"],
            capture_output=True, text=True, cwd=self.folder,
        )  # fmt: skip
        if done.returncode:
            raise NotMeasured(f"initdb failed: {done.stderr[-500:]}")
        if prefix:
            prefix += ["--pdeathsig", "INT"]  # of a program of another user the kernel forgets who was to signal it
        command: list[str | Path] = [programs / "postgres", "-D", self.data, "-p", str(self.port)]
        options = ["-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        self.launch([*prefix, *command, *options], die_with_parent(signal.SIGINT))

    def _psql(self, sql: str) -> subprocess.CompletedProcess[str]:
        command = ["psql", "-X", "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", "bench", "-d", "postgres"]
        return subprocess.run([*command, "-c", sql], capture_output=True, text=True, cwd="/")

    def answers(self) -> bool:
        return self._psql("SELECT 1").returncode == 0

    def fresh(self) -> str:
        self.databases += 1
        name = f"bench{self.databases}"
        done = self._psql(f"CREATE DATABASE {name}")
        assert done.returncode == 0, done.stderr
        return f"postgresql://bench@127.0.0.1:{self.port}/{name}"


class File(Server):
    """No server: a file of SQLite."""

    name = "SQLite"
    files = 0

    def version(self) -> str:
        return sqlite3.sqlite_version

    def fresh(self) -> str:
        self.files += 1
        return str(self.folder / f"bench{self.files}.db")
