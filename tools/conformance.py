#!/usr/bin/env python3
"""Runs the integration suites that ship with kombu and Celery against this transport and result backend.

    tools/conformance.py kombu --url firebird:///tmp/suite.fdb
    tools/conformance.py celery --url firebird:///tmp/suite.fdb [--backend URL] [--redis HOST:PORT] [--as-redis] [...]

What follows goes to pytest.

The suites are taken from the source distributions of the versions that are installed here; pip fetches them once, into
``.suites``. Nothing of them is in this project.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".suites"

BINDING = """
import os
import kombu, pytest
import fbtasks.kombu
from t.integration import common

URL = os.environ["SUITE_URL"]
DEAD = os.environ["SUITE_DEAD_URL"]


@pytest.fixture
def connection():
    return kombu.Connection(URL)


@pytest.fixture
def invalid_connection():
    return kombu.Connection(DEAD)


@pytest.fixture
def failover_connection():
    made = kombu.Connection(f"{DEAD};{URL}")
    made.transport
    return made


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    pass


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass
"""


ALIAS = """
from celery.app import backends
from fbtasks.celery import FirebirdBackend


class Alias(FirebirdBackend):
    def __init__(self, app, url=None, **options):
        super().__init__(app, url="firebird:" + url.partition(":")[2], **options)


backends.BACKEND_ALIASES["redis-is-not-meant"] = "firebird_alias:Alias"
"""


def source(name: str) -> Path:
    """The folder of the source distribution of the installed version of *name*."""
    version = importlib.metadata.version(name)
    folder = CACHE / f"{name}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:",
                   f"{name}=={version}", "-d", str(CACHE)]  # fmt: skip
        subprocess.run(command, check=True)
        with tarfile.open(CACHE / f"{name}-{version}.tar.gz") as archive:
            archive.extractall(CACHE, filter="data")
    return folder


def run(folder: Path, arguments: list[str], env: dict[str, str]) -> int:
    """Runs pytest on a suite; its own configuration is left aside."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), **env}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider",
               "-p", "no:rerunfailures", "-o", "python_classes=test_* Test*", *arguments]  # fmt: skip
    return subprocess.run(command, cwd=folder, env=env).returncode


def kombu(url: str, arguments: list[str]) -> int:
    """Runs kombu's base classes, bound to this transport."""
    folder = source("kombu")
    bound = folder / "t" / "integration" / "test_firebird_bound.py"
    bound.write_text(BINDING)
    parts = urlsplit(url)
    dead = url.replace(f":{parts.port}/", ":1/") if parts.port else "firebird://localhost:1//no/such.fdb"
    return run(folder, [str(bound), *(arguments or ["-q"])], {"SUITE_URL": url, "SUITE_DEAD_URL": dead})


def celery(url: str, backend: str, redis: str | None, as_redis: bool, arguments: list[str]) -> int:
    """Celery's own suite with broker and result backend here."""
    folder = source("celery")
    env = {"TEST_BROKER": url, "TEST_BACKEND": backend}
    if redis:
        env["REDIS_HOST"], _, env["REDIS_PORT"] = redis.partition(":")
    plugin = []
    if as_redis:
        (folder / "firebird_alias.py").write_text(ALIAS)
        plugin = ["-p", "firebird_alias"]
        env["TEST_BACKEND"] = backend.replace("firebird:", "redis-is-not-meant:", 1)
    return run(folder, [*plugin, *(arguments or ["-q", "t/integration/test_tasks.py"])], env)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("kombu", "celery"))
    parser.add_argument("--url", required=True, help="a fresh database: the tests expect empty queues")
    parser.add_argument("--backend", help="the result backend, when it is not the same")
    parser.add_argument("--redis", help="HOST:PORT of a Redis that some of Celery's tests use on the side")
    parser.add_argument(
        "--as-redis", action="store_true", help="names the backend so that tests run which ask for a Redis"
    )
    options, arguments = parser.parse_known_args()
    if options.suite == "kombu":
        return kombu(options.url, arguments)
    return celery(options.url, options.backend or options.url, options.redis, options.as_redis, arguments)


if __name__ == "__main__":
    sys.exit(main())
