"""Subscriptions are deployed and operated on the command line, with real processes."""

import json
import subprocess
from contextlib import closing

import pytest
from support.forkserver import forkserver
from support.shop import PAID, TABLE, actions, deployed, listed
from support.sql import execute, one, rows
from support.variants import slow

from fbtasks import FBTasks
from fbtasks.features.sources.store.subscriptions import prune_events

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
    answer, (code, _) = deployed(project, "diff", "--check", check=False)
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
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_DISPATCH WHERE SUBSCRIPTION_ID > 0") == 1


def test_what_was_done_is_told_apart_from_what_is_to_be_done(project, shop):
    project.write(PAID)
    assert project.run("subscriptions", "diff", "-A", "proj").stdout == "to create: paid (change of ORDERS)\n"
    assert project.run("subscriptions", "apply", "-A", "proj").stdout == "created: paid (change of ORDERS)\n"
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    _, said = project.run("subscriptions", "apply", "-A", "proj", "--existing").stdout.splitlines()
    assert said.startswith("No existing rows of paid were noted")
    assert said.endswith("fbtasks subscriptions backfill paid")
    assert changes(shop) == 1


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
    assert "fbtasks:queue:money" in one(
        shop, "SELECT RDB$TRIGGER_SOURCE FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME = 'QUEUE_ON_1'"
    )


def test_another_source_or_order_ends_the_old_one_when_what_it_has_is_done(project, shop):
    """What was noted in the lanes of one order is not handled in those of another."""
    project.write(PAID)
    deployed(project, "apply")
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (5)")
    project.write(PAID.replace('name="paid"', 'name="paid", order="total"'))
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "replace"}
    assert (trigger(shop, 1), trigger(shop, 2)) == (("ORDERS", 1), ("ORDERS", 0))
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (6)")
    assert (changes(shop, 1), changes(shop, 2)) == (1, 1)
    assert [(row["state"], row["ends"]) for row in listed(project).values()] == [("active", True), ("active", False)]
    with shop.database.session() as session:
        session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 10, None, 0, 0, b""))
    assert (changes(shop, 1), changes(shop, 2)) == (0, 0)
    execute(shop, "DELETE FROM QUEUE_TASK")
    with shop.database.session() as session:
        session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 10, None, 0, 0, b""))  # reads the notes
    shop.close()
    deployed(project, "apply")
    assert list(listed(project)) == [2]
    assert trigger(shop, 1) is None


def test_what_vanished_from_the_code_is_kept(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    project.write("")
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "orphan"}
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "none"}
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    assert changes(shop) == 1
    with shop.database.session() as session:
        assert session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 10, None, 0, 0, b"")) == []
    said = project.run("health", check=False).stdout
    assert "subscription paid: its code is gone, and changes wait" in said
    project.write(PAID)
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "repair"}
    assert listed(project)[1]["state"] == "active"
    assert "its code is gone" not in project.run("health", check=False).stdout


def test_two_apps_on_one_table_and_two_with_one_task_name(project, shop):
    project.write(PAID)
    project.write(PAID.replace('"paid"', '"also"').replace("orders", "ORDERS"), name="other")
    text = (project.folder / "other.py").read_text().replace("FBTasks('proj')", "FBTasks('other')")
    (project.folder / "other.py").write_text(text)
    deployed(project, "apply")
    deployed(project, "apply", app="other")
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    assert (changes(shop, 1), changes(shop, 2)) == (1, 1)
    answer, _ = deployed(project, "apply")  # nothing of the other app's is an orphan
    assert actions(answer) == {"paid": "none"}
    (project.folder / "other.py").write_text(text.replace('"also"', '"paid"'))
    _, (code, said) = deployed(project, "apply", app="other", check=False)
    assert code == 2
    assert "the task 'paid' of the app 'other', and already one of 'proj'" in said
    worker = project.run("worker", "-A", "other", "--burst", "-P", "solo", check=False)
    assert worker.returncode == 2
    assert "already one of 'proj'" in worker.stderr


@pytest.mark.parametrize("count", [3, slow(20)])
def test_workers_that_start_at_once_deploy_once(project, shop, count):
    """More of them only wait longer for one another."""
    project.write(PAID)
    shop.close()
    command, pipe = ("subscriptions", "apply", "-A", "proj", "--json"), subprocess.PIPE
    processes = [forkserver.start(command, project.folder, project.env, stdout=pipe, stderr=pipe) for _ in range(count)]
    try:
        done = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()  # one that has ended is left alone
            process.communicate()
    assert [process.returncode for process in processes] == [0] * count, done
    did = [actions(json.loads(out))["paid"] for out, _ in done]
    assert sorted(did) == ["create"] + ["none"] * (count - 1)
    assert rows(shop, "SELECT ID, VERSION FROM QUEUE_SUBSCRIPTION") == [(1, 1)]


def test_a_worker_deploys_at_its_start_where_it_migrates(project, shop, wait_for):
    project.write(PAID)
    shop.close()
    embedded = shop.settings.migrates
    done = project.run("worker", "-A", "proj", "--burst", "-P", "solo")
    assert (trigger(shop) == ("ORDERS", 0)) == embedded
    assert "older than" not in done.stderr  # its own connections write nothing into that table


def test_a_worker_that_does_not_migrate_says_what_is_missing_and_registers_events(project, shop):
    source = (
        PAID
        + """
    @app.on_event("order.paid", name="mail", order=None)
    def mail(event):
        pass
    """
    )
    project.write(source)
    text = (project.folder / "proj.py").read_text().replace("FBTasks('proj')", "FBTasks('proj', auto_migrate=False)")
    (project.folder / "proj.py").write_text(text)
    done = project.run("worker", "-A", "proj", "--burst", "-P", "solo")
    assert "Subscription paid: it has no trigger yet. Run: fbtasks subscriptions apply -A proj" in done.stderr
    assert trigger(shop) is None
    assert rows(shop, "SELECT EVENT, DIRECT, NAME FROM QUEUE_HANDLER") == [("order.paid", 2, "mail")]
    deployed(project, "apply")
    execute(shop, "ALTER TRIGGER QUEUE_ON_2 INACTIVE")
    (project.folder / "proj.py").write_text(text.replace('"order.paid"', '"order.returned"'))
    done = project.run("worker", "-A", "proj", "--burst", "-P", "solo")
    assert "Subscription paid: its trigger is inactive" in done.stderr
    assert rows(shop, "SELECT EVENT, NAME FROM QUEUE_HANDLER") == [("order.returned", "mail")]
    (project.folder / "proj.py").write_text(text.replace("@app.on_event", "#"))
    project.run("worker", "-A", "proj", "--burst", "-P", "solo")
    assert rows(shop, "SELECT EVENT, DIRECT FROM QUEUE_HANDLER") == [("order.returned", 0)]  # kept in the log


def test_migrate_with_an_app_deploys_too(project, shop):
    project.write(PAID)
    done = json.loads(project.run("migrate", "-A", "proj", "--json").stdout)
    assert [step["action"] for step in done["subscriptions"]] == ["create"]
    assert trigger(shop) == ("ORDERS", 0)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("ALTER TRIGGER QUEUE_ON_1 INACTIVE", "its trigger is inactive"),
        pytest.param("DROP TRIGGER QUEUE_ON_1", "its trigger is missing", marks=pytest.mark.slow),
        pytest.param(
            "CREATE OR ALTER TRIGGER QUEUE_ON_1 FOR ORDERS AFTER INSERT AS BEGIN END",
            "its trigger was edited",
            marks=pytest.mark.slow,
        ),
        ("ALTER TABLE ORDERS ALTER STATUS TYPE VARCHAR(40)", "the table has changed"),
    ],
)
def test_a_spoiled_trigger_is_told_of_and_repaired(project, shop, spoil, said):
    project.write(PAID)
    deployed(project, "apply")
    shop.close()
    execute(shop, spoil)
    assert said in " ".join(listed(project)[1]["problems"])
    health = project.run("health", check=False)
    assert f"subscription paid: {said}" in health.stdout
    answer, (code, _) = deployed(project, "diff", "--check", check=False)
    assert (actions(answer), code) == ({"paid": "repair"}, 1)
    deployed(project, "apply")
    assert listed(project)[1]["problems"] == []
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    assert changes(shop) == 1


def test_a_dropped_table_and_one_that_is_made_anew(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    shop.close()
    execute(shop, "DROP TABLE ORDERS")
    assert "subscription paid: the database has no table 'orders'" in project.run("health", check=False).stdout
    answer, (code, said) = deployed(project, "apply", check=False)
    assert (code, answer["steps"]) == (1, [])
    assert "paid: the database has no table 'orders'" in said
    assert listed(project)[1]["state"] == "active"  # what it has is given out
    assert changes(shop) == 1
    worker = project.run("worker", "-A", "proj", "--burst", "-P", "solo")
    assert worker.returncode == 0
    assert changes(shop) == one(shop, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
    assert rows(shop, "SELECT * FROM QUEUE_HISTORY WHERE STATE <> 10") == []
    execute(shop, TABLE)
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "repair"}
    assert listed(project)[1]["problems"] == []


def test_problems_are_told_to_people_by_name_and_wrapped(project, shop):
    shop.close()  # a connection that is older than a trigger would be told of
    project.write(
        PAID
        + """
    @app.on_change("ORDERS", insert=True, when="new.STATSU = 'x'", name="typo")
    def typo(change):
        pass

    @app.poll_table("ORDERS", key="ID", columns=("NOTE",), name="poll")
    def poll(row):
        pass
    """
    )
    for command in ("diff", "apply", "migrate", "apply"):
        group = () if command == "migrate" else ("subscriptions",)
        done = project.run(*group, command, "-A", "proj", check=False)
        *lines, last = done.stderr.splitlines()
        assert done.returncode == 1
        assert last == "Error: 2 definitions cannot be deployed, as said above."
        assert max(map(len, lines)) <= 80
        assert lines[0] == "poll: the table 'ORDERS' has no column 'NOTE'."
        assert lines[1].startswith("typo: on_change('ORDERS'): when=\"new.STATSU = 'x'\" does not compile")
        assert all(line.startswith("  ") for line in lines[2:])
        assert " ".join(map(str.strip, lines[1:])).endswith(
            "-Column unknown -NEW.STATSU). Give a condition in SQL that names columns of 'ORDERS' as new.COLUMN."
        )
    assert done.stdout == "Nothing else to do.\n"
    assert [row["name"] for row in listed(project).values()] == ["paid"]  # which they have not held up


def test_the_list_tells_what_is_wrong_below_it(project, shop):
    project.write(
        PAID
        + """
    @app.poll_table("ORDERS", key="ID", when="10 / ID > 1", name="poll")
    def poll(row):
        pass
    """
    )
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (0)")
    shop.close()
    deployed(project, "apply")
    execute(shop, "ALTER TRIGGER QUEUE_ON_1 INACTIVE")
    app = "FBTasks('proj', auto_migrate=False)"
    text = (project.folder / "proj.py").read_text().replace("FBTasks('proj')", app)
    (project.folder / "proj.py").write_text(text)
    shop.close()
    assert "Integer divide by zero" in project.run("worker", "-A", "proj", "--burst", "-P", "solo").stderr
    head, paid, poll, *below = project.run("subscriptions", "list").stdout.splitlines()
    assert head.split() == ["ID", "KIND", "TASK", "SOURCE", "STATE", "APP", "QUEUE", "DEPLOYED"]
    assert paid.split()[:7] == ["1", "change", "paid", "ORDERS", "active", "proj", "default"]
    assert poll.split() == ["2", "poll", "poll", "ORDERS", "active", "proj", "default"]
    assert below[0] == "paid (1): its trigger is inactive."
    assert below[1].startswith("poll (2): arithmetic exception, numeric overflow")
    assert "Integer divide by zero" in " ".join(map(str.strip, below))


def test_a_pause_keeps_and_survives_apply(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    said = "paid: nothing is given out until: fbtasks subscriptions resume paid\n"
    assert project.run("subscriptions", "pause", "paid").stdout == said
    assert project.run("subscriptions", "pause", "paid").stdout == "Nothing to do: paused already.\n"
    assert "Nothing to do" in project.run("subscriptions", "pause", "paid").stdout
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    project.write(PAID.replace('"TOTAL"', '"CUSTOMER"'))
    deployed(project, "apply")
    assert listed(project)[1]["state"] == "paused"
    with shop.database.session() as session:
        claim = lambda: session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 10, None, 0, 0, b""))
        assert claim() == []
        assert changes(shop) == 1
        project.run("subscriptions", "resume", "paid")
        assert len(claim()) == 1
    assert changes(shop) == 0


def test_silence_notes_nothing_and_survives_apply(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    project.run("subscriptions", "pause", "paid", "--silent")
    shop.close()
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    project.write(PAID.replace('"TOTAL"', '"CUSTOMER"'))
    answer, _ = deployed(project, "apply")
    assert actions(answer) == {"paid": "alter"}
    shop.close()
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (2)")
    assert (changes(shop), trigger(shop), listed(project)[1]["problems"]) == (0, ("ORDERS", 1), [])
    project.run("subscriptions", "resume", "paid")
    shop.close()
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (3)")
    assert (changes(shop), listed(project)[1]["problems"]) == (1, [])


def test_a_paused_event_waits_in_the_log_and_a_silent_one_is_not_heard(project, shop):
    project.write("""
    @app.on_event("order.paid", order=None)
    def mail(event):
        pass
    """)
    deployed(project, "apply")
    handlers = lambda: rows(shop, "SELECT EVENT, DIRECT FROM QUEUE_HANDLER")
    assert handlers() == [("order.paid", 2)]
    project.run("subscriptions", "pause", "proj.mail")
    assert handlers() == [("order.paid", 0)]
    project.run("subscriptions", "pause", "proj.mail", "--silent")
    assert handlers() == [("order.paid", -1)]
    deployed(project, "apply")
    assert handlers() == [("order.paid", -1)]
    execute(shop, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid')")
    project.run("subscriptions", "resume", "proj.mail")
    assert handlers() == [("order.paid", 2)]
    with shop.database.session() as session:
        session.run(prune_events)
    assert (
        one(shop, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0")
        == one(shop, "SELECT COUNT(*) FROM QUEUE_TASK")
        == 0
    )


def test_unknown_names_are_refused(project, shop):
    project.write(PAID)
    deployed(project, "apply")
    for command in (["pause"], ["resume"], ["backfill"], ["drop", "--yes"]):
        done = project.run("subscriptions", *command, "payd", check=False)
        assert done.returncode == 2
        assert (
            "there is no subscription 'payd'. Did you mean 'paid'? They are in: fbtasks subscriptions list"
            in done.stderr
        )
    done = project.run("subscriptions", "drop", "paid", "payd", check=False, input="n\n")
    assert (done.returncode, done.stdout) == (2, "")  # it has not asked
    assert project.run("subscriptions", "drop", "paid", check=False, input="n\n").returncode == 1
    assert list(listed(project)) == [1]
    assert "give -A MODULE" in project.run("subscriptions", "apply", check=False).stderr
