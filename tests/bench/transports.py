"""Transports of kombu beside each other: messages published, and from publication to acknowledgement."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.servers import File, Redis, Unavailable
from fbtasks.bench.figures import Sample

TOOL = Path(__file__).resolve().parents[2] / "tools" / "bench_kombu.py"
MESSAGES = 500
MEASURES = ("publish", "publish in a batch", "receive and ack", "publish to ack")


@dataclass(frozen=True, kw_only=True)
class Transport:
    """One transport. Ours runs in the interpreter of the benchmark, the others in that of the peers."""

    key: str
    title: str
    packages: tuple[str, ...] = ()
    server: type = File
    scheme: str = ""

    @property
    def label(self):
        return f"kombu, {self.title}"


OURS = Transport(key="transport/firebird", title="fbtasks")
ALL = (
    OURS,
    Transport(key="transport/redis", title="Redis", packages=("kombu", "redis"), server=Redis),
    Transport(key="transport/sqlite", title="SQLAlchemy on SQLite", packages=("kombu", "SQLAlchemy"),
              scheme="sqla+sqlite:///"),
)  # fmt: skip


def measure(peers, transport, url, scale):
    """Samples of one transport. Raises Unavailable."""
    python = sys.executable if transport is OURS else peers.programs / "python"
    address = url if transport is OURS else transport.scheme + peers.fresh(transport)
    command = [python, TOOL, address, "--messages", str(max(50, int(MESSAGES * scale))), "--rounds", "1", "--json"]
    done = subprocess.run(command, cwd=peers.folder, env={**os.environ}, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise Unavailable(f"it failed: {done.stderr.strip()[-500:]}")
    for what, rates in json.loads(done.stdout)[address].items():
        yield Sample(f"{transport.key}/{what}", f"{transport.label}, {what}", rates[0], "messages/s")
