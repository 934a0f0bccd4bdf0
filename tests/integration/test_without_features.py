"""An app without features, and a database that has none. Then another app brings its own."""

import shutil
from contextlib import closing
from datetime import timedelta

import pytest
from support.sql import adopt_file, execute, one, rows

from fbtasks import ConfigurationError, FBTasks, TaskDefinitionError, chain, task
from fbtasks.database import migrate
from fbtasks.database.packages import packages
from fbtasks.database.schema import CORE, ours, steps
from fbtasks.errors import UnknownTaskError
from fbtasks.testing import drain

pytestmark = pytest.mark.no_database

TABLES = "SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS WHERE RDB$SYSTEM_FLAG = 0"
PACKAGES = "SELECT TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_'"
HOOKS = "SELECT RDB$PACKAGE_BODY_SOURCE FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_HOOKS_'"
GENERATION = "SELECT NUMBER FROM QUEUE_GENERATION"
STATES = "SELECT STATE FROM QUEUE_TASK WHERE ID = ?"
CLAIMS = "SELECT CLAIM_TIME FROM QUEUE_TASK WHERE ID = ?"


def add(a, b):
    return a + b


@pytest.fixture(scope="module")
def bare_file(template, once):
    """A database that an app without features has made, which tests get a copy of."""

    def make(path):
        with closing(FBTasks("bare", f"firebird://{path}", features=[])) as app:
            app.migrate()

    return once("bare.fdb", make)


@pytest.fixture
def bare(request, url, bare_file):
    """An app without features, on such a database."""
    with closing(FBTasks("bare", url, features=[], auto_migrate=True)) as app:
        if not app.settings.url.embedded and not request.getfixturevalue("copied"):
            pytest.skip("the server is elsewhere, or runs as another user")
        shutil.copyfile(bare_file, app.settings.url.database)
        adopt_file(url)
        app.task(name="add")(add)
        yield app


@pytest.fixture
def whole(bare, url):
    """An app with all features, on the same database, which has tables of none before it is used."""
    with closing(FBTasks("whole", url, auto_migrate=True)) as app:
        app.task(name="add")(add)
        yield app


def of_features(kind):
    return {each.name for part in ours()[1:] for step in steps(part) for each in step.made if each.kind == kind}


def test_nothing_of_a_feature_is_there(bare):
    assert not {name for (name,) in rows(bare, TABLES)} & of_features("TABLE")
    made = {f"{name}_1" for name in (*packages(CORE), "FBTASKS_HOOKS")}
    assert {name for (name,) in rows(bare, PACKAGES)} == {*made, "FBTASKS_TASKS"}
    ((body,),) = rows(bare, HOOKS)
    assert "EXECUTE" not in str(body)
    assert one(bare, "SELECT COUNT(*) FROM QUEUE_FEATURE") == 0
    with bare.connect() as connection, pytest.raises(Exception, match="this database has no feature sources"):
        connection.execute_immediate("EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('paid')")


def test_another_app_brings_its_features_while_it_goes_on(bare, whole, monkeypatch):
    """With a migration that is cut at first."""
    done = []
    change = migrate._change

    def cut(session, statements, *more):
        if len(done) == 5:
            raise KeyboardInterrupt
        done.append(statements)
        change(session, statements, *more)

    with monkeypatch.context() as patched:
        patched.setattr(migrate, "_change", cut)
        with pytest.raises(KeyboardInterrupt):
            whole.migrate()
    assert one(bare, GENERATION) == 1
    result = bare.tasks["add"].delay(1, 2)
    drain(bare)
    assert result.get(timeout=0) == 3
    before = bare.tasks["add"].delay(1, 2)
    whole.limit("narrow", at_once=1)
    limited = whole.task(name="limited", limits={"narrow": None})(add)
    whole.add_periodic(whole.tasks["add"], every=timedelta(hours=1), args=(1, 1), name="hourly")
    held = [limited.delay(n, n) for n in range(3)]
    last = chain(whole.tasks["add"].s(1, 2), whole.tasks["add"].s(4)).delay()
    assert one(whole, GENERATION) == 2
    beside = bare.tasks["add"].delay(5, 6)
    while not last.ready():
        drain(whole)
    assert [each.get(timeout=0) for each in (before, *held, last, beside)] == [3, 0, 2, 4, 7, 11]
    assert one(whole, "SELECT COUNT(*) FROM QUEUE_SCHEDULE") == 1
    assert one(whole, "SELECT COUNT(*) FROM QUEUE_FEATURE") == len(ours()) - 1
    made = {*rows(whole, TABLES), *(each for each in rows(whole, PACKAGES) if each[0].endswith("_2"))}
    bare.close()
    bare.migrate()
    assert {*rows(whole, TABLES), *rows(whole, PACKAGES)} >= made, "which takes nothing away"
    after = bare.tasks["add"].delay(7, 8)
    drain(bare)
    assert after.get(timeout=0) == 15


def test_commands_without_an_app_take_it_as_it_is(bare, project):
    bare.tasks["add"].delay(1, 2)
    bare.close()
    for command in (("migrate",), ("inspect", "ready"), ("inspect", "queues"), ("health",), ("call", "add")):
        done = project.run(*command, check=False)
        assert "QUEUE_" not in done.stderr, command
        assert done.returncode == (1 if command == ("health",) else 0), done.stderr
    assert one(bare, "SELECT COUNT(*) FROM QUEUE_FEATURE") == 0


def test_a_step_with_inputs_waits_for_a_worker_of_an_app_that_reads_them(bare, whole, caplog):
    """One without the feature parks it, and takes it no second time, while it takes others of that name."""
    last = chain(whole.tasks["add"].s(1, 2), whole.tasks["add"].s(4)).delay()
    drain(bare)
    assert one(bare, STATES, int(last.id)) == 3
    assert "Tasks named 'add' are parked: this worker has no feature workflows, which they need." in caplog.text
    claims = one(bare, CLAIMS, int(last.id))
    beside = bare.tasks["add"].delay(5, 6)
    execute(bare, "UPDATE QUEUE_TASK SET STATE = 3, CLAIM_TIME = QUEUE_NOW() WHERE ID = ?", int(beside.id))
    drain(bare)
    assert beside.get(timeout=0) == 11
    assert one(bare, CLAIMS, int(last.id)) == claims
    with bare.database.session() as session:
        assert session.read("parked_names", bare.features.names) == []
        assert session.read("parked_names", whole.features.names) == [("default", "add")]
    drain(whole)
    assert last.get(timeout=0) == 7
    given_up = chain(whole.tasks["add"].s(1, 2), whole.tasks["add"].s(4)).delay()
    drain(bare)
    with bare.database.session() as session:
        session.run(lambda t: t.call("FBTASKS_WORKER.FAIL_PARKED", -1000, 10, None))
    with pytest.raises(UnknownTaskError, match="no worker has the feature workflows, which this task needs"):
        given_up.get(timeout=0)


@pytest.mark.no_database
@pytest.mark.parametrize(
    ("use", "feature"),
    [
        (lambda app: app.limit("sms", at_once=1), "limits"),
        (lambda app: app.queue("mail", max_length=1), "queues"),
        (lambda app: app.periodic(every=60), "schedules"),
        (lambda app: app.on_change("ORDERS", insert=True), "sources"),
        (lambda app: app.on_event("order.paid"), "sources"),
        (lambda app: app.poll_table("INBOX", status="S", ready=0, done=1, failed=2), "sources"),
        (lambda app: app.raise_event("order.paid"), "sources"),
        (lambda app: (app.task(name="a")(print).s() | app.task(name="b")(print).s()).delay(), "workflows"),
    ],
)
def test_what_a_feature_brings_is_refused_without_it(url, use, feature):
    with (
        closing(FBTasks("bare", url, features=())) as app,
        pytest.raises(ConfigurationError, match=f"the app 'bare' was made without the feature '{feature}'"),
    ):
        use(app)


@pytest.mark.no_database
def test_options_of_features_are_unknown_without_them(url):
    def free():
        """A task of library code."""

    with closing(FBTasks("bare", url, features=("workflows",))) as app:
        with pytest.raises(TaskDefinitionError, match="unknown task option 'unique'"):
            app.task(unique=True)
        with pytest.raises(
            TaskDefinitionError, match=r"has unique=, .* a feature that the app 'bare' was made without"
        ):
            app.register(task(name="free", unique=True)(free))
        app.register(task(name="free")(free))
