"""fbtasks metrics: what the database can tell, in Prometheus's format."""

import re
import shutil
import signal
import socket
import sys
import threading
import urllib.request
from contextlib import closing

import pytest
from firebird.driver import ShutdownMethod, ShutdownMode
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from support.dashboards import browser
from support.draining import drain
from support.forkserver import forkserver
from support.registering import register
from support.services import services_of
from support.sql import execute, one

from fbtasks import FBTasks
from fbtasks.features.metrics import operations
from fbtasks.features.metrics.operations import DatabaseMetrics
from fbtasks.firebird.session import SNAPSHOT
from fbtasks.queue.operations import overview


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is as slow as it is."""
    monkeypatch.setattr(operations, "PATIENCE", 60.0)


class Scraped:
    """The metrics of a database as a scraper reads them."""

    def __init__(self, app):
        self.told = []
        self.collector = DatabaseMetrics(app.database, self.told.append)
        self.registry = CollectorRegistry()
        self.registry.register(self.collector)

    def families(self):
        return {each.name: each for each in text_string_to_metric_families(generate_latest(self.registry).decode())}

    def __call__(self, name, **labels):
        family = self.families().get(name.removesuffix("_total"))
        found = [each.value for each in family.samples if each.labels == labels] if family else []
        return found[0] if found else None


@pytest.fixture
def scraped(app, monkeypatch):
    monkeypatch.setattr(overview, "_FRESH", -1.0)
    return Scraped(app)


@pytest.mark.emptied
def test_tasks_outcomes_and_workers(app, scraped):
    app.task(name="works", queue="mail")(lambda: 1).delay_many([()] * 3)
    app.task(name="fails", queue="mail", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    app.tasks["works"].delay()
    app.tasks["works"].apply_async(countdown=100)
    past = "DATEADD(-90 SECOND TO RAISE_TIME)"
    execute(app, f"UPDATE QUEUE_TASK SET RAISE_TIME = {past}, START_TIME = {past} WHERE STATE = 0")
    execute(
        app, "INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT, CONFLICTS) VALUES (QUEUE_NOW(), '', 7, 0, 5)"
    )
    register(app, queues=["mail"])
    families = scraped.families()
    assert {name: family.type for name, family in families.items()} == {
        "fbtasks_up": "gauge",
        "fbtasks_queue_tasks": "gauge",
        "fbtasks_queue_oldest_ready_seconds": "gauge",
        "fbtasks_queue_workers": "gauge",
        "fbtasks_tasks": "counter",
        "fbtasks_task_run_seconds": "counter",
        "fbtasks_conflicts": "counter",
        "fbtasks_workers": "gauge",
        "fbtasks_transaction_gap": "gauge",
    }
    assert all(family.documentation for family in families.values())
    states = {each.labels["state"]: each.value for each in families["fbtasks_queue_tasks"].samples}
    assert states == {"ready": 1, "scheduled": 1, "running": 0, "parked": 0, "held": 0, "awaiting": 0}
    assert 89 < scraped("fbtasks_queue_oldest_ready_seconds", queue="mail") < 150
    assert scraped("fbtasks_queue_workers", queue="mail") == 1
    assert scraped("fbtasks_tasks_total", queue="mail", outcome="succeeded") == 3
    assert scraped("fbtasks_tasks_total", queue="mail", outcome="failed") == 1
    assert scraped("fbtasks_conflicts_total") == 5
    assert scraped("fbtasks_workers", state="active") == 1
    assert {each.labels["queue"] for each in families["fbtasks_tasks"].samples} == {"mail"}, "conflicts are of none"
    execute(app, "INSERT INTO QUEUE_POLICY (QUEUE, PAUSED) VALUES ('mail', 1)")
    assert scraped("fbtasks_queue_oldest_ready_seconds", queue="mail") == 0
    assert scraped("fbtasks_transaction_gap") < 5
    with app.database.session() as other, other.transaction(SNAPSHOT):
        for _ in range(5):
            app.tasks["works"].delay()
        assert scraped("fbtasks_transaction_gap") >= 5


@pytest.mark.emptied
def test_a_queue_without_tasks_and_workers_has_its_gauges(app, scraped):
    app.task(name="works", queue="mail")(lambda: 1).delay()
    drain(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 0
    gauges = {name: each for name, each in scraped.families().items() if name.startswith("fbtasks_queue_")}
    assert len(gauges) == 3
    for name, family in gauges.items():
        assert {(each.labels["queue"], each.value) for each in family.samples} == {("mail", 0)}, name


@pytest.mark.emptied
def test_names_that_would_break_a_line(app, scraped):
    name = 'a"b\\c,{}='
    app.task(name="t")(lambda: 1).delay()
    execute(app, "UPDATE QUEUE_TASK SET QUEUE = ? || ASCII_CHAR(10)", name)
    assert scraped("fbtasks_queue_tasks", queue=f"{name}\n", state="ready") == 1


@pytest.mark.emptied
def test_counters_do_not_fall_when_rows_are_folded_and_pruned(app, scraped, session):
    app.task(name="t")(lambda: 1).delay_many([()] * 5)
    drain(app)
    execute(app, "UPDATE QUEUE_STAT SET HOUR_TIME = DATEADD(-400 DAY TO HOUR_TIME), WORKER_ID = 4")

    def counted():
        return (
            scraped("fbtasks_tasks_total", queue="default", outcome="succeeded"),
            scraped("fbtasks_task_run_seconds_total", queue="default"),
        )

    before = counted()
    assert before[0] == 5
    with session.transaction() as transaction:
        assert transaction.call("FBTASKS_WORKER.FOLD_STATS", 7, 100) > 0
        assert counted() == before
    assert counted() == before
    assert one(app, "SELECT COUNT(*) FROM QUEUE_STAT WHERE WORKER_ID <> 0") == 0
    execute(app, "DELETE FROM QUEUE_HISTORY")
    assert counted() == before


@pytest.mark.emptied
def test_many_tasks_are_counted_for_the_next_scrape(app, scraped, monkeypatch):
    for module in (overview, operations):
        monkeypatch.setattr(module, "MOST", 3)
    task = app.task(name="t", queue="many")(lambda: 1)
    task.delay_many([()] * 6)

    def ready():
        return scraped("fbtasks_queue_tasks", queue="many", state="ready")

    assert ready() == 6, "the first scrape waits for the count"
    scraped.collector._next_count = float("inf")
    task.delay_many([()] * 4)
    assert ready() == 6, "the next count is not due"
    scraped.collector._next_count = 0.0
    ready()
    wait_for_look()
    assert ready() == 10, "the scrape before has had it counted"
    execute(app, "DELETE FROM QUEUE_TASK ROWS 8")
    assert ready() == 2


def wait_for_look():
    for thread in threading.enumerate():
        if thread.name == "fbtasks-metrics-look":
            thread.join(30)


@pytest.mark.embedded("it takes the file away")
@pytest.mark.no_database
def test_a_database_that_is_away_and_comes(url, template):
    with closing(FBTasks("away", url)) as app:
        scraped = Scraped(app)
        assert list(scraped.families()) == ["fbtasks_up"]
        assert scraped("fbtasks_up") == 0
        shutil.copyfile(template, app.settings.url.database)
        assert scraped("fbtasks_up") == 1
        assert scraped("fbtasks_workers", state="dead") == 0
        assert len(scraped.told) == 2, "once when it is away, and once when it is back"
        assert "there is no queue at" in scraped.told[0]
        with closing(FBTasks("looker", url)) as looker:
            others = "FROM MON$TRANSACTIONS WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION AND MON$STATE = 1"
            assert one(looker, f"SELECT COUNT(*) {others}") == 0


def test_a_database_that_does_not_answer(monkeypatch):
    monkeypatch.setattr(operations, "PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        at = f"127.0.0.1:{silent.getsockname()[1]}//srv/shop.fdb"
        with closing(FBTasks("away", f"firebird://SYSDBA:x@{at}")) as app:
            scraped = Scraped(app)
            assert [scraped("fbtasks_up") for _ in range(3)] == [0, 0, 0]
            assert scraped.told == [f"firebird://SYSDBA:***@{at} has not answered for 0.1 s."]
            assert sum(each.name == "fbtasks-metrics-look" for each in threading.enumerate()) == 1
            silent.close()
            wait_for_look()


@pytest.mark.emptied
def test_the_dashboard_serves_them_to_those_who_may_look(app, scraped, monkeypatch):
    app.task(name="t", queue="mail")(lambda: 1).delay()
    answer = browser(app).get("/metrics")
    assert (answer.status_code, answer.content_type.partition(";")[0]) == (200, "text/plain")
    found = {each.name: each.samples for each in text_string_to_metric_families(answer.text)}
    assert found.keys() == scraped.families().keys()
    assert found["fbtasks_queue_tasks"] == scraped.families()["fbtasks_queue_tasks"].samples
    assert answer.headers["Content-Security-Policy"]
    assert browser(app).get("/metrics.json").status_code == 404
    assert browser(app, lambda *_: False).get("/metrics").status_code == 403
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with closing(FBTasks("test", app.settings.url.reveal())) as other:
        answer = browser(other).get("/metrics")
    assert (answer.status_code, "pip install prometheus_client" in answer.text) == (400, True)


@pytest.mark.acceptance
def test_the_command(project, wait_for, app):
    project.write("")
    app.task(name="t")(lambda: 1).delay()
    printed = project.run("metrics", "--once").stdout
    assert 'fbtasks_queue_tasks{queue="default",state="ready"} 1.0\n' in printed
    with (project.folder / "log").open("w+") as log:
        process = forkserver.start(["metrics", "--port", "0"], project.folder, project.env, stderr=log)
        try:
            served = re.compile(r"http://127\.0\.0\.1:(\d+)/metrics")
            found = wait_for(lambda: served.search((project.folder / "log").read_text()))

            def scrape():
                with urllib.request.urlopen(found[0], timeout=30) as answer:
                    assert answer.headers["Content-Type"].startswith("text/plain")
                    body = answer.read().decode()
                return "fbtasks_up 1.0\n" in body and body  # a busy machine may take longer than a scrape waits

            assert 'fbtasks_queue_tasks{queue="default",state="ready"} 1.0\n' in wait_for(scrape)
            taken = project.run("metrics", "--port", found[1], check=False)
            assert taken.returncode == 2
            assert f"--port {found[1]}: cannot listen at '127.0.0.1': Address already in use" in taken.stderr
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert len((project.folder / "log").read_text().splitlines()) == 1


@pytest.mark.acceptance
def test_maintenance_of_the_database_is_left_alone(project, app):
    with services_of(app.settings.url) as server:
        path = app.settings.url.database
        app.close()
        server.database.shutdown(database=path, mode=ShutdownMode.MULTI, method=ShutdownMethod.FORCED, timeout=0)
        done = project.run("metrics", "--once", check=False)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "fbtasks_up 0.0")
        assert "is shut down for maintenance" in done.stderr
        server.database.bring_online(database=path)


@pytest.mark.no_database
@pytest.mark.embedded("there is no file")
def test_without_a_database_or_the_library_the_command_says_so(project, monkeypatch):
    done = project.run("metrics", "--once", check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, "fbtasks_up 0.0")
    assert "there is no queue at" in done.stderr
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    done = project.run("metrics", check=False)
    assert done.returncode == 2
    assert "pip install prometheus_client" in done.stderr
