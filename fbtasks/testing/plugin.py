"""A pytest plugin: the fixture ``fbtasks_url``, and no test on a database that is none of a test's."""

from __future__ import annotations

import fnmatch
import os
import tempfile
from pathlib import Path

import pytest

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.url import DatabaseURL

_ALLOWED = "fbtasks_databases"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the setting that names databases which tests may open."""
    parser.addini(
        _ALLOWED,
        "Databases that tests may open, beside files in pytest's own temporary folders: patterns of URLs, a line each.",
        type="linelist",
    )


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

    Database.may_open = staticmethod(may_open)


def pytest_unconfigure() -> None:
    """Refuses no database any more."""
    Database.may_open = None


@pytest.fixture
def fbtasks_url(tmp_path: Path) -> str:
    """The URL of a fresh embedded database, gone after the test."""
    return str(DatabaseURL(f"{tmp_path}/fbtasks-test.fdb"))
