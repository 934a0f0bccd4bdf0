"""The other systems' virtual environment and the servers that they need."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from benchmarks.database import NotMeasured
from benchmarks.servers import Server

_VERSIONS = (
    "import importlib.metadata, json;"
    "print(json.dumps({d.name.lower(): d.version for d in importlib.metadata.distributions()}))"
)


class NeedsBroker(Protocol):
    """A system or a transport."""

    @property
    def packages(self) -> tuple[str, ...]:
        """What must be installed for it."""

    @property
    def broker(self) -> type[Server] | None:
        """The server that it needs."""

    @property
    def scheme(self) -> str:
        """What its URLs have in front of the server's."""


class Peers:
    """Servers are started when a system first needs them, and stopped with the block."""

    def __init__(self, venv: Path | None, folder: Path) -> None:
        self.programs = (venv or folder).absolute() / "bin"
        self._folder = folder
        self._servers: dict[type[Server], Server] = {}
        self._versions = self._installed()

    def _installed(self) -> dict[str, str]:
        """The versions of all packages in the virtual environment, by their names in lower case."""
        try:
            done = subprocess.run([self.programs / "python", "-c", _VERSIONS], capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        found: dict[str, str] = json.loads(done.stdout)
        return found

    def __enter__(self) -> Self:
        self._folder.mkdir()
        self._folder.chmod(0o711)  # a server may run as another user, who passes through
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for server in self._servers.values():
            server.close()

    def broker(self, system: NeedsBroker) -> str:
        """The URL of an empty broker of a system or transport. Raises :class:`NotMeasured`."""
        lacking = [name for name in system.packages if name.lower() not in self._versions]
        if lacking:
            raise NotMeasured(f"not installed: {', '.join(lacking)}")
        assert system.broker is not None
        return f"{system.scheme}{self._server(system.broker).fresh()}"

    def _server(self, kind: type[Server]) -> Server:
        if kind not in self._servers:
            self._servers[kind] = kind(self._folder / kind.name.lower())
        self._servers[kind].ensure_started()
        return self._servers[kind]

    def versions(self, system: NeedsBroker) -> str:
        """What was measured, in which versions."""
        parts = [f"{name} {self._versions.get(name.lower(), 'missing')}" for name in system.packages]
        if system.broker is not None and system.broker in self._servers:
            parts.append(f"{system.broker.name} {self._servers[system.broker].version()}")
        return ", ".join(parts)
