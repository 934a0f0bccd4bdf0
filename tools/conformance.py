#!/usr/bin/env python3
"""Runs the integration suites that ship with kombu and Celery against this transport and result backend.

    pip install -e '.[test-server]'
    tools/conformance.py kombu --url firebird:///tmp/suite.fdb
    tools/conformance.py celery --url firebird:///tmp/suite.fdb [--short] [--backend URL] [--as-redis] [...]

The database is made when it is missing. What follows goes to pytest. Some of Celery's tests use a Redis on the side:
``--redis HOST:PORT``, which needs the package redis. ``--short`` runs those that take a few seconds each; ``make
test-server`` does so.

The suites are taken from the source distributions of the versions that are installed here; pip fetches them once, into
``.suites``. Nothing of them is in this project.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

from fbtasks import FBTasks
from fbtasks.errors import DatabaseError
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".suites"
SHORT = ("t/integration/test_tasks.py", "t/integration/test_canvas.py::test_chain")
LEFT_OUT = (
    "complex_canvas",  # fails with Redis as well: it takes longer than its own limit
    "rabbitmq",  # needs a Redis on the side
    "started_elsewhere",
    "test_expired",
    "test_retry",
    "with_eta",
)
"""Tests that the short form leaves out, by parts of their names; those without a reason take ten seconds and more."""

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


def make(url: str) -> None:
    """Makes the database, with a queue, unless it is there."""
    parsed = DatabaseURL.parse(url)
    try:
        connections.connect(parsed).close()
    except DatabaseError:
        connections.connect(parsed, create=True).close()
    with closing(FBTasks("suite", url)) as app:
        app.migrate()


def run(folder: Path, arguments: list[str], env: dict[str, str]) -> int:
    """Runs pytest on a suite; its own configuration is left aside."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    # Celery's tests of its log read what a worker says at this level.
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(folder), "WORKER_LOGLEVEL": "INFO", **env}
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(folder), "-p", "no:cacheprovider",
               "-p", "no:rerunfailures", "-o", "python_classes=test_* Test*", "-o", "fbtasks_databases=*",
               *arguments]  # fmt: skip
    return subprocess.run(command, cwd=folder, env=env).returncode


def kombu(url: str, arguments: list[str]) -> int:
    """Runs kombu's base classes, bound to this transport."""
    folder = source("kombu")
    bound = folder / "t" / "integration" / "test_firebird_bound.py"
    bound.write_text(BINDING)
    parts = urlsplit(url)
    dead = url.replace(f":{parts.port}/", ":1/") if parts.port else "firebird://localhost:1//no/such.fdb"
    return run(folder, [str(bound), *(arguments or ["-q"])], {"SUITE_URL": url, "SUITE_DEAD_URL": dead})


def celery(url: str, backend: str, redis: str | None, as_redis: bool, short: bool, arguments: list[str]) -> int:
    """Celery's own suite with broker and result backend here."""
    for name in ("pydantic", *(["redis"] if redis else [])):
        if importlib.util.find_spec(name) is None:
            raise SystemExit(f"Celery's suite needs {name}, which is not installed: pip install {name}")
    folder = source("celery")
    env = {"TEST_BROKER": url, "TEST_BACKEND": backend}
    if redis:
        env["REDIS_HOST"], _, env["REDIS_PORT"] = redis.partition(":")
    plugins = ["-p", "celery.contrib.pytest"]
    if as_redis:
        (folder / "firebird_alias.py").write_text(ALIAS)
        plugins += ["-p", "firebird_alias"]
        env["TEST_BACKEND"] = backend.replace("firebird:", "redis-is-not-meant:", 1)
    if short:
        arguments = ["-q", *SHORT, "-k", f"not ({' or '.join(LEFT_OUT)})", *arguments]
    return run(folder, [*plugins, *(arguments or ["-q", "t/integration/test_tasks.py"])], env)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=("kombu", "celery"))
    parser.add_argument("--url", required=True, help="a database of its own: the tests expect empty queues")
    parser.add_argument("--short", action="store_true", help="runs those of Celery's tests that are quick")
    parser.add_argument("--backend", help="the result backend, when it is not the same")
    parser.add_argument("--redis", help="HOST:PORT of a Redis that some of Celery's tests use on the side")
    parser.add_argument(
        "--as-redis", action="store_true", help="names the backend so that tests run which ask for a Redis"
    )
    options, arguments = parser.parse_known_args()
    make(options.url)
    if options.suite == "kombu":
        return kombu(options.url, arguments)
    backend = options.backend or options.url
    return celery(options.url, backend, options.redis, options.as_redis, options.short, arguments)


if __name__ == "__main__":
    sys.exit(main())
