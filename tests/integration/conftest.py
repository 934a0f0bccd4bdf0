"""What many integration tests call."""

import os

import pytest
from support.draining import drain
from support.emptied import Emptied

from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded
from fbtasks.testing import eager


@pytest.fixture(scope="session")
def emptied(template, tmp_path_factory):
    databases = Emptied(template, tmp_path_factory.mktemp("emptied"))
    yield databases
    databases.close()


@pytest.fixture
def app(request):
    """An app with an empty queue: with the marker ``emptied`` of a database that others have had.

    A test that asks for the file or the project of its database has one of its own.
    """
    own = {"url", "project"}.intersection(request.fixturenames) or os.environ.get("FBTASKS_TEST_URL")
    if own or request.node.get_closest_marker("emptied") is None:
        yield request.getfixturevalue("app")
        return
    with request.getfixturevalue("emptied").app() as app:
        yield app


@pytest.fixture
def add(app):
    return app.task(name="add")(lambda a, b: a + b)


@pytest.fixture
def session(app):
    with app.database.session() as session:
        yield session


@pytest.fixture
def claim(session):
    """Claims as worker 1 does."""

    def claim(most=100, queue="default", **options):
        return session.run(lambda t: tasks.claim(t, 1, queue, most, **options))

    return claim


@pytest.fixture
def end(session):
    """Records what became of claims: that they have succeeded, and nothing of them is kept."""

    def end(claims, outcome=Succeeded(keep=False)):  # noqa: B008  # it cannot be changed
        assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, outcome) for each in claims])) == []

    return end


@pytest.fixture(params=["drained", "eager"])
def run(request, app):
    """Runs a signature, and returns its result."""

    def drained(signature, **options):
        result = signature.apply_async(**options)
        drain(app)
        return result

    def eagerly(signature, **options):
        with eager(app):
            return signature.apply_async(**options)

    return drained if request.param == "drained" else eagerly
