"""Subscriptions: existing rows as changes, drops with all that hangs on them, silence, health, rights."""

import json
import re
from contextlib import ExitStack, closing, suppress

import pytest
from firebird.driver import Isolation, tpb
from support.draining import drain
from support.duties import Keeper, Worker
from support.sources import apply, diff, inspected, listed, register
from support.sql import NOW, execute, named, one, rows
from support.users import with_role, without_role

from fbtasks import FBTasks
from fbtasks.errors import AuthenticationError, ConfigurationError, EnqueueError, StatementRefused, TaskDefinitionError
from fbtasks.features.sources import managing as service
from fbtasks.features.sources.deploy import applying
from fbtasks.features.sources.deployment import Deployment
from fbtasks.features.sources.duty import forget_events
from fbtasks.features.sources.kinds import changes
from fbtasks.features.sources.store import subscriptions as event_store
from fbtasks.features.sources.store.subscriptions import BATCH
from fbtasks.firebird import connections
from fbtasks.queue import tasks
from fbtasks.queue.operations.workers import get_health
from fbtasks.tasks import formats


def script(app, *statements):
    for statement in statements:
        with app.database.session() as session:
            session.run(lambda t, s=statement: t.script(s))


def subscribe(app, table="T", name="changed", **options):
    """A task that is fed, deployed."""
    app.on_change(table, name=name, **({"insert": True} | options))(lambda change: None)
    return apply(app)


def begin_snapshot(connection):
    connection.begin(tpb(Isolation.SNAPSHOT))
    connection.cursor().execute("SELECT 1 FROM RDB$DATABASE").fetchall()


def claim(app, from_start=1):
    with app.database.session() as session:
        return session.run(lambda t: t.rows("FBTASKS_WORKER.CLAIM", 1, "default", 1000, None, from_start, 0, b""))


def logged(app, number=1):
    found = rows(app, "SELECT LANE, DATA, LARGE FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = ? ORDER BY ID", number)
    return [
        (lane, changes.read(formats.load_json(data or (large if isinstance(large, bytes) else large.read()))))
        for lane, data, large in found
    ]


VALUES = {
    "INTEGER": "7",
    "VARCHAR(100) CHARACTER SET UTF8": "'a \"quoted\" \\ text, ä €'",
    "VARCHAR(8000) CHARACTER SET UTF8": "LPAD('', 8000, '€')",
    "CHAR(9)": "'ab'",
    "NUMERIC(18, 4)": "-1.2345",
    "DOUBLE PRECISION": "0.1",
    "TIMESTAMP": "'2024-02-29 12:34:56.789'",
    "TIMESTAMP WITH TIME ZONE": "'2024-02-29 12:34:56.789 Europe/Berlin'",
    "BINARY(16)": "GEN_UUID()",
    "BOOLEAN": "TRUE",
}


@pytest.mark.parametrize(("order", "key"), [("key", ("NAME", "ID")), ("total", ("ID",)), (None, ("ID",))])
def test_an_existing_row_is_noted_as_its_insert_would_have_been(app, key, order):
    names = [f"C{number}" for number in range(len(VALUES))]
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, VALUES, strict=True))
    script(app, f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, NAME VARCHAR(20) CHARACTER SET UTF8, {columns})")
    app.on_change("T", name="changed", insert=True, key=key, columns=names, order=order, when="new.ID < 3 -- few")(id)
    apply(app)
    for number in (1, 2, 3):
        execute(app, f"INSERT INTO T VALUES ({number}, 'n{number}', {', '.join(VALUES.values())})")
    execute(app, "INSERT INTO T (ID) VALUES (0)")
    noted = logged(app)
    execute(app, "DELETE FROM QUEUE_CHANGE")
    app.close()
    assert service.backfill(app.database, ["changed"], disconnect=True) == {"changed": 3}
    again = logged(app)
    same = lambda found: {c.key["ID"]: (lane, c.op, c.new, c.old, c.user) for lane, c in found}
    assert same(again) == same(noted)
    assert len({change.id for _, change in again}) == 3
    assert max(change.id for _, change in again) < min(change.id for _, change in noted)


def test_existing_rows_are_noted_again_behind_those_that_still_wait(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    execute(app, "INSERT INTO T VALUES (1)")
    app.close()
    app.on_change("T", name="changed", insert=True)(id)
    done = apply(app, with_existing=True)
    assert done.existing == {"changed": 1}
    service.backfill(app.database, ["changed"])
    assert one(app, "SELECT COUNT(DISTINCT ID) FROM QUEUE_CHANGE") == 2
    assert one(app, "SELECT MAX(ID) FROM QUEUE_CHANGE") < 1_000_000_000


def test_in_total_order_existing_rows_come_before_changes_that_are_made_then(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, V INTEGER)")
    heard = []
    app.on_change("T", name="changed", insert=True, update=True, order="total")(lambda change: heard.append(change.key))
    apply(app)
    execute(app, "INSERT INTO T VALUES (1, 1)")
    drain(app)  # whose last look leaves behind from where the next one reads
    service.backfill(app.database, ["changed"])
    execute(app, "UPDATE T SET V = 2")
    with app.database.session() as session:
        (claimed,) = session.run(lambda t: tasks.claim(t, 1, "default", 100, from_start=False))
        payload = claimed.payload or session.run(lambda t: tasks.payload(t, claimed.id))
    assert heard == [{"ID": 1}]
    assert [each["o"] for each in json.loads(payload)[0]] == ["I", "U"]


def test_a_row_that_fails_the_condition_leaves_nothing_noted(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, V INTEGER)")
    execute(app, "INSERT INTO T VALUES (1, 1)")
    execute(app, "INSERT INTO T VALUES (2, 0)")
    app.close()
    subscribe(app, when="10 / new.V > 1")
    with pytest.raises(Exception, match="divide by zero"):
        service.backfill(app.database, ["changed"])
    assert logged(app) == []


def test_events_and_silent_ones_have_no_existing_rows(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    app.on_event("order.paid", name="mail")(id)
    subscribe(app)
    with pytest.raises(ConfigurationError, match="called for an event"):
        service.backfill(app.database, ["mail"])
    service.pause(app.database, ["changed"], silent=True)
    with pytest.raises(ConfigurationError, match="notes no changes now"):
        service.backfill(app.database, ["changed"])


def test_a_drop_deletes_what_hangs_on_it_and_frees_its_tasks(app):
    """In batches: more than one of the log, and one task in each state that can have a lane."""
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app)
    execute(
        app,
        "EXECUTE BLOCK AS DECLARE I INTEGER = 0; BEGIN WHILE (I < "
        f"{2 * BATCH + 5}) DO BEGIN INSERT INTO T VALUES (:I); I = I + 1; END END",
    )
    claim(app)
    ids = [row[0] for row in rows(app, "SELECT ID FROM QUEUE_TASK ORDER BY ID ROWS 5")]
    for state, number in zip((0, 1, 2, 3, 4), ids, strict=True):
        execute(app, "UPDATE QUEUE_TASK SET STATE = ? WHERE ID = ?", state, number)
    execute(app, f"DELETE FROM QUEUE_TASK WHERE ID > {ids[-1]}")
    execute(app, "UPDATE QUEUE_HOLD SET SORT_KEY = 0 WHERE TASK_ID = ?", ids[4])
    execute(
        app,
        "INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME, "
        "TRY_COUNT, CRASH_COUNT, SOURCE_ID, HAS_LANE, CONTENT_TYPE) SELECT 99999999, 'changed', 'default', 11, 0, "
        "RAISE_TIME, START_TIME, START_TIME, 1, 0, 1, TRUE, CONTENT_TYPE FROM QUEUE_TASK WHERE ID = ?",
        ids[0],
    )
    execute(app, "INSERT INTO QUEUE_HOLD (TASK_ID, STEP, OWNER_ID, LANE, SORT_KEY) VALUES (99999999, -1, 1, 5, 20000)")
    app.close()
    (dropped,) = service.drop(app.database, ["changed"])
    assert (dropped.gone, dropped.tasks, dropped.connections) == (False, True, [])
    lane = "SELECT 1 FROM QUEUE_HOLD H WHERE H.TASK_ID = T.ID"
    left = f"SELECT T.STATE, NOT EXISTS({lane}) FROM QUEUE_TASK T WHERE T.SOURCE_ID = 1 ORDER BY T.STATE"
    assert rows(app, left) == [(0, True), (1, True), (2, False), (3, True)]
    assert one(app, "SELECT ERROR_MSG FROM QUEUE_HISTORY WHERE STATE = 12") == "its subscription was dropped"
    with app.database.session() as session:
        assert session.run(lambda t: t.rows("FBTASKS_OPERATOR.RETRY", 99999999)) == [(1,)]
    assert one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = 99999999") == 0
    execute(app, "DELETE FROM QUEUE_TASK WHERE STATE = 2")  # it has ended
    app.close()
    (dropped,) = service.drop(app.database, ["1"])
    assert dropped.gone
    for table in ("CHANGE", "NOTE", "HOLD", "GATE", "DISPATCH WHERE SUBSCRIPTION_ID > 0", "SUBSCRIPTION"):
        assert one(app, f"SELECT COUNT(*) FROM QUEUE_{table}") == 0, table
    assert rows(app, "SELECT FED FROM QUEUE_POLICY") == [(0,)]


def test_a_transaction_is_silent_for_some_or_all(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    for name, always in (("a", False), ("b", False), ("c", True)):
        app.on_change("T", name=name, insert=True, always=always)(id)
    apply(app)
    app.close()

    def noted(*silent):
        execute(app, "DELETE FROM QUEUE_CHANGE")
        execute(app, "DELETE FROM T")
        with app.connect() as connection, connection.cursor() as cursor:
            for names in silent:
                app.silence(connection, *names)
            cursor.execute("INSERT INTO T VALUES (1)")
            connection.commit()
            cursor.execute("INSERT INTO T VALUES (2)")  # another transaction
            connection.rollback()
        return {
            name
            for (name,) in rows(
                app, "SELECT S.NAME FROM QUEUE_CHANGE C JOIN QUEUE_SUBSCRIPTION S ON S.ID = C.SUBSCRIPTION_ID"
            )
        }

    assert noted() == {"a", "b", "c"}
    assert noted([]) == {"c"}
    assert noted(["a"]) == {"b", "c"}
    assert noted(["a"], ["b"]) == {"c"}
    assert noted(["a"], []) == noted([], ["a"]) == {"c"}
    with pytest.raises(EnqueueError):
        app.silence(None)
    with app.connect() as connection, pytest.raises(ConfigurationError, match="more than 255 bytes"):
        app.silence(connection, *(f"task{number:03}" for number in range(40)))


def test_a_function_is_not_silenced_by_a_part_of_its_tasks_name(app):
    app.on_change("ORDERS", insert=True, name="shop.recount")(id)
    with app.connect() as connection:
        with pytest.raises(ConfigurationError, match=r"mean 'shop\.recount'"):
            app.silence(connection, "recount")
        app.silence(connection, "shop.recount", "another_apps_task")


@pytest.mark.parametrize("name", ["a,b", "*"])
def test_a_comma_parts_names_that_are_silenced_and_no_task_has_one(app, name):
    with pytest.raises(TaskDefinitionError, match="a comma parts names, '\\*' stands for all"):
        app.on_change("ORDERS", insert=True, name=name)(id)
    app.on_event("order.paid", name=name)(id)  # is not silenced
    with app.connect() as connection:
        with pytest.raises(
            ConfigurationError, match=r"is not the name of one task: .* Give each name by itself, or none"
        ):
            app.silence(connection, "shop.paid", name)
        app.silence(connection, "a", "b")


def problems(app, max_lag=900.0):
    return [each.problem for each in get_health(app.database, 300, max_lag).problems["sources"]]


def test_health_tells_of_a_log_that_grows_and_of_lanes_that_stand_still(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    assert problems(app) == []
    subscribe(app)
    app.close()
    execute(app, "INSERT INTO T VALUES (1)")
    execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-901 SECOND TO RAISE_TIME)")
    (problem,) = problems(app)
    assert re.fullmatch(r"changes wait, the oldest for 9\d\d s", problem)
    assert problems(app, 1000) == []
    service.pause(app.database, ["changed"])
    assert problems(app) == []
    service.resume(app.database, ["changed"])
    execute(app, "DELETE FROM QUEUE_CHANGE")
    execute(app, "INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED) VALUES (1, 1, 5, 1)")
    assert problems(app) == ["1 lane is halted since a task failed (fbtasks retry or discard)"]
    for lane in range(2, 103):
        execute(app, "INSERT INTO QUEUE_GATE (OWNER_ID, LANE, HOLDER_ID, HALTED) VALUES (1, ?, 5, 1)", lane)
    assert problems(app) == ["more than 100 lanes are halted since a task failed (fbtasks retry or discard)"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("DROP TRIGGER QUEUE_ON_1", "its trigger is missing"),
        ("CREATE OR ALTER TRIGGER QUEUE_ON_1 FOR T AFTER INSERT AS BEGIN END", "its trigger was edited"),
    ],
)
def test_diff_and_health_tell_of_a_trigger_that_was_changed_by_hand_and_apply_repairs_it(app, spoil, said):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app)
    execute(app, spoil)
    (step,) = diff(app).changes
    assert (step.name, step.action, step.reason) == ("changed", "repair", said)
    assert problems(app) == [f"{said} (fbtasks subscriptions apply)"]
    apply(app)
    assert (diff(app).changes, problems(app)) == ([], [])
    app.close()
    execute(app, "INSERT INTO T VALUES (1)")
    assert len(logged(app)) == 1


def test_health_leaves_out_for_how_long_changes_are_meant_to_wait(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    app.queue("nightly", days="mon-sun", tz="UTC")
    subscribe(app, after=600, queue="nightly")
    app.connect().close()  # brings in what the app says of the queue
    execute(app, "INSERT INTO T VALUES (1)")
    execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-1000 SECOND TO RAISE_TIME)")
    for opened, max_lag, wrong in ((-5000, 350, 1), (-5000, 450, 0), (-200, 350, 0), (-370, 350, 1), (200, 350, 0)):
        shift = f"OPEN_TIME = DATEADD({opened} SECOND TO {NOW}), CLOSE_TIME = DATEADD(9000 SECOND TO {NOW})"
        execute(app, f"UPDATE QUEUE_SHIFT SET {shift}")
        assert len(problems(app, max_lag)) == wrong


def test_what_a_source_has_is_counted(app):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app, order=None)
    app.on_event("order.paid", name="mail")(id)
    apply(app)
    app.close()
    for number in range(4):
        execute(app, "INSERT INTO T VALUES (?)", number)
    claim(app)
    execute(app, "INSERT INTO T VALUES (9)")
    execute(app, "UPDATE QUEUE_TASK SET STATE = 0 ROWS 1")
    changed, mail = inspected(app)
    assert (changed.taken, changed.waiting, changed.ready, changed.running) == (4, 1, 1, 3)
    assert 0 <= changed.lag < 60
    assert (mail.taken, mail.waiting, mail.lag, mail.source) == (0, 0, None, "order.paid")


BAD_CONDITIONS = {"new.STATSU = 'x'": "STATSU", "EXISTS(SELECT 1 FROM NIX)": "NIX"}


@pytest.mark.parametrize("when", BAD_CONDITIONS)
def test_diff_says_of_a_condition_what_apply_says_and_leaves_no_trace(app, when):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    app.on_change("T", name="changed", insert=True, when=when)(id)
    app.on_change("T", name="other", insert=True, when="new.ID > 5")(id)
    objects = (
        "SELECT 'trigger', RDB$TRIGGER_NAME FROM RDB$TRIGGERS "
        "UNION ALL SELECT 'right', RDB$USER FROM RDB$USER_PRIVILEGES "
        "UNION ALL SELECT 'dependency', RDB$DEPENDENT_NAME FROM RDB$DEPENDENCIES "
        "UNION ALL SELECT 'subscription', NAME FROM QUEUE_SUBSCRIPTION"
    )
    before = sorted(rows(app, objects))
    found = diff(app)
    app.close()
    assert sorted(rows(app, objects)) == before
    assert ([step.name for step in found.changes], list(found.problems)) == (["other"], ["changed"])
    assert f"when={when!r} does not compile" in found.problems["changed"]
    assert BAD_CONDITIONS[when] in found.problems["changed"]
    applied = apply(app)
    assert ([step.name for step in applied.changes], applied.problems) == (["other"], found.problems)


class Broken(Exception):
    """Ends a process in the middle, as far as the database can tell."""


@pytest.mark.parametrize(
    ("owner", "step"), [(applying.ddl, "put"), (applying.ddl, "activate"), (applying, "note_changed")]
)
@pytest.mark.parametrize("before", [False, True])
def test_what_was_broken_off_is_gone_on_with(app, url, monkeypatch, owner, step, before):
    """A first deployment, or one that replaces another: each change is noted once, and the next call ends it."""
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    if before:
        subscribe(app)
    other = FBTasks("test", url)

    def broken(*args, **options):
        raise Broken

    monkeypatch.setattr(owner, step, broken)
    with suppress(Broken):
        subscribe(other, order="total")
    monkeypatch.undo()
    app.close()
    execute(app, "INSERT INTO T VALUES (1)")
    noted = one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE")
    assert noted == 1 if before else noted <= 1
    with app.database.session() as session:
        applying.finish(session)  # as a drop of another one does
    app.close()
    execute(app, "INSERT INTO T VALUES (2)")
    assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE") == (2 if before else 2 * noted)
    apply(other)
    assert diff(other).changes == []
    execute(app, "INSERT INTO T VALUES (3)")
    other.close()
    assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE") == (3 if before else 2 * noted + 1)
    live = [row for row in listed(app) if not row.ends]
    assert [(row.order, row.problems) for row in live] == [("total", [])]


def test_kept_events_are_handed_on_in_steps_the_oldest_first(app, monkeypatch):
    """By a registration, and then by upkeep. Also those that would be forgotten if they had no handler."""
    monkeypatch.setattr(event_store, "EVENTS", 3)
    for number in range(20):
        app.raise_event("order.paid", {"id": number})
        app.raise_event("order.piad")
    execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-2 DAY TO RAISE_TIME)")
    app.on_event("order.paid", name="mail")(id)
    counts = "SELECT SUBSCRIPTION_ID, COUNT(*) FROM QUEUE_CHANGE GROUP BY 1 ORDER BY 1"
    handed_on = "SELECT ID FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 1 ORDER BY ID"
    oldest = rows(app, "SELECT ID FROM QUEUE_CHANGE WHERE DATA CONTAINING 'order.paid' ORDER BY ID ROWS 3")
    register(app)
    with app.database.session() as session:
        assert (rows(app, counts), rows(app, handed_on)) == ([(0, 37), (1, 3)], oldest)
        assert forget_events(session)
        assert rows(app, counts) == [(0, 22), (1, 18)]
        while forget_events(session):
            pass
    assert rows(app, counts) == [(1, 20)]


def test_a_program_that_only_applies_hands_on_all_and_a_burst_stays_for_it(app, monkeypatch):
    monkeypatch.setattr(event_store, "EVENTS", 3)
    kept = "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 0"
    seen = []
    for name in ("first", "second"):
        for _ in range(20):
            app.raise_event(name)
        app.on_event(name, name=name)(seen.append)
        apply(app)
        assert one(app, kept) == 17
        if name == "first":
            app.database.use(service.hand_on_events)
            assert one(app, kept) == 0
    drain(app)
    assert len(seen) == 40


@pytest.mark.parametrize("way", ["apply", "register"])
def test_maintenance_between_two_registrations_leaves_kept_events_to_all_of_them(app, url, monkeypatch, way):
    app.raise_event("order.paid", {"id": 1})
    for name in ("mail", "book"):
        app.on_event("order.paid", name=name)(id)
    app.close()
    before = []

    with closing(FBTasks("keeper", url)) as other, other.database.session() as keeper:

        def between(*given, **options):
            found = write(*given, **options)
            before.append(one(app, "SELECT COUNT(*) FROM QUEUE_HANDLER"))
            Keeper(other).turn(keeper)
            return found

        write = applying.subscriptions.subscribe
        monkeypatch.setattr(applying.subscriptions, "subscribe", between)
        if way == "apply":
            apply(app)
        else:
            register(app)
    assert before == [0, 1]
    counts = "SELECT SUBSCRIPTION_ID, COUNT(*) FROM QUEUE_CHANGE GROUP BY 1 ORDER BY 1"
    assert rows(app, counts) == [(1, 1), (2, 1)]
    monkeypatch.undo()
    app.on_event("order.paid", name="late")(id)
    apply(app)
    assert rows(app, counts) == [(1, 1), (2, 1)]


def test_an_event_in_the_place_of_changes_has_their_trigger_inactive(app, url):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app)
    execute(app, "INSERT INTO T VALUES (1)")
    app.close()
    with closing(FBTasks("test", url)) as newest:
        newest.on_event("order.paid", name="changed")(id)
        applied = apply(newest)
        assert [(step.action, step.kind) for step in applied.changes] == [("replace", "event")]
    execute(app, "INSERT INTO T VALUES (2)")
    app.raise_event("order.paid", {"id": 1}, order_key="7")
    assert rows(app, "SELECT SUBSCRIPTION_ID FROM QUEUE_CHANGE ORDER BY 1") == [(1,), (2,)]


def test_an_event_that_cannot_be_registered_holds_up_no_other(app, monkeypatch):
    for name in ("mail", "book"):
        app.on_event("order.paid", name=name)(id)
    write = applying.subscriptions.subscribe

    def refused(transaction, definition, *given, **options):
        if definition.name == "mail":
            raise StatementRefused("refused")
        return write(transaction, definition, *given, **options)

    monkeypatch.setattr(applying.subscriptions, "subscribe", refused)
    app.raise_event("order.paid", {"id": 1})
    applied = apply(app)
    assert (applied.problems, [step.name for step in applied.changes]) == ({"mail": "refused"}, ["book"])
    assert rows(app, "SELECT SUBSCRIPTION_ID FROM QUEUE_CHANGE") == [(1,)]


def test_events_that_found_no_handler_are_given_to_the_first_one_within_a_day(app):
    app.raise_event("order.paid", {"id": 1})
    app.raise_event("order.paid", {"id": 2, "text": 3000 * "x"}, order_key="7")
    app.raise_event("order.sent", {"id": 3})
    app.on_event("order.paid", name="mail")(id)
    apply(app)
    counts = "SELECT SUBSCRIPTION_ID, LANE = 0, COUNT(*) FROM QUEUE_CHANGE GROUP BY 1, 2 ORDER BY 1"
    assert rows(app, counts) == [(0, False, 1), (1, False, 2)]
    app.raise_event("order.paid", {"id": 4})
    claim(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE SOURCE_ID = 1") == 3  # at once, and both of the log
    kept = "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = 0"
    keeper = Keeper(app)
    with app.database.session() as session:
        keeper.turn(session)
        assert one(app, kept) == 1
        execute(app, "UPDATE QUEUE_CHANGE SET RAISE_TIME = DATEADD(-1441 MINUTE TO RAISE_TIME)")
        keeper.turn(session)  # not within ten minutes
        assert one(app, kept) == 1
        Keeper(app).turn(session)
        assert one(app, kept) == 0


def test_events_whose_raiser_did_not_see_their_handler_are_given_to_it(app):
    with app.connect() as connection:
        app.raise_event("order.paid", {"id": 1}, using=connection)
        app.raise_event("order.sent", {"id": 2}, using=connection)
        for name in ("mail", "book"):
            app.on_event("order.paid", name=name)(id)
        apply(app)
        connection.commit()
    with app.database.session() as session:
        Keeper(app).turn(session)
    found = rows(app, "SELECT SUBSCRIPTION_ID, COUNT(*) FROM QUEUE_CHANGE GROUP BY 1 ORDER BY 1")
    assert found == [(0, 1), (1, 1), (2, 1)]
    claim(app)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 2


def test_a_replaced_handler_stays_as_long_as_a_transaction_may_see_it(app, url):
    app.on_event("order.paid", name="mail")(id)
    apply(app)
    newer = FBTasks("test", url)
    newer.on_event("order.paid", name="mail", order="total")(id)
    with app.connect() as connection:
        begin_snapshot(connection)
        for _ in range(2):
            apply(newer)
        app.raise_event("order.paid", {"id": 1}, using=connection, order_key="a")
        connection.commit()
    assert rows(app, "SELECT SUBSCRIPTION_ID, COUNT(*) FROM QUEUE_CHANGE GROUP BY 1") == [(1, 1)]
    apply(newer)
    assert [row.id for row in listed(app)] == [1, 2]
    assert len(claim(app)) == 1
    execute(app, "DELETE FROM QUEUE_TASK")
    claim(app)
    apply(newer)
    assert [row.id for row in listed(app)] == [2]
    newer.close()


def test_a_trigger_may_read_what_its_condition_reads_whoever_fires_it(app, url):
    """Also when the condition is another one than before, from the first statement on."""
    script(
        app,
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)",
        "CREATE TABLE A (ID INTEGER)",
        "CREATE TABLE B (ID INTEGER)",
    )
    subscribe(app, when="NOT EXISTS(SELECT 1 FROM A)")
    other = FBTasks("test", url)
    with without_role(app) as ann, closing(connections.connect(ann)) as connection, connection.cursor() as cursor:
        script(app, f"GRANT ALL ON T TO USER {ann.user}")
        insert = cursor.prepare("INSERT INTO T VALUES (?)")
        cursor.execute(insert, (1,))
        connection.commit()
        subscribe(other, when="NOT EXISTS(SELECT 1 FROM B)")
        cursor.execute(insert, (2,))
        connection.commit()
        cursor.execute("INSERT INTO T VALUES (3)")
        connection.commit()
        insert.free()
    assert [change.key["ID"] for _, change in logged(app)] == [1, 2, 3]
    assert one(app, "SELECT COUNT(*) FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME STARTING WITH 'QUEUE_ON_'") == 1
    other.close()


# The embedded engine takes any user at its word, and holds it to its rights.


@pytest.fixture
def as_role(app):
    """Apps of users with one role each."""
    with ExitStack() as stack:

        def make(role):
            url = stack.enter_context(with_role(app, role))
            return stack.enter_context(closing(FBTasks("test", url, auto_migrate=False)))

        yield make


def test_an_operator_lists_pauses_and_resumes_and_makes_no_trigger(app, as_role):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app)
    operator = as_role("operator")
    assert [row.problems for row in listed(operator)] == [[]]
    assert [row.waiting for row in inspected(operator)] == [0]
    assert get_health(operator.database, 300).problems["sources"] == []
    assert service.pause(operator.database, ["changed"]) == ["changed"]
    assert service.resume(operator.database, ["changed"]) == ["changed"]
    for act in (
        lambda: service.pause(operator.database, ["changed"], silent=True),
        lambda: service.drop(operator.database, ["changed"]),
        lambda: subscribe(operator, when="1 = 1"),
    ):
        with pytest.raises(
            AuthenticationError, match="Run the command as the owner of the database, SYSDBA, or as SYSDBA"
        ):
            act()
    (row,) = listed(app)
    assert (row.state, row.version, row.problems) == ("active", 1, [])


def test_the_roles_of_workers_and_operators_see_what_is_not_deployed(app, as_role, caplog):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    worker, operator = as_role("worker"), as_role("operator")
    for each in (worker, operator):
        each.on_change("T", name="changed", insert=True, when="new.ID > 0")(id)
    # They may look, and not compile conditions.
    found = diff(operator)
    assert ([step.name for step in found.changes], found.problems) == (["changed"], {})
    worker.path = "shop"
    with worker.database.session() as session:
        duty = Deployment(worker, Worker())
        duty.begin(session)
        duty.do(session)
    assert caplog.messages == ["Subscription changed: it has no trigger yet. Run: fbtasks subscriptions apply -A shop"]
    (told,) = get_health(operator.database, 300).problems["sources"]
    assert str(told) == "subscription changed (app test): it has no trigger yet (fbtasks subscriptions apply)"


def test_a_worker_registers_handlers_of_events_of_its_own_app_alone(app, as_role):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    subscribe(app)
    worker = as_role("worker")
    worker.on_event("order.paid", name="mail")(id)
    assert register(worker) == {}
    assert rows(app, "SELECT NAME FROM QUEUE_HANDLER") == [("mail",)]
    assert [row.name for row in listed(app)] == ["changed", "mail"]
    assert [row.state for row in listed(app)] == ["active", "active"]
    with worker.database.session() as session:
        for statement in (
            "EXECUTE PROCEDURE FBTASKS_SOURCES.UNHANDLE(1, 'test')",  # not of an event
            "EXECUTE PROCEDURE FBTASKS_SOURCES.UNHANDLE(2, 'other')",
            "EXECUTE PROCEDURE FBTASKS_SOURCES_ADMIN.HOLD(1, 'paused')",
            "EXECUTE PROCEDURE FBTASKS_SOURCES_OWNER.SET_STATE(1, 'dropped')",
        ):
            with pytest.raises(AuthenticationError):
                session.run(lambda t, s=statement: t.script(named(s)))
    with worker.database.session() as session:
        assert applying.undeployed(session, "test", app.features["sources"].feeds()) == {}


def test_a_producer_reads_no_subscriptions(app, as_role):
    with pytest.raises(AuthenticationError):
        listed(as_role("producer"))


def test_an_apply_that_was_broken_off_is_gone_on_with_while_the_trigger_stays_active(app, monkeypatch):
    script(app, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")

    def broken_off(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(applying, "note_changed", broken_off)
        subscribe(app, when="new.ID > 0")
    put = applying.ddl.put

    def beside(*given, **options):
        execute(app, "INSERT INTO T VALUES (1)")
        put(*given, **options)

    monkeypatch.setattr(applying.ddl, "put", beside)
    assert [step.action for step in apply(app).changes] == ["repair"]
    assert [change.key["ID"] for _, change in logged(app)] == [1]
    assert not apply(app).changes
