"""Changes of a table from the statement to the handler, with a worker in the test's own process."""

import json
import time
from collections import Counter
from contextlib import closing

import pytest
from support.capture import script
from support.draining import drain
from support.duties import Worker
from support.programs import command_line
from support.sources import apply
from support.sql import execute, rows

from fbtasks import FBTasks
from fbtasks.errors import StatementRefused
from fbtasks.features.sources.deployment import Deployment

ORDERS = "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(10), TOTAL INTEGER, NOTE VARCHAR(30))"


@pytest.fixture
def heard():
    return []


@pytest.fixture
def said(capsys, url):
    """What a command says, as JSON."""

    def run(*arguments):
        command_line(*arguments, "--url", url, "--json")
        return json.loads(capsys.readouterr().out)

    return run


def test_an_expression_that_fails_is_a_failed_task_and_nothing_else(app, heard, said):
    script(app, ORDERS)
    app.on_change("ORDERS", insert=True, when="100 / new.TOTAL > 1", name="paid")(lambda c: heard.append(c.key["ID"]))
    apply(app)
    app.close()
    for number, total in ((1, 10), (2, 0), (3, 20)):
        execute(app, "INSERT INTO ORDERS (ID, TOTAL) VALUES (?, ?)", number, total)
    assert rows(app, "SELECT ID FROM ORDERS") == [(1,), (2,), (3,)]
    drain(app)
    assert sorted(heard) == [1, 3]
    (failed,) = said("inspect", "failed")
    assert (failed["name"], failed["try_count"]) == ("paid", 1)
    assert "a change for the task 'paid' could not be recorded (key: ID=2; insert by" in failed["error_msg"]
    assert "Integer divide by zero" in failed["error_msg"]
    (source,) = said("inspect", "sources")
    assert (source["name"], source["source"], source["taken"], source["failed"], source["waiting"]) == (
        "paid", "ORDERS", 3, 1, 0,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["key", "total"])
def test_a_trigger_that_changes_its_row_once_more_is_noted_before_its_own_statement(app, heard, order):
    """The engine calls the triggers of the inner statement first, at whichever position ours is."""
    script(app, ORDERS)
    for when, number in (("BEFORE", 0), ("AFTER", 32766)):
        change = "NEW.TOTAL = 7;" if when == "BEFORE" else "UPDATE ORDERS SET NOTE = 'seen' WHERE ID = NEW.ID;"
        script(app, f"CREATE TRIGGER {when}_INSERT FOR ORDERS {when} INSERT POSITION {number} AS BEGIN {change} END")
    app.on_change("ORDERS", insert=True, update=True, columns=("TOTAL", "NOTE"), order=order, name="paid")(
        lambda change: heard.append((change.op, change.new["TOTAL"], change.new["NOTE"]))
    )
    apply(app)
    app.close()
    execute(app, "INSERT INTO ORDERS (ID, TOTAL) VALUES (1, 5)")
    drain(app)
    assert heard == [("update", 7, "seen"), ("insert", 7, None)]
    assert rows(app, "SELECT TOTAL, NOTE FROM ORDERS") == [(7, "seen")]


NUMBERS = (
    "EXECUTE BLOCK AS DECLARE N INTEGER = 0; "
    "BEGIN WHILE (N < {count}) DO BEGIN N = N + 1; INSERT INTO NUMBERS VALUES (:N); END END"
)
BULK = "INSERT INTO ORDERS (ID, TOTAL) SELECT {first} + N, MOD(N, 50) FROM NUMBERS"
ORDERED = {
    "key": {"key": "TOTAL", "columns": "ID"},
    "total": {"order": "total"},
    "none": {"order": None},
    "batch": {"order": None, "batch": 500},
}


@pytest.mark.parametrize(
    ("count", "order"),
    [(1000, "key"), (1000, "total"), (100, "none"), (1000, "batch")]
    + [pytest.param(100_000, order, marks=pytest.mark.slow) for order in ("key", "total", "batch")],
)
def test_of_bulk_inserts_what_was_committed_arrives_once(app, heard, count, order):
    script(app, ORDERS, "CREATE TABLE NUMBERS (N INTEGER)", NUMBERS.format(count=count))

    def handle(changes):
        heard.extend(change.new["ID"] for change in (changes if order == "batch" else [changes]))

    app.on_change("ORDERS", insert=True, name="all", **ORDERED[order])(handle)
    apply(app)
    app.close()
    with closing(app.connect()) as undone, closing(app.connect()) as done:
        undone.execute_immediate(BULK.format(first=2_000_000))
        begun = time.process_time()
        done.execute_immediate(BULK.format(first=0))
        done.savepoint("BEFORE")
        done.execute_immediate(BULK.format(first=1_000_000))
        done.rollback(savepoint="BEFORE")
        done.commit()
        noted = time.process_time()
        drain(app)
        print(f"processor: noted twice in {noted - begun:.1f} s, handled in {time.process_time() - noted:.1f} s")
        undone.rollback()
    drain(app)
    assert Counter(heard) == Counter(range(1, count + 1))
    if order == "total":
        assert heard == sorted(heard)
    assert (
        rows(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0")
        == rows(app, "SELECT COUNT(*) FROM QUEUE_TASK")
        == [(0,)]
    )


def told(app, caplog):
    """What a worker says once a minute."""
    caplog.clear()
    with app.database.session() as session:
        Deployment(app, Worker()).do(session)
    app.close()
    return [message.partition(". Run:")[0] for message in caplog.messages]


def test_a_table_is_altered(app, url, heard, said, caplog):
    script(app, ORDERS)
    app.on_change("ORDERS", insert=True, columns=("NOTE",), when="new.TOTAL > 0", name="paid")(
        lambda change: heard.append((change.key["ID"], change.new.get("NOTE")))
    )
    apply(app)
    app.close()
    execute(app, "INSERT INTO ORDERS VALUES (1, 'A', 1, 'x')")
    app.close()
    script(app, "ALTER TABLE ORDERS ADD MORE INTEGER", "ALTER TABLE ORDERS DROP STATUS")
    assert apply(app).changes == []
    assert told(app, caplog) == []
    assert said("health")["problems"] == [
        "queue default: no worker serves it",
        "no worker is alive (fbtasks worker -A MODULE)",
    ]
    for refused in ("DROP NOTE", "ALTER NOTE TO TEXT", "DROP TOTAL"):
        with pytest.raises(StatementRefused, match=r"QUEUE_ON_1|there are 1 dependencies"):
            script(app, f"ALTER TABLE ORDERS {refused}")
        app.close()
    execute(app, "INSERT INTO ORDERS VALUES (2, 1, 'y', 7)")
    changed = FBTasks("test", url)
    changed.on_change("ORDERS", insert=True, when="new.TOTAL > 0", name="paid")(
        lambda change: heard.append((change.key["ID"], change.new.get("NOTE")))
    )
    apply(changed)
    changed.close()
    app.close()
    script(app, "ALTER TABLE ORDERS DROP NOTE")
    execute(app, "INSERT INTO ORDERS VALUES (3, 1, 7)")
    drain(changed)
    changed.close()
    assert sorted(heard) == [(1, "x"), (2, "y"), (3, None)]
    # The code before it names a column that is gone.
    assert told(app, caplog) == ["Subscription paid: the table 'ORDERS' has no column 'NOTE'"]
    (problem,) = apply(app).problems.values()
    assert problem.startswith("the table 'ORDERS' has no column 'NOTE'")
    execute(app, "INSERT INTO ORDERS VALUES (4, 1, 7)")
    drain(app)
    assert heard[-1] == (4, None)
