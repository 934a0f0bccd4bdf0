"""What many integration tests call."""

import pytest


@pytest.fixture
def add(app):
    return app.task(name="add")(lambda a, b: a + b)
