"""Roles: what `fbtasks grant` gives, and on a server what each role can and cannot do."""

import os
import re
import secrets
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
from support.golden import kept
from support.sheets import Shown
from support.sql import execute, rows
from support.users import Users, viewer, with_role

from fbtasks import FBTasks, FBTasksError, ResultTimeout
from fbtasks.config import Settings
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Publication, QueueSpec
from fbtasks.database import grants
from fbtasks.database.schema import grants as lines
from fbtasks.database.schema import numbered
from fbtasks.errors import AuthenticationError, ConfigurationError
from fbtasks.queue import results, tasks
from fbtasks.states import State
from fbtasks.testing import drain

SERVER = os.environ.get("FBTASKS_TEST_URL")


def ask(session, sql, *params):
    with session.connection.cursor() as cursor:
        cursor.stream_blob_threshold = -1
        rows = cursor.execute(numbered(sql, session.generation), params).fetchall()
    session.connection.commit()
    return rows


def rights(session, role):
    sql = (
        "SELECT TRIM(RDB$RELATION_NAME), TRIM(RDB$PRIVILEGE) FROM RDB$USER_PRIVILEGES "
        "WHERE RDB$USER = ? AND RDB$USER_TYPE = 13"
    )
    return {tuple(row) for row in ask(session, sql, role)}


def members(session, role):
    sql = "SELECT TRIM(RDB$USER), TRIM(RDB$FIELD_NAME) FROM RDB$USER_PRIVILEGES WHERE RDB$RELATION_NAME = ?"
    return {tuple(row) for row in ask(session, sql, role) if row[0] != "SYSDBA"}


def base(name):
    """The name of a package without its generation."""
    return re.sub(r"_\d+$", "", name)


def test_what_each_role_may_call(app):
    """Whatever is added to what a role may call is added to the list beside this file as well, deliberately."""
    with app.database.session() as session:
        for role in grants.ROLES:
            grants.grant(session, role, "ANN")
        sql = (
            "SELECT TRIM(U.RDB$USER), TRIM(U.RDB$RELATION_NAME), TRIM(P.NAME) FROM RDB$USER_PRIVILEGES U JOIN ("
            "SELECT RDB$PACKAGE_NAME, RDB$PROCEDURE_NAME FROM RDB$PROCEDURES WHERE COALESCE(RDB$PRIVATE_FLAG, 0) = 0 "
            "UNION ALL "
            "SELECT RDB$PACKAGE_NAME, RDB$FUNCTION_NAME FROM RDB$FUNCTIONS WHERE COALESCE(RDB$PRIVATE_FLAG, 0) = 0"
            ") P (PACKAGE, NAME) ON P.PACKAGE = U.RDB$RELATION_NAME "
            "WHERE U.RDB$USER STARTING WITH 'FBTASKS_' AND U.RDB$PRIVILEGE = 'X'"
        )
        found = sorted({f"{role} {base(package)}.{name}" for role, package, name in ask(session, sql)})
        alone = (
            "SELECT TRIM(RDB$PROCEDURE_NAME) FROM RDB$PROCEDURES WHERE RDB$SYSTEM_FLAG = 0 AND RDB$PACKAGE_NAME IS NULL"
        )
        assert ask(session, alone) == [], "all procedures are in packages"
        packages = {base(name) for (name,) in session.read("numbered_packages")}
    assert found == kept(Path(__file__).parent / "rights.txt", found)
    inner = packages - {line.name for line in lines() if line.kind == "PACKAGE"}
    assert inner == {"FBTASKS_CORE", "FBTASKS_HOOKS", "FBTASKS_SOURCES_OWNER"}
    assert {line.role for line in lines()} == set(grants.ROLES.values())


def test_granting_twice_is_granting_once(app):
    with app.database.session() as session:
        for role in grants.ROLES:
            assert grants.grant(session, role, "ANN")
            before = rights(session, grants.ROLES[role])
            assert not grants.grant(session, role, "ANN")
            assert rights(session, grants.ROLES[role]) == before
        assert grants.refresh(session) == 0
        producer = rights(session, "FBTASKS_PRODUCER")
        worker, operator = rights(session, "FBTASKS_WORKER"), rights(session, "FBTASKS_OPERATOR")
        assert members(session, "FBTASKS_PRODUCER") == {("ANN", "D")}
    asked = {"QUEUE_SCHEMA", "QUEUE_GENERATION", "QUEUE_FEATURE"}
    assert {name for name, letter in producer if letter == "S"} == asked
    assert {base(name) for name, letter in producer if letter == "X"} == {
        line.name for line in lines() if (line.kind, line.role) == ("PACKAGE", "FBTASKS_PRODUCER")
    }
    assert ("QUEUE_HISTORY", "S") in operator - worker
    assert ("QUEUE_SCHEDULE", "S") in worker & operator
    assert {letter for _, letter in producer | worker | operator} == {"X", "S"}


def test_roles_are_brought_up_to_date(app):
    with app.database.session() as session:
        reader, operator = f"FBTASKS_READER_{session.generation}", f"FBTASKS_OPERATOR_{session.generation}"
        grants.grant(session, "producer", "ANN")
        for statement in (
            f"REVOKE EXECUTE ON PACKAGE {reader} FROM ROLE FBTASKS_PRODUCER",
            f"GRANT EXECUTE ON PACKAGE {operator} TO ROLE FBTASKS_PRODUCER",
            "CREATE TABLE MINE (ID INTEGER)",
            "GRANT SELECT ON TABLE MINE TO ROLE FBTASKS_PRODUCER",
        ):
            session.run(lambda t, s=statement: t.script(s))
        session.run(lambda t: t.script("DROP ROLE FBTASKS_WORKER"))
    app.migrate()
    with app.database.session() as session:
        found = rights(session, "FBTASKS_PRODUCER")
        assert (reader, "X") in found
        assert (operator, "X") not in found
        assert ("MINE", "S") in found
        assert not rights(session, "FBTASKS_WORKER")


def test_odd_names_are_only_names(app):
    with app.database.session() as session:
        for name in ('x"; DROP TABLE QUEUE_TASK; --', "o'brien", "Ünï", "x" * 63):
            user = grants.user_name(f'"{name.replace(chr(34), chr(34) * 2)}"')
            assert user == name
            assert grants.grant(session, "producer", user)
            assert members(session, "FBTASKS_PRODUCER") == {(name, "D")}
            assert grants.revoke(session, "producer", user)
            assert not grants.revoke(session, "producer", user)
            assert not members(session, "FBTASKS_PRODUCER")
        session.run(lambda t: t.script("GRANT FBTASKS_PRODUCER TO USER ANN"))  # which is no default
        assert grants.grant(session, "producer", "ANN")
        assert members(session, "FBTASKS_PRODUCER") == {("ANN", "D")}


def test_names_are_those_of_a_login():
    assert [grants.user_name(text) for text in ("ann", "Ann_1$", "web-app", '"ann"', "Ünï")] == [
        "ANN", "ANN_1$", "web-app", "ann", "Ünï",
    ]  # fmt: skip
    for bad in ("", '""', " ann", "ann ", "a\nb", "x" * 64, "public", '"PUBLIC"', "a\0b"):
        with pytest.raises(ConfigurationError):
            grants.user_name(bad)
    with pytest.raises(ConfigurationError, match=r"'admin'.*producer, worker, operator"):
        grants.role_name("admin")


def test_the_command(request, project):
    project.run("migrate")
    if SERVER is not None:
        request.getfixturevalue("users").add()  # who sees no user but himself may not see others
    ann, bob = (f"{name}_{secrets.token_hex(6)}" for name in ("ann", "bob"))  # a server may have users
    done = project.run("grant", "producer", ann, bob)
    assert done.stdout == f"{ann.upper()} has the role producer now.\n{bob.upper()} has the role producer now.\n"
    assert ("permissions of the file" in done.stderr) == (SERVER is None)
    for name in (ann, bob):
        assert (f"no user {name.upper()} yet" in done.stderr) == (SERVER is not None)
    assert "had the role producer" in project.run("grant", "producer", ann).stdout
    assert project.run("grant", "producer", ann, "--revoke").stdout == f"{ann.upper()} has lost the role producer.\n"
    again = project.run("grant", "producer", ann, "--revoke")
    assert again.stdout == f"{ann.upper()} did not have the role producer.\n"
    wrong = project.run("grant", "admin", ann, check=False)
    assert (wrong.returncode, "'producer', 'worker', 'operator'" in wrong.stderr) == (2, True)
    public = project.run("grant", "producer", "public", check=False)
    assert (public.returncode, "Error: PUBLIC is everybody" in public.stderr) == (2, True)


def test_a_payload_goes_to_a_task_of_the_same_transaction_only(app):
    with app.database.session() as session:
        (number,) = ask(session, "SELECT ID FROM FBTASKS.ENQUEUE('x')")[0]
        session.run(lambda t: t.script(f"UPDATE QUEUE_TASK SET PAYLOAD = NULL WHERE ID = {number}"))
        session.call("FBTASKS_PRODUCER.PUT_PAYLOAD", number, b"[[1], {}]")
        assert session.read("payload", number) == []


# Messages of the kombu transport. The embedded engine takes any user at its word, and holds it to its rights.


class Messages:
    """The functions of ``messages``, and procedures, as one user calls them, each in a transaction of its own."""

    def __init__(self, url):
        self.shared = SharedDatabase(Settings("test", url=url))

    def __getattr__(self, name):
        function = getattr(messages, name)
        return lambda *args, **options: self.shared.use(lambda t: function(t, *args, **options))

    def declare_exchange(self, name, kind):
        return self.shared.use(lambda t: t.call("FBTASKS_CELERY_API.DECLARE_EXCHANGE", name, kind, 0, 0))

    def bind(self, queue, exchange, key):
        return self.shared.use(lambda t: t.call("FBTASKS_CELERY_API.BIND", queue, exchange, key))

    def queue(self, name, **options):
        return self.declare_queue(QueueSpec(name, **options), None).id

    def put(self, exchange, key, text=b"x", **options):
        return self.publish([Publication(exchange, key, text, **options)])[0][0]

    def ask(self, sql, *params):
        return self.shared.use(
            lambda t: t.driver.cursor().execute(numbered(sql, self.shared.database.generation), params).fetchall()
        )


@pytest.fixture
def people(app, url):
    """The users ``producer``, ``worker`` and ``owner``, by their roles."""
    app.migrate()
    with ExitStack() as stack:
        urls = {role: stack.enter_context(with_role(app, role)) for role in ("producer", "worker")}
        found = {role: Messages(each) for role, each in {**urls, "owner": url}.items()}
        yield found
        for each in found.values():
            each.shared.close()


def test_a_viewer_sees_what_dashboards_show_and_takes_no_action(app):
    app.limit("one", at_once=1)
    app.add_periodic(app.task(name="t", limits="one")(lambda: None), every=60)
    app.on_change("T", insert=True, name="changed")(lambda change: None)
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    app.migrate()
    end = (app.task(name="u", limits="one")(lambda: None).si() | app.task(name="v")(lambda: None).si()).delay()
    tables = ("QUEUE_TASK", "QUEUE_LIMIT", "QUEUE_SCHEDULE", "QUEUE_SUBSCRIPTION")
    before = [rows(app, f"SELECT * FROM {table}") for table in tables]
    values = {"at_once": "2", "rate": "1/s", "task": "1", "cron": "@daily", "every": "60", "args": "[]", "kwargs": "{}"}
    seen = {}
    with viewer(app) as theirs, closing(FBTasks("test", theirs)) as viewing:
        for feature in ("limits", "schedules", "workflows", "sources", "progress", "celery"):
            shown = Shown(viewing, feature)
            shown.of_task(end.id)
            seen[feature] = shown.keys(1)
            for key in seen[feature]:
                assert shown.detail(key) is not None
                for act in shown.sheet.actions.values():
                    with suppress(FBTasksError):
                        act.do(viewing, key, values)
    assert {name: len(keys) for name, keys in seen.items() if keys} == dict.fromkeys(
        ("limits", "schedules", "workflows", "sources"), 1
    )
    assert [rows(app, f"SELECT * FROM {table}") for table in tables] == before


def test_a_worker_is_told_what_a_task_failed_with_and_reads_no_history(app, people):
    """For its hooks."""
    worker = people["worker"]
    task = app.send_task("t", (1,), task_id="mine")
    execute(app, "UPDATE QUEUE_TASK SET STATE = 3, CLAIM_TIME = DATE '2020-01-01'")
    assert task.status == "PENDING"
    (number,) = worker.shared.use(lambda t: tasks.fail_parked(t, timedelta(days=1)))
    with worker.shared.database.session() as session:
        claim, failed = results.failure(session, number, 2)
    assert (claim.name, claim.task_id, claim.queue, claim.try_count) == ("t", "mine", "default", 2)
    assert failed.error_type == "fbtasks.errors.UnknownTaskError"
    with pytest.raises(Exception, match="no permission for SELECT access to TABLE QUEUE_HISTORY"):
        worker.ask("SELECT COUNT(*) FROM QUEUE_HISTORY")


def test_a_producer_confirms_a_queue_and_changes_none(people):
    producer, worker = people["producer"], people["worker"]
    number = worker.queue("orders", max_length=100, durable=True)
    worker.put("", "orders")
    assert producer.queue("orders", max_length=100, durable=True) == number
    for changed in (
        {"max_length": 0}, {"expires": 1}, {"message_ttl": 1}, {"dead_exchange": "amq.fanout"},
        {"dead_routing_key": "k"}, {"auto_delete": True}, {"durable": False},
    ):  # fmt: skip
        with pytest.raises(
            AuthenticationError, match=r"the queue orders was declared with other arguments.*grant ROLE"
        ):
            producer.queue("orders", **{"max_length": 100, "durable": True, **changed})
    assert producer.queue("mine", max_length=5) > number, "what is missing is made"
    producer.put("", "orders")
    assert worker.declare_queue(QueueSpec("orders"), None, passive=True).waiting == 2
    assert worker.queue("orders", max_length=1, durable=True) == number
    assert people["owner"].queue("orders", expires=10**6) == number
    assert worker.ask("SELECT MAX_LENGTH, EXPIRES_MS FROM QUEUE_MSG_QUEUE WHERE NAME = 'orders'") == [(None, 10**6)]


def test_no_arguments_of_a_queue_are_an_error_for_others(people):
    """Times beyond the last date, and lengths below none, given in SQL."""
    producer, worker = people["producer"], people["worker"]
    producer.ask(
        "SELECT ID FROM FBTASKS_CELERY_API.DECLARE_QUEUE('mine', FALSE, FALSE, FALSE, ?, ?, -7, NULL, NULL, NULL)",
        2**62, 2**62,
    )  # fmt: skip
    producer.bind("mine", "amq.topic", "#")
    assert worker.put("amq.topic", "orders.new") == 1
    assert worker.sweep().queues == 0
    columns = "MESSAGE_TTL_MS, EXPIRES_MS, MAX_LENGTH"
    assert worker.ask(f"SELECT {columns} FROM QUEUE_MSG_QUEUE WHERE NAME = 'mine'") == [(10**12, 10**12, 0)]


def test_remote_control_and_events_take_the_role_of_a_worker(people):
    producer, worker = people["producer"], people["worker"]
    inbox = "celery@host.celery.pidbox"
    worker.declare_exchange("celery.pidbox", "fanout")
    worker.declare_exchange("celeryev", "topic")
    for name, exchange in ((inbox, "celery.pidbox"), ("celeryev.1", "celeryev")):
        worker.queue(name)
        worker.bind(name, exchange, "#")
    producer.queue("mine")
    producer.declare_exchange("ours", "fanout")
    refused = (
        lambda: producer.put("celery.pidbox", ""),
        lambda: producer.put("celery.pidbox", "", b"x" * 20_000),
        lambda: producer.put("celeryev", "task.sent"),
        lambda: producer.put("", inbox),
        lambda: producer.put("", "nowhere", fallback=inbox),
        lambda: producer.declare_exchange("celery.pidbox", "fanout"),
        lambda: producer.declare_exchange("other.pidbox ", "direct"),
        lambda: producer.queue(inbox),
        lambda: producer.queue("celeryev.2 "),
        lambda: producer.bind("mine", "celery.pidbox", ""),
        lambda: producer.bind("mine", "celeryev", "#"),
        lambda: producer.bind(inbox, "ours", ""),
    )
    for number, attempt in enumerate(refused):
        with pytest.raises(
            AuthenticationError, match=r"remote control or events.*role of a worker.*fbtasks grant ROLE USER"
        ):
            attempt()
            pytest.fail(f"attempt {number} was not refused")
    worker.bind(inbox, "ours", "")
    with pytest.raises(AuthenticationError, match="a message to ours is one of"):
        producer.put("ours", "")
    assert producer.declare_exchange("celery.pidbox", None) == "fanout", "looking is free"
    assert producer.put("", "mine") == 1
    assert worker.ask("SELECT COUNT(*) FROM QUEUE_MSG") == [(1,)]
    assert [worker.put("celery.pidbox", ""), worker.put("celeryev", "a.b"), worker.put("", inbox)] == [1, 1, 1]


def test_nothing_dead_comes_to_remote_control(people):
    """A message of a producer that expires is taken away by a worker, who might send it there."""
    producer, worker = people["producer"], people["worker"]
    worker.declare_exchange("celery.pidbox", "fanout")
    worker.queue("celery@host.celery.pidbox")
    worker.bind("celery@host.celery.pidbox", "celery.pidbox", "")
    producer.queue("full", max_length=0, dead_exchange="celery.pidbox")
    producer.put("", "full", b"by the producer")
    producer.queue("late", message_ttl=0, dead_exchange="", dead_routing_key="celery@host.celery.pidbox")
    producer.put("", "late", b"by the worker")
    worker.ask("SELECT QUEUES FROM FBTASKS_CELERY.SWEEP(100, 0, 100)")
    assert worker.ask("SELECT COUNT(*) FROM QUEUE_MSG") == [(0,)]


def test_a_topic_is_matched_by_its_key_alone(people):
    producer = people["producer"]
    for number, key in enumerate(
        ("(", "[a", "a{2", "\\", "%", "a.**.b", "#" * 250, "#." * 124 + "x", "*." * 125, "\\." * 125, "")
    ):
        producer.queue(f"q{number}")
        producer.bind(f"q{number}", "amq.topic", key)
    assert producer.put("amq.topic", "(") == 1
    assert producer.put("amq.topic", "a.b.x") == 1, "any words and x"
    with pytest.raises(Exception, match=r"(?i)parameter"):
        producer.ask("SELECT DONE FROM FBTASKS_CELERY_API.BIND('q0', 'amq.topic', 'k', '(')")


# What follows needs a server: the embedded engine knows no users.


@pytest.fixture
def users(url):
    if SERVER is None:
        pytest.skip("needs a server: FBTASKS_TEST_URL")
    found = Users(url)
    yield found
    found.close()


def denied(session, sql):
    return "no permission" in refusal(session, sql)


def refusal(session, sql):
    """What the database says against a statement; nothing, if it is carried out."""
    try:
        ask(session, sql)
    except Exception as error:
        session.connection.rollback()
        return str(error)
    return ""


def test_a_producer_enqueues_and_reads_its_results(app, users):
    producer = users.app(users.add("producer"))
    runner = users.owner()
    add, length, repeat = (producer.tasks[name] for name in ("add", "length", "repeat"))
    one = add.delay(2, 3)
    many = add.delay_many([(n, 1) for n in range(5)])
    large = length.delay("x" * 100_000)
    named = add.apply_async((4, 4), task_id="order-ä")
    long = repeat.delay("ab", 50_000)
    failing = add.delay(1, None)
    with producer.database.session() as session:
        (plain,) = ask(session, "SELECT ID FROM FBTASKS.ENQUEUE('length', '[\"" + "y" * 5000 + "\"]')")[0]
    with producer.connect() as connection:
        using = length.using(connection).delay("z" * 70_000)
        connection.commit()
    assert {r.status for r in (one, large, named, using)} == {"PENDING"}
    drain(runner)
    assert one.get(timeout=10) == 5
    assert [r.get(timeout=10) for r in many] == [1, 2, 3, 4, 5]
    assert large.get(timeout=10) == 100_000
    assert producer.AsyncResult("order-ä").get(timeout=10) == 8
    assert long.get(timeout=10) == "ab" * 50_000
    assert producer.AsyncResult(plain).get(timeout=10) == 5000
    assert using.get(timeout=10) == 70_000
    with pytest.raises(TypeError):
        failing.get(timeout=10)
    assert "TypeError" in failing.traceback
    assert failing.status == "FAILURE"
    assert one.forget()
    assert one.status == "PENDING"


def test_a_producer_knows_no_other_tasks(app, users):
    producer, other = users.app(users.add("producer")), users.app(users.add("producer"))
    add = other.tasks["add"]
    waiting = add.apply_async((1, 1), countdown=3600, task_id="theirs")
    done = add.delay(1, 2)
    number = int(done.id)
    owner = users.owner()
    drain(owner)
    assert done.get(timeout=10) == 3
    for foreign in (producer.AsyncResult(done.id), producer.AsyncResult("theirs"), producer.AsyncResult("nobody's")):
        assert (foreign.status, foreign.ready(), foreign.traceback) == ("PENDING", False, None)
        assert not foreign.revoke()
        assert not foreign.forget()
        with pytest.raises(ResultTimeout):
            foreign.get(timeout=0.1)
    with owner.database.session() as session:
        theirs = results.find_id(session, "theirs")
        assert results.state(session, theirs) == (State.SCHEDULED, 0)
        assert results.outcome(session, number).state is State.SUCCEEDED
        assert results.find(session, theirs).enqueued_by not in (None, users.url.user.upper())
    assert waiting.status == "PENDING"
    with producer.database.session() as session:
        for procedure in ("STATE", "OUTCOME"):
            assert ask(session, f"SELECT * FROM FBTASKS_TASKS.{procedure}({theirs})") == []
        taken = "SELECT DUPLICATE FROM FBTASKS.ENQUEUE('add', '[]', '{}', NULL, 'default', 0, 'theirs')"
        # The id is taken, which is all that the user learns.
        assert ask(session, taken) == [(1,)]
        # A payload for another user's task goes nowhere.
        session.call("FBTASKS_PRODUCER.PUT_PAYLOAD", theirs, b"[[9, 9], {}]")
    with owner.database.session() as session:
        assert session.read("payload", theirs) == []
    assert waiting.revoke()
    assert done.forget()


def test_a_producer_touches_nothing_else(app, users):
    app.migrate()
    producer = users.app(users.add("producer"))
    tables = {line.name for line in lines() if line.kind == "TABLE"}
    tables -= {line.name for line in lines() if line.role == "FBTASKS_PRODUCER"}
    number = producer.tasks["add"].delay(1, 1).id
    with producer.database.session() as session:
        for table in tables:
            assert denied(session, f"SELECT 1 FROM {table}"), table
            said = refusal(session, f"DELETE FROM {table}")
            assert "no permission" in said or (table == "QUEUE_NEED" and "read-only view" in said), table
        for statement in (
            "UPDATE QUEUE_SCHEMA SET VERSION = 9",
            f"UPDATE QUEUE_TASK SET STATE = 0 WHERE ID = {number}",
            "SELECT * FROM FBTASKS_WORKER.CLAIM(1, 'default', 10, NULL, 0, 0, '')",
            f"SELECT * FROM FBTASKS_OPERATOR.RETRY({number})",
            f"SELECT FBTASKS_CORE.ENQUEUER_OF({number}) FROM RDB$DATABASE",
            "SELECT * FROM FBTASKS_WORKER.KILL_CONNECTION(1, 7, 30000)",
            "SELECT NEXT VALUE FOR QUEUE_TASK_SEQ FROM RDB$DATABASE",
        ):
            assert denied(session, statement), statement
        with pytest.raises(AuthenticationError, match=r"may not do: GRANT DEFAULT FBTASKS_OPERATOR.*SYSDBA"):
            grants.grant(session, "operator", "ANN")


def test_a_user_without_a_role_is_told_what_to_do(app, users):
    app.migrate()
    nobody = users.app(users.add())
    with pytest.raises(AuthenticationError, match="fbtasks grant ROLE USER"):
        nobody.tasks["add"].delay(1, 1)
    odd = users.app(users.add("producer", name=f'we"b-App {secrets.token_hex(4)}'))
    assert odd.tasks["add"].delay(1, 1).status == "PENDING"


def test_who_may_not_make_roles_is_told_who_may(users, project):
    project.run("migrate")
    project.env["FBTASKS_URL"] = users.add()
    first = project.run("grant", "producer", "ann", check=False)
    assert first.returncode == 1
    assert "fbtasks grant ROLE USER" in first.stderr  # it may not even read the version of the schema
    for table in ("QUEUE_SCHEMA", "QUEUE_FEATURE"):
        users._do(f"GRANT SELECT ON TABLE {table} TO USER {users.names[-1]}")
    done = project.run("grant", "producer", "ann", check=False)
    assert done.returncode == 1
    assert "CREATE ROLE FBTASKS_OPERATOR (" in done.stderr
    assert "Run the command as the owner of the database or as SYSDBA." in done.stderr


def test_a_worker_works(app, users, project):
    project.run("migrate")
    producer, worker = users.add("producer"), users.add("worker")
    project.write(
        """
        @app.task
        def add(a, b):
            return a + b

        @app.task
        def nested(text):
            return add.delay(1, len(text)).id

        @app.task(transactional=True, bind=True)
        def careful(self):
            return 7

        @app.task
        def breaks():
            raise ValueError("no")
        """
    )
    project.env["FBTASKS_URL"] = producer
    enqueue = [project.run("call", f"proj.{name}", "--args", args).stdout.strip() for name, args in (
        ("add", "[2, 3]"), ("nested", '["' + "x" * 9000 + '"]'), ("careful", "[]"), ("breaks", "[]"), ("unknown", "[]"),
    )]  # fmt: skip
    refused = project.run("worker", "-A", "proj", "--burst", check=False)
    assert refused.returncode == 1
    assert "fbtasks grant ROLE USER" in refused.stderr
    project.env["FBTASKS_URL"] = worker
    project.run("worker", "-A", "proj", "--burst", "-c", "1")
    project.env["FBTASKS_URL"] = producer
    assert project.run("result", enqueue[0]).stdout == "5\n"
    assert project.run("result", enqueue[2]).stdout == "7\n"
    assert "ValueError: no" in project.run("result", enqueue[3], check=False).stderr
    inner = project.run("result", enqueue[1]).stdout.strip().strip('"')
    missing = project.run("result", inner, check=False)
    assert "there is no task" in missing.stderr  # the worker enqueued that one
    project.env["FBTASKS_URL"] = worker
    assert project.run("result", inner).stdout == "9001\n"
    assert project.run("retry", enqueue[3], check=False).returncode == 1
    assert "no permission" in project.run("inspect", "failed", check=False).stderr
    with users.app(worker).database.session() as session:  # of tables that it may not read, too
        assert session.call("FBTASKS_WORKER.COLLECT", None, 2_000) is None


def test_an_operator_operates(app, users, project):
    project.run("migrate")
    producer, operator = users.app(users.add("producer")), users.add("operator")
    runner = users.owner()
    add = producer.tasks["add"]
    failed, again, late, kept = add.delay(1, None), add.delay(2, None), add.delay(1, 1), add.delay(3, None)
    assert late.revoke()
    drain(runner)
    waiting = [add.apply_async((1, 1), countdown=3600) for _ in range(3)]
    project.env["FBTASKS_URL"] = operator
    assert "add" in project.run("inspect", "failed").stdout
    project.run("limits", "list")
    for what in ("active", "ready", "scheduled", "parked", "held", "queues", "workers", "stats"):
        project.run("inspect", what)
    assert "TypeError" in project.run("inspect", "task", failed.id).stdout
    project.run("retry", again.id)
    project.run("discard", failed.id)
    project.run("cancel", waiting[0].id)
    assert waiting[0].status == "REVOKED"
    assert "3 tasks deleted" in project.run("purge", "default", "-y").stdout
    project.run("prune")
    assert project.run("health", check=False).returncode == 1
    assert "TypeError" in project.run("result", kept.id, check=False).stderr
    with users.app(operator).database.session() as session:
        for statement in (
            "SELECT * FROM FBTASKS_WORKER.CLAIM(1, 'default', 10, NULL, 0, 0, '')",
            "SELECT * FROM FBTASKS.ENQUEUE('add')",
            "DELETE FROM QUEUE_HISTORY",
            "UPDATE QUEUE_IDENTITY SET ID = 2",
        ):
            assert denied(session, statement), statement


def test_a_role_taken_is_gone_at_the_next_login(app, users):
    app.migrate()
    url = users.add("producer")
    first = users.app(url)
    first.tasks["add"].delay(1, 1)
    first.close()
    name = users.names[-1].strip('"')
    with app.database.session() as session:
        assert grants.revoke(session, "producer", name)
    with pytest.raises(AuthenticationError):
        users.app(url).tasks["add"].delay(1, 1)
