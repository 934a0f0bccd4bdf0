"""A pytest plugin: the fixture ``fbtasks_url``."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def fbtasks_url(tmp_path: Path) -> str:
    """The URL of a fresh embedded database, gone after the test."""
    return f"firebird://{tmp_path}/fbtasks-test.fdb"
