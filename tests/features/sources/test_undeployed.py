"""What workers have in their code and the database not so: it is told until it is put right, or no worker has it."""

import re
from collections import Counter

import pytest
from support.loops import opened
from support.programs import command_line
from support.sql import execute, one, rows

from fbtasks import FBTasks
from fbtasks.errors import StatementRefused
from fbtasks.features.sources import managing as service
from fbtasks.features.sources import operations as source_service
from fbtasks.features.sources.deploy import applying
from fbtasks.features.sources.undeployed import Undeployed
from fbtasks.firebird.session import Transaction
from fbtasks.queue.operations.workers import get_health
from fbtasks.queue.register import processes

TABLE = "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(20))"
NO_TABLE = "the database has no table 'ORDERS' (fbtasks subscriptions apply -A shop)"
NO_TRIGGER = "it has no trigger yet (fbtasks subscriptions apply -A shop)"


@pytest.fixture
def app(url):
    """An app whose workers deploy what they can, on a server, too."""
    app = FBTasks("test", url, auto_migrate=True)
    yield app
    app.close()


class Worker:
    """What a worker does for its sources, without the rest of it."""

    def __init__(self, app, queues=("default",), path="shop"):
        self.app = app
        self.queues = queues
        app.path = path
        self.sources = Undeployed(app, self)
        with app.database.session() as session:
            self.sources.begin(session)
        self.register()

    def register(self):
        given = {"host": "here", "pid": 1, "pid_start": 1, "lease": 30.0, "name": "w", "queues": ["default"]}
        with self.app.database.session() as session:
            self.id = session.run(lambda t: processes.register(t, "worker", **given))

    def look(self):
        """A minute later."""
        with self.app.database.session() as session:
            self.sources.do(session)

    def leave(self):
        with self.app.database.session() as session:
            session.call("FBTASKS_WORKER.UNREGISTER", self.id)


def told(app):
    found = get_health(app.database, 300).problems["sources"]
    named = [(re.fullmatch(r"subscription (\S+)(?: \(app (.*)\))?", each.what), each.problem) for each in found]
    return [(*match.groups(), problem) for match, problem in named if match]


def listed(app):
    return [
        (row.id, row.name, row.app, row.state, row.problems) for row in app.database.use(source_service.list_sources)
    ]


def changed(app, table="ORDERS", **options):
    app.on_change(table, name="paid", **{"insert": True, **options})(id)


def test_a_table_that_is_not_there_is_told_until_it_is_deployed(app):
    changed(app)
    worker = Worker(app)
    worker.look()
    assert told(app) == [("paid", "test", NO_TABLE)]
    assert not get_health(app.database, 300).healthy
    assert listed(app) == [(None, "paid", "test", "undeployed", [NO_TABLE])]
    (loaded,) = app.database.use(source_service.inspect_sources)
    assert (loaded.state, loaded.problems, loaded.waiting, loaded.kind) == ("undeployed", [NO_TABLE], 0, "change")
    execute(app, TABLE)
    worker.look()
    assert told(app) == [("paid", "test", NO_TABLE)]  # it has no trigger
    assert service.apply(app.database, app.name, app.features["sources"].feeds()).problems == {}
    assert told(app) == []
    assert get_health(app.database, 300).healthy
    assert listed(app) == [(1, "paid", "test", "active", [])]
    worker.look()
    assert told(app) == []


def test_a_worker_that_does_not_deploy_tells_of_triggers_that_are_not_there(app, url):
    execute(app, TABLE)
    other = FBTasks("test", url, auto_migrate=False)
    changed(other)
    worker = Worker(other)
    worker.look()
    assert told(app) == [("paid", "test", NO_TRIGGER)]
    service.apply(other.database, "test", other.features["sources"].feeds())
    assert told(app) == []
    other.close()


def test_a_definition_that_changed_is_told_beside_its_subscription(app, url):
    execute(app, TABLE)
    changed(app)
    service.apply(app.database, app.name, app.features["sources"].feeds())
    other = FBTasks("test", url, auto_migrate=False)
    changed(other, update=True)
    worker = Worker(other)
    for _ in range(2):
        worker.look()
        said = "the definition has changed (fbtasks subscriptions apply -A shop)"
        assert told(app) == [("paid", "test", said)]
        assert listed(app) == [(1, "paid", "test", "active", [said])]
    execute(app, "ALTER TRIGGER QUEUE_ON_1 INACTIVE")
    worker.look()
    assert [each[2] for each in told(app)] == [said, "its trigger is inactive (fbtasks subscriptions apply)"]
    service.apply(app.database, app.name, app.features["sources"].feeds())  # by the code that the worker does not have
    assert [each[2] for each in told(app)] == [said]
    service.apply(other.database, "test", other.features["sources"].feeds())
    assert told(app) == []
    worker.look()
    assert told(app) == []
    other.close()


def test_a_refused_poll_is_told_until_its_table_has_the_column(app, caplog):
    execute(app, TABLE)
    app.poll_table("ORDERS", key="ID", columns="TOTAL", name="served")(id)
    app.poll_table("ORDERS", key="ID", columns="TOTAL", queue="other", name="elsewhere")(id)
    worker = Worker(app)
    said = "the table 'ORDERS' has no column 'TOTAL'."
    for _ in range(2):
        worker.look()
        assert told(app) == [("elsewhere", "test", said), ("served", "test", said)]
    # What the worker polls itself it says where it polls.
    assert caplog.messages == [
        f"Subscription elsewhere could not be deployed: {said} Run: fbtasks subscriptions apply -A shop"
    ]
    execute(app, "ALTER TABLE ORDERS ADD TOTAL INTEGER")
    worker.look()
    assert told(app) == []
    assert worker.sources._refused == {}


def test_a_handler_of_an_event_that_is_refused_is_told(app, monkeypatch):
    app.on_event("order.paid", name="mail")(id)

    def refused(*given, **options):
        raise StatementRefused("not today")

    with monkeypatch.context() as patch:
        patch.setattr(applying.subscriptions, "subscribe", refused)
        worker = Worker(app)
    worker.look()
    assert told(app) == [("mail", "test", "not today")]
    service.apply(app.database, app.name, app.features["sources"].feeds())
    assert told(app) == []


def test_what_is_told_goes_with_the_last_worker_that_has_it(app):
    changed(app)
    first, second = Worker(app), Worker(app)
    first.look()
    second.look()
    assert told(app) == [("paid", "test", NO_TABLE)]
    assert len(app.database.use(source_service.list_sources)) == 1
    first.leave()
    assert told(app) == [("paid", "test", NO_TABLE)]
    execute(app, "UPDATE QUEUE_PROCESS SET LEASE_UNTIL = HEARTBEAT_TIME")
    assert told(app) == listed(app) == []
    second.leave()
    assert one(app, "SELECT COUNT(*) FROM QUEUE_UNDEPLOYED") == 0


def test_a_worker_that_was_taken_for_dead_tells_it_again(app):
    changed(app)
    worker = Worker(app)
    worker.look()
    worker.leave()
    assert told(app) == []
    worker.register()
    worker.look()
    assert told(app) == [("paid", "test", NO_TABLE)]


def test_two_apps_with_a_task_of_one_name_are_told_apart(app, url):
    other = FBTasks("other", url)
    for each in (app, other):
        changed(each)
        Worker(each).look()
    assert [each[:2] for each in told(app)] == [("paid", "other"), ("paid", "test")]
    execute(app, TABLE)
    service.apply(app.database, app.name, app.features["sources"].feeds())
    assert [each[:2] for each in told(app)] == [("paid", "other")]
    assert [(row.app, row.state) for row in app.database.use(source_service.list_sources)] == [
        ("test", "active"),
        ("other", "undeployed"),
    ]
    other.close()


def test_a_refusal_is_logged_once_a_minute_in_one_message(app, caplog):
    changed(app, when="new.STATSU = 'x'")
    execute(app, TABLE)
    worker = Worker(app)
    worker.look()
    (first,) = caplog.messages
    assert first.startswith("Subscription paid could not be deployed: on_change('ORDERS'): when=")
    assert "does not compile" in first
    assert first.endswith(" as new.COLUMN. Run: fbtasks subscriptions apply -A shop")
    worker.look()
    assert caplog.messages[1] == first.replace(" could not be deployed", "")


def test_a_worker_notes_only_what_is_new(app, monkeypatch):
    seen = Counter()
    rows_of = Transaction.rows

    def counted(transaction, name, *given, **more):
        seen[name] += 1
        return rows_of(transaction, name, *given, **more)

    Worker(app).sources.do(None)  # asks the database nothing
    changed(app)
    worker = Worker(app)
    worker.look()
    monkeypatch.setattr(Transaction, "rows", counted)
    for _ in range(3):
        worker.look()
    assert seen == {"subscriptions": 3, "source_triggers": 3}


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 255])
def test_long_names_and_problems_have_room(app, name):
    app.poll_table(name, key="ID", when="ID > " + "9" * 400, name=name)(id)
    Worker(app).look()
    ((said, _, problem),) = told(app)
    assert said == name
    assert problem.startswith("the database has no table")


def test_a_worker_tells_it_from_its_first_turn_to_its_end(app, caplog):
    changed(app)
    execute(app, TABLE.replace("ORDERS", "INBOX"))
    app.poll_table("INBOX", key="ID", when="TOTAL > 5", name="poll")(id)
    app.path = "shop"
    with opened(app, name="short", burst=True) as loop:
        loop.run()
        (paid, poll) = told(app)
        assert paid == ("paid", "test", NO_TABLE)
        assert poll[:2] == ("poll", "test")
        assert poll[2].startswith("poll_table('INBOX'): when='TOTAL > 5' does not compile (")
    assert told(app) == []
    said = [record.getMessage().partition(":")[0] for record in caplog.records if record.levelname != "INFO"]
    assert said == ["Subscription paid could not be deployed", "Polling INBOX for poll fails"]


def test_the_command_line_tells_it(app, url, capsys):
    changed(app)
    Worker(app).look()
    app.close()
    assert command_line("health", "--url", url) == 1
    assert capsys.readouterr().out == f"subscription paid (app test): {NO_TABLE}\n"
    for command in (["subscriptions", "list"], ["inspect", "sources"]):
        assert command_line(*command, "--url", url) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "undeployed" in out
        assert "the database has no table 'ORDERS'" in out
    assert rows(app, "SELECT NAME FROM QUEUE_SUBSCRIPTION") == []
