"""A pytest plugin: fixtures for an app's tests, and no test on a database that is none of a test's.

pytest loads it in every run, so what needs the engine is imported when a fixture is used.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fbtasks.errors import ConfigurationError
from fbtasks.url import DatabaseURL

if TYPE_CHECKING:
    from fbtasks import FBTasks
    from fbtasks.testing import EnqueuedTask
    from fbtasks.testing.worker import WorkerProcess

_ALLOWED = "fbtasks_databases"
_APP = "fbtasks_app"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the settings."""
    parser.addini(
        _ALLOWED,
        "Databases that tests may open, beside files in pytest's own temporary folders: patterns of URLs, a line each.",
        type="linelist",
    )
    parser.addini(_APP, "The app of the fixture fbtasks_app: MODULE or MODULE:NAME, as -A of fbtasks worker takes it.")


def pytest_configure(config: pytest.Config) -> None:
    """Begins to refuse other databases."""
    patterns = config.getini(_ALLOWED)
    # Any pytest-of-USER: processes of one run have folders side by side (pytest-xdist), and may share a database there.
    folder = os.path.realpath(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir())
    begins = [os.path.join(folder, "pytest-of-")]
    if given := config.getoption("basetemp"):
        begins.append(os.path.join(os.path.realpath(given), ""))

    def may_open(url: DatabaseURL) -> None:
        if url.embedded and os.path.realpath(url.database).startswith(tuple(begins)):
            return
        if not any(fnmatch.fnmatchcase(str(url), pattern) for pattern in patterns):
            raise ConfigurationError(
                f"a test is about to use {url}, which is no database of a test: it may be the one that people work "
                "with. Point the app elsewhere, in a fixture: with fbtasks.testing.on_database(app, fbtasks_url): "
                f"yield app. Or allow it in the settings of pytest: {_ALLOWED} = {url}"
            )

    DatabaseURL.may_open = staticmethod(may_open)


def pytest_unconfigure() -> None:
    """Refuses no database any more."""
    DatabaseURL.may_open = None


@pytest.fixture(scope="session")
def _fbtasks_template(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with an empty queue: to make one takes ten times as long as to copy it.

    The first database that this process opens, and so the lock directory for all of them: it outlives each test. Of the
    processes of one run (pytest-xdist) the first one makes it, and the others have copies.
    """
    from fbtasks.firebird.embedded.lockdir import exclusive
    from fbtasks.testing.helpers import make_database

    path = tmp_path_factory.mktemp("fbtasks") / "template.fdb"
    if not hasattr(pytestconfig, "workerinput"):
        make_database(path)
        return path
    shared = tmp_path_factory.getbasetemp().parent / "fbtasks-template.fdb"
    with exclusive(shared.with_suffix(".lock")):
        if not shared.exists():
            make_database(path)
            part = shutil.copyfile(path, shared.with_suffix(".part"))
            os.replace(part, shared)
            return path
    make_database(path, shared)
    return path


@pytest.fixture
def fbtasks_url(_fbtasks_template: Path, tmp_path: Path) -> str:
    """The URL of a fresh embedded database with an empty queue, gone after the test."""
    from fbtasks.testing.helpers import make_database

    return make_database(tmp_path / "fbtasks-test.fdb", _fbtasks_template)


@pytest.fixture
def fbtasks_app(pytestconfig: pytest.Config, fbtasks_url: str) -> Iterator[FBTasks]:
    """The app that the settings of pytest name, on a fresh database."""
    from fbtasks.run.importing import import_app
    from fbtasks.testing import on_database

    with on_database(import_app(_app_path(pytestconfig)), fbtasks_url) as app:
        yield app


@pytest.fixture
def fbtasks_drain(fbtasks_app: FBTasks) -> Callable[..., None]:
    """Runs what is due in this process: :func:`fbtasks.testing.drain` for the app."""
    from fbtasks.testing import drain

    return partial(drain, fbtasks_app)


@pytest.fixture
def fbtasks_enqueued(fbtasks_app: FBTasks) -> Callable[..., list[EnqueuedTask]]:
    """Returns what has been enqueued and has not ended: :func:`fbtasks.testing.enqueued` for the app."""
    from fbtasks.testing import enqueued

    return partial(enqueued, fbtasks_app)


@pytest.fixture
def fbtasks_worker(pytestconfig: pytest.Config, fbtasks_app: FBTasks) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts a worker, with options of ``fbtasks worker``, and returns it when it is registered. The test ends it."""
    from fbtasks.testing.worker import WorkerProcess

    path = _app_path(pytestconfig)
    with ExitStack() as workers:
        yield lambda *options: workers.enter_context(WorkerProcess(fbtasks_app, path, options))


def _app_path(config: pytest.Config) -> str:
    path: str = config.getini(_APP)
    if not path:
        raise ConfigurationError(
            f"no app is named: put {_APP} = MODULE:NAME into the settings of pytest, as -A of fbtasks worker takes it. "
            f"Or write a fixture {_APP} that yields the app, for all fixtures but fbtasks_worker."
        )
    return path
