"""Transports of kombu beside each other: messages published, and from publication to acknowledgement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.bench import Bench
from benchmarks.database import NotMeasured
from benchmarks.figures import Sample
from benchmarks.servers import File, Redis, Server
from benchmarks.trial import ROOT


@dataclass(frozen=True, kw_only=True)
class Transport:
    """One transport. That of fbtasks runs in the interpreter of the benchmark, the others in that of their packages."""

    key: str
    label: str
    packages: tuple[str, ...] = ()
    broker: type[Server] | None = None
    scheme: str = ""

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One round of ``benchmarks.kombu_messages``."""
        ours = self.broker is None
        python = sys.executable if ours else str(bench.peers.programs / "python")
        url = bench.database.url if ours else bench.peers.broker(self)
        command = [python, "-m", "benchmarks.kombu_messages", url, "--messages", str(bench.scale.messages)]
        done = subprocess.run(
            [*command, "--rounds", "1", "--json"], cwd=bench.new_folder(), env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        if done.returncode:
            raise NotMeasured(f"it failed: {done.stderr.strip()[-500:]}")
        for what, rates in json.loads(done.stdout)[url].items():
            yield Sample(what, what, rates[0], "messages/s")


OURS = Transport(key="kombu/firebird", label="kombu, fbtasks")
REDIS = Transport(key="kombu/redis", label="kombu, Redis", packages=("kombu", "redis"), broker=Redis)
SQLITE = Transport(
    key="kombu/sqlite", label="kombu, SQLAlchemy on SQLite", packages=("kombu", "SQLAlchemy"), broker=File,
    scheme="sqla+sqlite:///",
)  # fmt: skip
