"""Subscriptions are deployed, changed and dropped while programs write their tables with statements prepared before."""

import json
import os
from contextlib import closing, contextmanager

import pytest
from support.shop import PAID, TABLE, Writers, actions, deployed, listed
from support.sql import execute, one, rows

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance


@pytest.fixture
def shop(project):
    with closing(FBTasks("looker", project.url)) as app:
        execute(app, TABLE)
        execute(app, "CREATE SEQUENCE STEP")
        app.close()
        yield app


@contextmanager
def writing(project, count, *arguments, **options):
    writers = Writers(project, count, *arguments, **options)
    try:
        yield writers
    finally:
        writers.kill()


def changes(shop):
    return one(shop, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0")


def test_older_connections_are_told_of_waited_for_and_ended(project, shop, wait_for):
    project.write(PAID)
    with writing(project, 1) as old:
        answer, (code, _) = deployed(project, "apply", "--wait", "0.5", check=False)
        assert (actions(answer), code) == ({"paid": "create"}, 1)
        assert [each["pid"] for each in answer["unsettled"]] == old.pids
        done = project.run("subscriptions", "apply", "-A", "proj")
        assert "1 connection older than a trigger" in done.stderr
        assert f"pid {old.pids[0]}" in done.stderr
        old.stop()
    answer, (code, _) = deployed(project, "apply", "--wait", "30")
    assert (answer["unsettled"], code) == ([], 0)
    with writing(project, 1, first=2) as new:
        wait_for(lambda: changes(shop) > 0)
        written = new.stop()
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE LANE >= 2000000") == written
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE LANE < 2000000") == 0  # a statement without the trigger


def test_older_connections_are_ended_on_request(project, shop):
    project.write(PAID)
    with writing(project, 1):
        answer, (code, _) = deployed(project, "apply", "--disconnect")
        assert (actions(answer), answer["unsettled"], code) == ({"paid": "create"}, [], 0)


def test_changes_of_the_definition_lose_and_double_nothing(project, shop):
    """No writer fails either, whatever it prepared, and when."""
    project.write(PAID)
    deployed(project, "apply")
    with writing(project, 3) as writers:
        for options in ("queue='money'", "priority=3", "order='total'", "order=None", "after=1"):
            project.write(PAID.replace('name="paid"', f'name="paid", {options}'))
            answer, _ = deployed(project, "apply")
            assert actions(answer)["paid"] in ("alter", "replace")
        written = writers.stop()
    assert changes(shop) == one(shop, "SELECT COUNT(*) FROM ORDERS") == written > 100
    ids = "SELECT COUNT(DISTINCT ID) FROM QUEUE_CHANGE"
    assert one(shop, ids) == written


def test_drop_under_load_fails_no_writer(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    with writing(project, 3) as writers:
        dropped, _ = deployed(project, "drop", "paid", "--yes")
        (state,) = dropped["dropped"]
        assert (state["gone"], len(state["connections"])) == (False, 3)
        assert listed(project)[1]["state"] == "dropped"
        writers.stop()
    dropped, (_, said) = deployed(project, "drop", "1", "--yes")
    assert [each["gone"] for each in dropped["dropped"]] == [True]
    assert "the app still defines paid" in said
    assert listed(project) == {}
    for table in ("QUEUE_CHANGE", "QUEUE_DISPATCH WHERE SUBSCRIPTION_ID > 0", "QUEUE_SUBSCRIPTION"):
        assert one(shop, f"SELECT COUNT(*) FROM {table}") == 0
    assert one(shop, "SELECT COUNT(*) FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = 'QUEUE_ON_1'") == 0
    assert one(shop, "SELECT COUNT(*) FROM RDB$USER_PRIVILEGES WHERE RDB$USER = 'QUEUE_ON_1'") == 0
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "create"}
    assert list(listed(project)) == [2]


LATEST = """
    @app.on_change("ORDERS", insert=True, update=("STATUS",), columns=("TOTAL",), name="paid", order={order!r})
    def paid(change):
        pass
"""


@pytest.mark.parametrize("order", ["key", pytest.param("total", marks=pytest.mark.slow)])
def test_existing_rows_are_handled_before_their_changes(project, shop, order):
    """By the last change that is handled, each key has the value that its row has."""
    keys = int(os.environ.get("FBTASKS_EXISTING_KEYS", "300"))
    execute(
        shop,
        "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < "
        f"{keys}) DO BEGIN INSERT INTO ORDERS (ID, TOTAL) VALUES (:I, 0); I = I + 1; END END",
    )
    shop.close()
    project.write(LATEST.format(order=order))
    with writing(project, 2, "update", limit=keys) as writers:
        answer, (code, said) = deployed(project, "apply", "--existing", check=False)
        assert code == 1
        assert "2 connections are older" in said
        assert answer is None
        writers.stop()
    with writing(project, 3, "update", limit=keys) as writers:
        handled = {}
        answer, _ = deployed(project, "backfill", "paid")
        assert answer["noted"] == {"paid": keys}
        collect(shop, handled)
        writers.stop()
    while collect(shop, handled):
        pass
    actual = dict(rows(shop, "SELECT ID, TOTAL FROM ORDERS"))
    assert len(handled) == keys
    stale = {key for key, total in actual.items() if handled[key] != total}
    assert stale == set()


def collect(shop, handled):
    """Handles what a claim makes of the log, in its order; whether there was something."""
    with shop.database.session() as session:
        session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 1000, None, 1, 0, b""))
        rows = session.run(lambda t: t.rows("live", more=" STATE = 2 ORDER BY ID"))
        for row in rows:
            _, inline, large = session.read("live_call", row[0])[0]
            for change in json.loads(inline if large is None else bytes(large), parse_float=str)[0]:
                handled[change["k"]["ID"]] = _decimal(change["n"]["TOTAL"])
    execute(shop, "DELETE FROM QUEUE_TASK WHERE STATE = 2")
    return bool(rows)


def _decimal(value):
    from decimal import Decimal

    return None if value is None else Decimal(value["__value__"])
