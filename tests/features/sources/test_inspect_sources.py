"""What an operator is shown of sources: lanes that stand still, what waits behind them, and why changes wait."""

from datetime import timedelta

import pytest
from support.draining import drain
from support.programs import command_line
from support.sources import apply, inspected
from support.sql import NOW, execute

from fbtasks.database.packages import queries
from fbtasks.features.sources import managing as service
from fbtasks.queue import results
from fbtasks.queue.operations import queues
from fbtasks.queue.operations.workers import get_health

pytestmark = pytest.mark.emptied


@pytest.fixture
def refused():
    """Keys that the task fails for."""
    return {1}


@pytest.fixture
def halted(app, refused):
    """The lane of key 1 stands still since its first change failed; what came with it is held, more waits in the log.

    Key 2 goes on.
    """

    @app.on_change("T", insert=True, key="KEY_", name="changed", stop_on_failure=True, max_retries=0)
    def changed(change):
        if change.key["KEY_"] in refused:
            raise ValueError("refused")

    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, KEY_ INTEGER NOT NULL)")
    apply(app)
    app.close()
    insert(app, *((number, 1 + number % 2) for number in range(6)))
    drain(app)
    insert(app, (6, 1), (7, 2), (8, 1))
    drain(app)
    insert(app, (9, 1), (10, 2))  # which no worker has looked at
    return app


def insert(app, *found):
    for row in found:
        execute(app, "INSERT INTO T VALUES (?, ?)", *row)


def shown(capsys, *arguments):
    """The lines of a command, with those that go on with a former one behind it."""
    capsys.readouterr()
    command_line(*arguments)
    return capsys.readouterr().out.replace("\n  ", " ").splitlines()


def test_what_waits_behind_a_halted_lane_is_counted(halted, url, capsys):
    (source,) = inspected(halted)
    assert (source.halted, source.behind, source.waiting, source.held, source.failed) == (1, 3, 4, 1, 1)
    said = "1 lane is halted since a task failed, and more waits behind it (fbtasks retry or discard)"
    assert [each.problem for each in get_health(halted.database, 300).problems["sources"]] == [said]
    title, line, *lines = shown(capsys, "inspect", "sources", "--url", url)
    assert line.split() == ["changed", "T", "active", "4", *line.split()[4:-5], "0", "0", "1", "1", "7"]
    assert title.split()[-5:] == ["READY", "RUNNING", "HELD", "FAILED", "TAKEN"]
    assert lines == [
        "changed: 1 lane halted since a task failed, and 3 of WAITING behind it. Retry or discard what is listed by:"
        "   fbtasks inspect failed --name changed",
        "changed: 1 task is held until its turn in the lane comes:   fbtasks inspect held",
        "changed: no worker serves its queue default.",
    ]


def test_held_tasks_are_counted_as_waiting(halted, url, capsys):
    title, line = shown(capsys, "inspect", "queues", "--url", url)
    assert title.split()[:6] == ["QUEUE", "READY", "SCHEDULED", "RUNNING", "PARKED", "HELD"]
    assert line.split()[:6] == ["default", "0", "0", "0", "0", "1"]
    counters = dict(line.split(maxsplit=1) for line in shown(capsys, "inspect", "stats", "--url", url))
    assert (counters["WAITING_TASKS"], counters["TASKS"]) == ("1", "4")
    assert sum(queues.purge(halted.database, "default")) == 1


def test_those_behind_halted_lanes_are_found_by_an_index(halted):
    """Else each halted lane would read the whole log."""
    with halted.connect() as connection, connection.cursor() as cursor:
        statement = cursor.prepare(queries()["subscription_loads"])
        plan = statement.detailed_plan
        statement.free()
    assert plan.count('"QUEUE_CHANGE_LANE" Range Scan (partial match: 3/4)') == 2, plan


def test_nothing_waits_behind_a_lane_that_goes_on(halted, refused, url, capsys):
    refused.clear()
    assert command_line("retry", "--all-failed", "--url", url) == 0
    drain(halted)
    (source,) = inspected(halted)
    assert (source.halted, source.behind, source.waiting, source.held, source.taken) == (0, 0, 0, 0, 11)
    assert shown(capsys, "inspect", "held", "--url", url) == ["Nothing is held."]


def test_why_changes_wait_is_said(app, url, capsys):
    app.queue("mail", max_length=1, run_between=("00:00", "24:00"), tz="UTC")
    app.on_change("T", insert=True, queue="mail", name="changed")(len)
    letter = app.task(name="letter", queue="mail")(len)
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    apply(app)
    letter.delay([])
    app.close()
    assert len(shown(capsys, "inspect", "sources", "--url", url)) == 2  # nothing waits
    execute(app, "INSERT INTO T VALUES (1)")
    execute(app, "DELETE FROM QUEUE_SHIFT")
    _, _, *said = shown(capsys, "inspect", "sources", "--url", url)
    assert said == [
        "changed: no worker serves its queue mail.",
        "changed: its queue mail is full (1 of 1 task).",
        "changed: its queue mail is closed.",
    ]
    service.pause(app.database, ["changed"])
    assert len(shown(capsys, "inspect", "sources", "--url", url)) == 2  # as its state says


def test_a_command_has_a_line_of_its_own_and_a_name_is_whole(app, url, capsys):
    name = "shop.orders.handlers.the_receipt_of_an_order_that_was_paid_in_more_than_one_part"
    app.on_change("T", insert=True, name=name, stop_on_failure=True, max_retries=0)(lambda change: 1 / 0)
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    apply(app)
    app.close()
    execute(app, "INSERT INTO T VALUES (1)")
    drain(app)
    capsys.readouterr()
    command_line("inspect", "sources", "--url", url)
    _, line, *said = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{name}  T ")
    assert said[-1] == f"    fbtasks inspect failed --name {name}"
    assert [each for each in said[:-1] if len(each) > 80 and name not in each] == []


def test_subscriptions_are_readable_at_80_columns(app, url, capsys, monkeypatch):
    """No name is cut: that of the task has a line of its own where one line would not do."""
    name = "shop.orders.handlers.send_the_receipt"
    app.on_change("CUSTOMER_ORDERS", insert=True, name=name, queue="confirmations")(id)
    execute(app, "CREATE TABLE CUSTOMER_ORDERS (ID INTEGER NOT NULL PRIMARY KEY)")
    apply(app)
    app.close()

    def printed(*command):
        capsys.readouterr()
        command_line(*command, "--url", url)
        return capsys.readouterr().out.splitlines()

    for command in (["subscriptions", "list"], ["inspect", "sources"]):
        wide = printed(*command)
        assert name in wide[1].split()
        monkeypatch.setenv("COLUMNS", "80")
        narrow = printed(*command)
        monkeypatch.delenv("COLUMNS")
        assert (narrow[0], narrow[2]) == ("TASK", name)
        assert max(map(len, narrow)) <= 80
        facts = [each for each in wide[1].split("  ") if each and each != name and not each.endswith("ago")]
        assert all(each.strip() in narrow[3] for each in facts), narrow[3]
        assert "CUSTOMER_ORDERS" in narrow[3]


def test_events_without_a_key_are_counted_as_taken(app):
    """They become tasks when they are raised: their sources do not see them."""
    fails = []

    @app.on_event("order.paid", name="mail", ignore_result=False)
    def mail(event):
        """Keeps its result."""

    @app.on_event("order.paid", name="book", max_retries=0)
    def book(event):
        if event.data in fails:
            raise ValueError(event.data)

    apply(app)

    def taken():
        return {each.name: each.taken for each in inspected(app)}

    for number in range(5):
        app.raise_event("order.paid", number)
    assert taken() == {"mail": 5, "book": 5}
    fails.append(3)
    drain(app)
    assert taken() == {"mail": 5, "book": 5}
    app.raise_event("order.paid", 5, order_key="a")
    drain(app)
    app.raise_event("order.paid", 6)
    execute(app, "DELETE FROM QUEUE_HISTORY WHERE STATE = 10")
    assert taken() == {"mail": 7, "book": 7}
    with app.database.session() as session:
        assert [(each.queue, each.succeeded, each.failed) for each in results.stats(session, timedelta(1))] == [
            ("default", 11, 1)
        ]


def test_rows_of_a_polled_table_are_not_said_to_be_none(app, url, capsys):
    app.poll_table("T", key="ID", status="STATUS", ready="R", taken="T", done="D", failed="F", name="row")(id)
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, STATUS CHAR(1))")
    apply(app)
    app.close()
    execute(app, "INSERT INTO T VALUES (1, 'R')")
    (source,) = inspected(app)
    assert source.waiting is None
    _, line, said = shown(capsys, "inspect", "sources", "--url", url)
    assert line.split() == ["row", "T", "active", "-", "0", "0", "0", "0"]
    assert said == "row: no worker serves its queue default."


def test_events_without_a_handler_are_shown_and_are_a_problem_in_time(app, url, capsys):
    app.raise_event("order.piad", {"id": 1})
    app.raise_event("order.piad", "x" * 5_000)
    (source,) = inspected(app)
    assert (source.kind, source.source, source.state, source.waiting) == ("event", "order.piad", "unhandled", 2)
    _, line, *said = shown(capsys, "inspect", "sources", "--url", url)
    assert line.split()[:4] == ["-", "order.piad", "unhandled", "2"]
    why = "no handler is registered for it; what was raised since "
    assert said[0].startswith(f"event order.piad: {why}")
    assert get_health(app.database, 300, 10).problems["sources"] == []
    execute(app, f"UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-20 SECOND TO {NOW})")
    (problem,) = get_health(app.database, 300, 10).problems["sources"]
    assert (problem.what, problem.problem[: len(why)]) == ("event order.piad", why)
    app.on_event("order.piad", name="late")(len)
    apply(app)
    assert [each.state for each in inspected(app)] == ["active"]


def test_a_queue_without_a_worker_is_named_as_soon_as_changes_wait_for_it(app):
    app.on_change("T", insert=True, queue="mail", name="changed")(len)
    app.on_change("T", insert=True, queue="later", after=60, name="delayed")(len)
    execute(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    apply(app)
    app.close()
    assert get_health(app.database, 300).unserved == []
    execute(app, "INSERT INTO T VALUES (1)")
    assert get_health(app.database, 300).unserved == ["mail"]
