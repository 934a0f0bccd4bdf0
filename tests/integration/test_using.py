"""A call goes into the transaction that it is given, or is refused: never into another one without a word."""

import contextlib
import os
import shutil
import sqlite3

import kombu
import pytest
from firebird.driver import DistributedTransactionManager
from support.draining import drain

import fbtasks.kombu
from fbtasks import EnqueueError, FBTasks, ResultTimeout, chain
from fbtasks.testing import eager

WANTED = (
    " is no connection that a call can be part of. Give the connection whose open transaction the call is to be part "
    "of: app.connect(), or your own connection of firebird-driver, which SQLAlchemy has as "
    "connection.connection.dbapi_connection, and Django as connection.connection. delay() without using() enqueues in "
    "a transaction of its own."
)


class Session:
    """As another library has it."""

    def __repr__(self):
        return "<Session>"


REFUSED = {
    "None": (None, f"None{WANTED}"),
    "text": ("firebird://ann:SECRET@host/x", f"text{WANTED}"),
    "a number": (5, f"5{WANTED}"),
    "another library's": (Session(), f"<Session>{WANTED}"),
}


@pytest.fixture
def connection(app):
    connection = app.connect()
    yield connection
    connection.close()


def count(connection):
    with connection.cursor() as cursor:
        number = cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0]
    connection.commit()
    return number


@contextlib.contextmanager
def refused(message):
    with pytest.raises(EnqueueError) as caught:
        yield
    assert str(caught.value) == message


@pytest.mark.no_database
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_connection_is_refused(app, add, what):
    given, message = REFUSED[what]
    with refused(message):
        add.using(given).delay(1, 2)
    with refused(message), fbtasks.kombu.in_transaction(given):
        pass
    if app.settings.url.embedded:
        assert not os.path.exists(app.settings.url.database), "nothing was opened for it"


def test_what_is_near_a_connection_is_refused(add, connection):
    both = DistributedTransactionManager([connection])
    manager = connection.transaction_manager()
    manager.close()
    with connection.cursor() as cursor, contextlib.closing(sqlite3.connect(":memory:")) as other:
        for given in (cursor, other, both, manager, add.app):
            with pytest.raises(EnqueueError, match="is no connection that a call can be part of"):
                add.using(given)
    both.close()
    assert count(connection) == 0


def test_a_closed_connection_is_refused_whenever_it_was_closed(app, add):
    connection = app.connect()
    bound = add.using(connection)
    bound.delay(1, 2)
    connection.rollback()
    connection.close()
    message = f"what is closed{WANTED}"
    for enqueue in (
        lambda: bound.delay(1, 2),
        lambda: bound.delay_many([(1, 2)]),
        lambda: add.using(connection),
        lambda: fbtasks.kombu.in_transaction(connection).__enter__(),
    ):
        with refused(message):
            enqueue()


ENDED = (
    "the transaction that the call was to be part of has ended, and another one would have nobody to commit it. Call "
    "using(connection), or enter in_transaction(connection), anew in each transaction."
)


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("is_open", [True, False], ids=["open", "not begun"])
@pytest.mark.parametrize("what", ["connection", "manager"])
def test_what_is_kept_is_for_one_transaction(add, connection, what, is_open, end):
    """For the one that is open when it is given, or else for the first that a call begins."""
    given = connection if what == "connection" else connection.transaction_manager()
    if is_open:
        given.begin()
    kept, workflow = add.using(given), chain(add.s(1, 2), add.s(3)).using(given)
    for call in (late := (lambda: kept.delay(1, 2), lambda: kept.delay_many([(1, 2)] * 2), workflow.delay)):
        call()
    given.commit(retaining=True)  # which goes on
    kept.delay(5, 6)
    getattr(given, end)()
    for another in (False, True):
        if another:
            given.begin()  # whoever commits it
        for call in late:
            with refused(ENDED):
                call()
    add.using(given).delay(7, 8)
    given.commit()
    assert count(connection) == (7 if end == "commit" else 6)


def test_connections_and_transactions_are_taken(app, add, connection):
    from firebird.driver import connect

    url = app.settings.url
    dsn = url.database if url.embedded else f"{url.host}/{url.port}:{url.database}"  # as the driver spells it
    own = connect(dsn, user=url.user or "SYSDBA", password=url.password, charset="UTF8")
    gone = add.using(own).delay(1, 1)
    own.rollback()
    manager = connection.transaction_manager()
    sent = [add.using(connection).delay(1, 2), add.using(manager).delay(3, 4), add.using(own).delay(5, 6)]
    assert drain(app) is None
    assert [result.status for result in sent] == ["PENDING"] * 3
    for each in (connection, manager, own):
        each.commit()
    drain(app)
    assert [result.get(timeout=10) for result in sent] == [3, 7, 11]
    with pytest.raises(ResultTimeout):
        gone.get(timeout=0.1)
    manager.close()
    own.close()
    with eager(app):  # which needs no connection, but None is not meant
        assert add.using(object()).delay(2, 3).get() == 5
        with pytest.raises(EnqueueError, match="None is no connection"):
            add.using(None)


@pytest.mark.no_database
@pytest.mark.embedded("it names several files")
def test_a_connection_to_another_database_is_refused(app, add, tmp_path, url, template):
    shutil.copyfile(template, tmp_path / "other.fdb")
    other = FBTasks("other", f"firebird://{tmp_path}/other.fdb")
    with contextlib.closing(other.connect()) as connection:
        message = (
            f"the connection is one to {tmp_path}/other.fdb, and the app's database is {app.settings.url}, where its "
            "workers look. Use app.connect(), or give FBTasks the url of that database."
        )
        with refused(message):
            add.using(connection)
        assert not os.path.exists(app.settings.url.database), "and none is made for the comparison"
        app.migrate()
        for _ in range(2):
            with refused(message):
                add.using(connection)
        with kombu.Connection(url) as broker:
            kombu.Queue("q", kombu.Exchange(""), routing_key="q")(broker.default_channel).declare()
            with (
                fbtasks.kombu.in_transaction(connection),
                pytest.raises(EnqueueError, match="the connection is one to"),
            ):
                broker.Producer().publish("x", exchange="", routing_key="q")
        fbtasks.kombu.close_all()
        assert count(connection) == 0
    other.close()


@pytest.mark.embedded("it names a file twice")
def test_one_database_may_have_several_names(app, tmp_path):
    """And the names are compared by what the database says it is, once for each connection."""
    app.migrate()
    os.symlink(tmp_path, tmp_path / "link")
    linked = FBTasks("linked", f"firebird://{tmp_path}/link/queue.fdb")
    add = linked.task(name="add")(lambda a, b: a + b)
    with contextlib.closing(app.connect()) as connection:
        add.using(connection).delay(1, 2)
        opened = []
        linked.database._open = lambda: opened.append(1)
        add.using(connection).delay(1, 2)
        assert opened == []
        connection.commit()
        assert count(connection) == 2
    linked.close()
