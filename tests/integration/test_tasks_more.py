"""What applications do with tasks: library tasks, queues, hooks, pruning, and every move between states."""

import asyncio
import importlib
import itertools
import sys
import textwrap
import uuid
from contextlib import contextmanager
from datetime import timedelta

import pytest

from fbtasks import ConfigurationError, ContentDisallowed, FBTasks, SerializationError, TaskDefinitionError, task
from fbtasks.call import Finished, Released
from fbtasks.cli import main
from fbtasks.states import TRANSITIONS, State
from fbtasks.store import tasks
from fbtasks.testing import drain


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package with free-standing tasks, importable for one test and of a name of its own."""
    name = f"shoplib_{uuid.uuid4().hex}"
    package = tmp_path / "lib" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "mail.py").write_text(
        textwrap.dedent("""
        from fbtasks import task

        @task
        def send(to):
            return f"sent to {to}"

        @task(queue="mail", bind=True, max_retries=0)
        def check(self, n):
            return [self.name, self.request.queue, n]
    """)
    )
    (package / "other.py").write_text("from fbtasks import task\n@task\ndef lonely(): pass\n")
    monkeypatch.syspath_prepend(str(package.parent))
    yield name
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def sql(app, statement, *params):
    with app.connect() as connection:
        with connection.cursor() as cursor:
            cursor.execute(statement, params)
            rows = cursor.fetchall() if cursor.description else []
        connection.commit()
    return rows


def test_library_tasks_bind_to_the_app_that_includes_them(url, library):
    module = f"{library}.mail"
    app = FBTasks("shop", url, include=[module])
    assert module not in sys.modules
    assert sorted(app.tasks) == [f"{module}.check", f"{module}.send"]
    mail = sys.modules[module]
    assert mail.send("ann") == "sent to ann"
    sent, checked = mail.send.delay("bob"), mail.check.delay(7)
    assert app.queues_served() == ["default", "mail"]
    drain(app)
    assert (sent.get(timeout=5), checked.get(timeout=5)) == ("sent to bob", [f"{module}.check", "mail", 7])
    app.load()  # again changes nothing
    assert mail.send.app is app
    other = FBTasks("other", url, include=[module])
    with pytest.raises(TaskDefinitionError, match=r"mail\.(send|check)' already belongs to the app 'shop'"):
        other.load()
    importlib.import_module(f"{library}.other")
    with pytest.raises(TaskDefinitionError, match=r"other\.lonely' belongs to no app yet.*include="):
        sys.modules[f"{library}.other"].lonely.delay()
    app.close()


def test_a_package_is_included_with_its_modules(url, library):
    importlib.import_module(f"{library}.mail")
    app = FBTasks("shop", url, include=[library])
    assert f"{library}.mail.send" in app.tasks
    loose = task(name="by-hand")(lambda: 1)
    app.register(loose)
    assert app.register(loose) is loose
    assert "by-hand" in app.tasks
    app.close()


def test_the_hooks_of_task_and_app(url):
    heard = []

    def hook(what):
        return lambda request, value: heard.append((what, request.task, request.args, request.retries, str(value)))

    def broken(request, value):
        raise RuntimeError("a hook's own trouble")

    app = FBTasks("hooks", url, on_success=hook("app good"), on_failure=hook("app bad"))
    good = app.task(name="good", on_success=hook("task good"), on_failure=hook("never"))(lambda n: n + 1)
    bad = app.task(
        name="bad", autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0, on_failure=hook("task bad")
    )(lambda text: int(text))
    stubborn = app.task(name="stubborn", on_success=broken)(lambda: "x")
    results = [good.delay(1), bad.delay("no number"), stubborn.delay()]
    drain(app)
    assert [result.status for result in results] == ["SUCCESS", "FAILURE", "SUCCESS"]
    message = "invalid literal for int() with base 10: 'no number'"
    assert sorted(heard) == [
        ("app bad", "bad", ("no number",), 1, message),
        ("app good", "good", (1,), 0, "2"),
        ("app good", "stubborn", (), 0, "x"),
        ("task bad", "bad", ("no number",), 1, message),
        ("task good", "good", (1,), 0, "2"),
    ]
    app.close()


def test_pruning_goes_by_age_and_by_outcome(app, capsys):
    good = app.task(name="good")(lambda: 1)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)
    old, older, new = good.delay(), good.apply_async(task_id="order-1"), good.delay()
    failed, ancient = bad.delay(), bad.delay()
    waiting = good.apply_async(countdown=3600)
    drain(app)
    for result, days in ((old, 1.01), (older, 3), (new, 0.99), (failed, 29.9), (ancient, 30.1)):
        by_name = sql(app, "SELECT ID FROM QUEUE_TASK_ID WHERE TASK_ID = ?", result.id)
        number = by_name[0][0] if by_name else int(result.id)
        sql(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = DATEADD(? SECOND TO FINISH_TIME) WHERE ID = ?",
            -int(days * 86400), number)  # fmt: skip
    run_command(app, "prune")
    assert capsys.readouterr().out == "3 finished tasks deleted.\n"
    assert [old.ready(), older.ready(), new.ready()] == [False, False, True]
    assert [failed.failed(), ancient.ready(), waiting.status] == [True, False, "PENDING"]
    assert not good.apply_async(task_id="order-1").duplicate  # with its outcome the id is forgotten


def real_url(app):
    """The URL with its password."""
    url = app.settings.url
    return str(url).replace("***", url.password) if url.password else str(url)


def test_await_among_other_coroutines(app, wait_for):
    add = app.task(name="add")(lambda a, b: a + b)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)
    sums = [add.delay(n, n) for n in range(20)]
    failure = bad.delay()
    ticks = []

    async def tick():
        while True:
            ticks.append(1)
            await asyncio.sleep(0.001)

    async def program():
        ticking = asyncio.create_task(tick())
        draining = asyncio.create_task(asyncio.to_thread(drain, app))
        found = await asyncio.gather(*sums)
        with pytest.raises(ZeroDivisionError):
            await failure
        await draining
        ticking.cancel()
        return found

    assert asyncio.run(program()) == [2 * n for n in range(20)]
    assert len(ticks) > 5  # the loop went on while results were waited for


MOVES = [
    "CREATE SEQUENCE MOVE_SEQ",
    "CREATE TABLE MOVE (SEQ BIGINT, TRANS BIGINT, ID BIGINT, STATE SMALLINT)",
    """CREATE TRIGGER MOVE_TASK FOR QUEUE_TASK AFTER INSERT OR UPDATE AS BEGIN
        IF (INSERTING OR NEW.STATE <> OLD.STATE) THEN
            INSERT INTO MOVE VALUES (NEXT VALUE FOR MOVE_SEQ, CURRENT_TRANSACTION, NEW.ID, NEW.STATE);
    END""",
    """CREATE TRIGGER MOVE_HISTORY FOR QUEUE_HISTORY AFTER INSERT AS BEGIN
        INSERT INTO MOVE VALUES (NEXT VALUE FOR MOVE_SEQ, CURRENT_TRANSACTION, NEW.ID, NEW.STATE);
    END""",
]


def test_every_move_between_states_is_an_allowed_one(url, wait_for):
    """Triggers of the test note each state that a task comes to; what one transaction does to it is one move."""
    app = FBTasks("moving", url)
    app.migrate()
    for statement in MOVES:
        sql(app, statement)
    ok = app.task(name="ok")(lambda: 1)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)

    @app.task(name="again", bind=True)
    def again(self, countdown):
        if not self.request.retries:
            self.retry(countdown=countdown)

    @app.task(name="regret", bind=True)
    def regret(self):
        app.AsyncResult(self.request.id).revoke()
        self.retry(countdown=3600)

    ok.delay()
    at_once, later, regretted, failed = again.delay(0), again.delay(3600), regret.delay(), bad.delay()
    waiting, scheduled = ok.apply_async(queue="nobody"), ok.apply_async(countdown=99)
    expired = ok.apply_async(expires=0.001)
    never, taken, dropped = (app.send_task(name) for name in ("never", "later known", "dropped"))
    assert waiting.revoke()
    assert scheduled.revoke()
    wait_for(lambda: sql(app, f"SELECT 1 FROM QUEUE_TASK WHERE ID = {expired.id} AND EXPIRE_TIME < {NOW}"))
    drain(app)
    assert (at_once.status, regretted.status, expired.status) == ("SUCCESS", "REVOKED", "REVOKED")
    assert later.status == "RETRY"
    assert dropped.revoke()
    sql(app, f"UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO {NOW}) WHERE STATE = 1")
    app.task(name="later known")(lambda: "known")
    wait_for(lambda: drain(app) or taken.ready())
    assert (later.status, taken.get(timeout=5)) == ("SUCCESS", "known")
    with FBTasksWith(url, unknown_task_timeout=timedelta(milliseconds=1)) as impatient:
        drain(impatient)
    assert never.failed()
    for result in (failed, waiting):
        run_command(app, "retry", result.id)
    drain(app, ["default", "nobody"])
    # A worker that is stopped gives back what it holds.
    lost = ok.delay()
    with app.database.session() as session:
        claim = session.run(lambda t: tasks.claim(t, 99, "default", 1))[0]
        session.run(lambda t: tasks.finish(t, 99, 0, [Finished(claim, Released())]))
    drain(app)
    assert lost.get(timeout=5) == 1

    moves = set()
    rows = sql(app, "SELECT ID, TRANS, STATE FROM MOVE ORDER BY ID, SEQ")
    for _, group in itertools.groupby(rows, key=lambda row: row[0]):
        ends = [list(steps)[-1][2] for _, steps in itertools.groupby(group, key=lambda row: row[1])]
        moves.update((State(a), State(b)) for a, b in itertools.pairwise(ends) if a != b)
    allowed = {(before, after) for before, leads in TRANSITIONS.items() for after in leads}
    assert moves - allowed == set()
    assert allowed - moves == set()
    app.close()


NOW = "CAST(CURRENT_TIMESTAMP AT TIME ZONE 'UTC' AS TIMESTAMP)"


@contextmanager
def FBTasksWith(url, **options):  # noqa: N802
    app = FBTasks("impatient", url, **options)
    yield app
    app.close()


def run_command(app, *arguments):
    with pytest.raises(SystemExit) as left:
        main([*arguments, "--url", real_url(app)], prog_name="fbtasks")
    assert left.value.code == 0


def test_several_queues_are_served_fairly(app):
    """A backlog of 300 does not starve three tasks of another queue, and both get their turns."""
    order = []
    note = app.task(name="note")(order.append)
    note.delay_many([("big",)] * 300, queue="big")
    note.delay_many([("small",)] * 3, queue="small")
    drain(app, ["big", "small"])
    assert len(order) == 303
    assert [place for place, queue in enumerate(order) if queue == "small"][-1] < 10


PICKLED = """
    from fbtasks import FBTasks
    app = FBTasks("pickled", serializer="cloudpickle", accept_content=["json", "cloudpickle"],
                  signing_key="a key of ours")

    @app.task
    def apply(function, value): return function(value), {1: {value}}
"""


@pytest.mark.acceptance
def test_cloudpickle_from_end_to_end(project, tmp_path):
    """Signed, it carries what JSON cannot; without the key or with another, nothing of it is unpickled."""
    (project.folder / "proj.py").write_text(textwrap.dedent(PICKLED))
    options = {"serializer": "cloudpickle", "accept_content": ["json", "cloudpickle"]}
    app = FBTasks("producer", project.url, signing_key="a key of ours", **options)
    offset = 40
    good = app.send_task("proj.apply", (lambda n: n + offset, 2))
    project.run("worker", "-A", "proj", "-c", "1", "--burst")
    assert good.get(timeout=5) == (42, {1: {2}})

    trace = tmp_path / "unpickled"

    class Trap:
        def __reduce__(self):
            return open, (str(trace), "w")

    stranger = FBTasks("stranger", project.url, signing_key="another key", **options)
    for who, secret in ((stranger, "another signing_key"),):
        forged = who.send_task("proj.apply", (Trap(), 2))
        project.run("worker", "-A", "proj", "-c", "1", "--burst")
        with pytest.raises(ContentDisallowed, match=secret):
            app.AsyncResult(forged.id).get(timeout=5)
    project.write("@app.task\ndef apply(function, value): pass\n")  # a worker that was not told to accept it
    refused = app.send_task("proj.apply", (Trap(), 2))
    log = project.run("worker", "-A", "proj", "-c", "1", "--burst").stderr
    assert "is not accepted here" in log
    assert refused.failed()
    assert not trace.exists()
    with pytest.raises(ContentDisallowed):
        stranger.AsyncResult(good.id).get(timeout=5)
    with pytest.raises((ConfigurationError, SerializationError), match="signing_key"):
        FBTasks("keyless", project.url, **options).send_task("proj.apply", (1, 2))
    for opened in (app, stranger):
        opened.close()
