"""Subscriptions are deployed and operated on the command line, with real processes."""

import json
import subprocess
import sys
from contextlib import closing

import pytest
from support.shop import PAID, TABLE, actions, deployed, listed
from support.sql import execute, one, rows

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance


@pytest.fixture
def shop(project):
    """The project's database, with a table."""
    with closing(FBTasks("looker", project.url)) as app:
        execute(app, TABLE)
        yield app


def trigger(shop, number=1):
    found = rows(
        shop,
        "SELECT TRIM(RDB$RELATION_NAME), RDB$TRIGGER_INACTIVE FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = ?",
        f"QUEUE_ON_{number}",
    )
    return found[0] if found else None


def changes(shop, number=1):
    return one(shop, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = ?", number)


def test_apply_makes_what_the_code_says_and_a_second_time_nothing(project, shop):
    project.write(PAID)
    answer, (code, _) = deployed(project, "diff", check=False)
    assert (actions(answer), code) == ({"paid": "create"}, 1)
    assert trigger(shop) is None
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "create"}
    assert trigger(shop) == ("ORDERS", 0)
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    assert changes(shop) == 1
    for command in ("apply", "diff"):
        answer, _ = deployed(project, command)
        assert actions(answer) == {"paid": "none"}
    assert "Nothing to do" in project.run("subscriptions", "apply", "-A", "proj").stdout
    (row,) = listed(project).values()
    assert (row["source"], row["state"], row["version"], row["problems"]) == ("ORDERS", "active", 1, [])
    assert rows(shop, "SELECT QUEUE, FED FROM QUEUE_POLICY") == [("default", 1)]
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_DISPATCH") == 1


def test_a_changed_definition_replaces_the_trigger_and_its_version(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    project.write(PAID.replace('name="paid"', 'name="paid", queue="money", priority=7, after=1.5, batch=50'))
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "alter"}
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    assert changes(shop) == 1
    columns = "VERSION, QUEUE, PRIORITY_RANK, MOST, AFTER_MS, FILLS, QUIET_MS"
    assert rows(shop, f"SELECT {columns} FROM QUEUE_SUBSCRIPTION") == [(2, "money", -7, 50, 1500, 1, 0)]
    assert set(rows(shop, "SELECT QUEUE, FED FROM QUEUE_POLICY")) == {("default", 0), ("money", 1)}
    assert "fbtasks:queue:money" in one(shop, "SELECT RDB$TRIGGER_SOURCE FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = 'QUEUE_ON_1'")
