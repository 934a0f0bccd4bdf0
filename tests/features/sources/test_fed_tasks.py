"""Tasks that a source feeds, run in the test's own process: what their functions are given, and what is left."""

import pytest
from support.capture import listen, script
from support.draining import drain
from support.feeding import subscribe
from support.recorded import capture, change, inserts, waiting, when
from support.sql import execute, one, rows

from fbtasks import EnqueueError, TaskDefinitionError
from fbtasks.features.sources import run as fed_runner
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied

ALL = {"insert": True, "update": True, "delete": True}


@pytest.fixture
def heard():
    return []


def feed(app, function, *, ordering="key", most=100, number=1, kind="change", **options):
    """Defines the task "fed" for *function*, and makes its subscription."""
    define = (
        app.on_change("T", name="fed", **ALL, **options)
        if kind == "change"
        else app.on_event("paid", name="fed", **options)
    )
    task = define(function)
    stops = int(task.subscription.delivery.stop_on_failure)
    subscribe(app, "fed", id=number, ordering=ordering, most=most, stops=stops)
    return task


def history(app):
    """The failed and cancelled tasks: their state, tries, error, and the numbers of the rows in their payloads."""
    found = rows(app, "SELECT STATE, TRY_COUNT, ERROR_TYPE, PAYLOAD FROM QUEUE_HISTORY ORDER BY ID")
    return [(state, tries, kind, payload.count(b'"i":')) for state, tries, kind, payload in found]


def test_a_function_is_called_for_each_change_in_order(app, heard):
    told = []
    feed(app, heard.append, on_success=lambda request, value: told.append((len(request.args), value)))
    capture(app, [*inserts(3), change("U", 2, old={"N": 1}, new={"N": 2}), change("D", 2, old={"N": 2})])
    drain(app)
    assert [each.id for each in heard if each.key == {"ID": 1}] == [1, 2, 3]
    last = heard[-1] if heard[-1].op == "delete" else next(each for each in heard if each.op == "delete")
    assert (last.key, last.old, last.new) == ({"ID": 2}, {"ID": 2, "N": 2}, None)
    assert (last.user, last.time, last.transaction, last.count) == ("ANN", when(), 7, 1)
    assert sorted(told) == [(2, None), (3, None)]  # once for each run
    assert waiting(app) == (0, 0, 0, 0)


def test_a_batch_is_one_call(app, heard):
    feed(app, heard.append, ordering="none", most=4, order=None, batch=4)
    capture(app, inserts(10, None), ordered=False)
    drain(app)
    assert [[each.new["N"] for each in batch] for batch in heard] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_coalesced_changes_are_one_call_for_each_key(app, heard):
    feed(app, heard.append, ordering="total", order="total", coalesce=True)
    capture(app, [change("I", 1), change("U", 2), change("D", 1), change("U", 2), change("I", 3)], ordered=False)
    drain(app)
    assert [(each.op, each.key["ID"], each.count) for each in heard] == [("update", 2, 2), ("insert", 3, 1)]


def test_the_request_is_that_of_each_call(app):
    seen = []

    def look(self, change):
        seen.append((self.request.args == (change,), self.request.retries))
        if change.new["N"] == 1 and not self.request.retries:
            raise ValueError

    feed(app, look, bind=True, autoretry_for=(ValueError,), default_retry_delay=0)
    capture(app, inserts(3))
    drain(app)
    assert seen == [(True, 0), (True, 0), (True, 1), (True, 0)]


def test_a_change_that_fails_is_tried_again_with_those_behind_it(app, heard):
    def flaky(change):
        heard.append(change.new["N"])
        if change.new["N"] == 2 and heard.count(2) < 3:
            raise ValueError

    feed(app, flaky, autoretry_for=(ValueError,), max_retries=2, default_retry_delay=0)
    capture(app, inserts(4))
    drain(app)
    assert heard == [0, 1, 2, 2, 2, 3]
    assert history(app) == []
    assert waiting(app) == (0, 0, 0, 0)


def test_a_change_whose_tries_are_used_up_fails_alone_and_the_rest_goes_on(app, heard):
    told = []

    def flaky(change):
        heard.append(change.new["N"])
        if change.new["N"] in (1, 3):
            raise ValueError

    feed(
        app, flaky, autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0,
        on_failure=lambda request, error: told.append((request.args[0].new["N"], type(error))),
    )  # fmt: skip
    capture(app, inserts(5))
    drain(app)
    assert heard == [0, 1, 1, 2, 3, 3, 4]
    assert history(app) == [(11, 2, "builtins.ValueError", 1)] * 2
    assert told == [(1, ValueError), (3, ValueError)]
    assert waiting(app) == (0, 0, 0, 0)


@pytest.mark.parametrize("then", ["FBTASKS_OPERATOR.RETRY", "FBTASKS_TASKS.DISMISS"])
def test_a_failure_halts_the_lane_until_it_is_settled(app, heard, then):
    fails = [True]

    def flaky(change):
        heard.append((change.key["ID"], change.new["N"]))
        if change.new["N"] == 1 and change.key["ID"] == 1 and fails[0]:
            raise ValueError

    feed(app, flaky, stop_on_failure=True)
    capture(app, inserts(3))
    drain(app)
    capture(app, [*inserts(1), *inserts(2, 2)])
    drain(app)
    assert heard == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert history(app) == [(11, 1, "builtins.ValueError", 1)]
    fails[0] = False
    (failed,) = rows(app, "SELECT ID FROM QUEUE_HISTORY")[0]
    execute(app, f"SELECT DONE FROM {then}(?)", failed)
    drain(app)
    assert heard[4:] == [(1, 1)] * (then == "FBTASKS_OPERATOR.RETRY") + [(1, 2), (1, 0)]
    assert waiting(app) == (0, 0, 0, 0)


def test_a_run_of_one_that_fails_halts_its_lane_as_well(app, heard):
    def fails(change):
        heard.append(change.id)
        raise ValueError

    feed(app, fails, stop_on_failure=True)
    capture(app, inserts(1))
    drain(app)
    capture(app, inserts(1))
    drain(app)
    assert heard == [1]


def test_what_could_not_be_recorded_or_read_fails_alone_and_without_a_call(app, heard):
    feed(app, heard.append, autoretry_for=(Exception,), ordering="total", order="total")
    capture(app, [*inserts(1), change("U", 5, error="division by zero"), {"k": {}}, *inserts(1)], ordered=False)
    drain(app)
    assert [each.id for each in heard] == [1, 4]
    assert history(app) == [(11, 1, f"fbtasks.errors.{kind}Error", 1) for kind in ("Capture", "Serialization")]
    message = one(app, "SELECT CAST(ERROR_MSG AS VARCHAR(1000)) FROM QUEUE_HISTORY ORDER BY ID ROWS 1")
    assert "'fed'" in message
    assert "ID=5" in message
    assert "division by zero" in message


def test_one_bad_row_does_not_fail_its_batch(app, heard):
    def ship(changes):
        heard.append([each.new["N"] for each in changes])
        if any(each.new["N"] == 1 for each in changes):
            raise ValueError

    feed(
        app, ship, ordering="total", most=10, order="total", batch=10, autoretry_for=(ValueError,), max_retries=2,
        default_retry_delay=0,
    )  # fmt: skip
    capture(app, [*inserts(3), change("U", 5, error="division by zero"), *inserts(4)[3:]], ordered=False)
    drain(app)
    assert heard == [[0, 1, 2, 3], [0], [1], [1], [2], [3]]
    assert sorted(kind for _, _, kind, _ in history(app)) == ["builtins.ValueError", "fbtasks.errors.CaptureError"]
    assert waiting(app) == (0, 0, 0, 0)


def test_the_rest_of_a_long_run_goes_back_behind_what_waited(app, heard, monkeypatch):
    monkeypatch.setattr(fed_runner, "TURN", 0.0)
    other = app.task(name="other")(lambda: heard.append("other"))

    def first_enqueues(change):
        heard.append(change.new["N"])
        if change.new["N"] == 0:
            other.delay()

    feed(app, first_enqueues)
    capture(app, inserts(4))
    drain(app)
    assert heard[0] == 0
    assert heard.index("other") < heard.index(3)
    assert [each for each in heard if each != "other"] == [0, 1, 2, 3]
    assert one(app, "SELECT SUM(RELEASED) + SUM(FAILED) FROM QUEUE_STAT") == 0
    assert waiting(app) == (0, 0, 0, 0)


def test_a_rest_that_is_too_long_for_its_row(app, heard, monkeypatch):
    monkeypatch.setattr(fed_runner, "TURN", 0.0)
    feed(app, lambda change: heard.append(len(change.new["TEXT"])))
    capture(app, [change(new={"TEXT": "x" * size}) for size in (1500, 1400, 1300, 5000, 10)])
    drain(app)
    assert heard == [1500, 1400, 1300, 5000, 10]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PAYLOAD") == 0


def test_a_revoked_run_ends_with_what_it_has_not_done(app, heard, monkeypatch):
    monkeypatch.setattr(fed_runner, "TURN", 0.0)

    def revokes(self, change):
        heard.append(change.new["N"])
        app.AsyncResult(self.request.id).revoke()

    feed(app, revokes, bind=True)
    capture(app, inserts(3))
    drain(app)
    assert heard == [0]
    assert [(state, count) for state, _, _, count in history(app)] == [(12, 2)]


@pytest.mark.parametrize("options", [{}, {"stop_on_failure": True}, {"ordering": "total", "order": "total"}], ids=str)
def test_a_revoked_run_in_which_a_change_fails_does_not_go_on_with_the_others(app, heard, options):
    def fails(self, change):
        heard.append(change.new["N"])
        if change.new["N"] == 1:
            app.AsyncResult(self.request.id).revoke()
            raise ValueError

    feed(app, fails, bind=True, **options)
    capture(app, inserts(4), ordered=not options.get("order"))
    drain(app)
    capture(app, inserts(1), ordered=not options.get("order"))
    drain(app)
    assert history(app) == [(11, 1, "builtins.ValueError", 1), (12, 0, None, 2)]
    failed, cancelled = (number for (number,) in rows(app, "SELECT ID FROM QUEUE_HISTORY ORDER BY ID"))
    if "stop_on_failure" in options:
        assert heard == [0, 1]
        execute(app, "SELECT DONE FROM FBTASKS_TASKS.DISMISS(?)", failed)
        drain(app)
    assert heard == [0, 1, 0]
    execute(app, "SELECT DONE FROM FBTASKS_OPERATOR.RETRY(?)", cancelled)
    drain(app)
    assert heard == [0, 1, 0, 2, 3]
    assert waiting(app) == (0, 0, 0, 0)


def test_a_payload_that_no_source_has_written_fails_as_a_whole(app, heard):
    feed(app, heard.append)
    for args, kwargs in (("[1, 2]", "{}"), ("[]", '{"a": 1}')):
        execute(app, "EXECUTE PROCEDURE FBTASKS.ENQUEUE('fed', ?, ?)", args, kwargs)
    drain(app)
    assert heard == []
    assert {kind for _, _, kind, _ in history(app)} == {"fbtasks.errors.SerializationError"}


def test_a_name_is_as_long_as_a_silenced_transaction_has_room_for(app, heard):
    def effect(self, change):
        heard.append(change.id)

    options = {"bind": True, "transactional": True, "insert": True}
    for name in ("n" * 254 + "ä", "ä" * 128):
        with pytest.raises(TaskDefinitionError, match=r"takes 256 bytes in UTF-8, and a task of on_change has room"):
            app.on_change("T", name=name, **options)(effect)
    longest = "n" + "ä" * 127
    app.on_change("T", name=longest, **options)(effect)
    subscribe(app, longest)
    capture(app, inserts(1))
    drain(app)
    assert heard == [1]
    assert history(app) == []


def test_a_generator_is_a_failure(app):
    feed(app, lambda change: (each for each in [change]))
    capture(app, inserts(1))
    drain(app)
    assert history(app) == [(11, 1, "fbtasks.errors.SerializationError", 1)]


def test_a_fed_task_is_not_enqueued_and_can_be_called(app, heard):
    task = app.on_change("ORDERS", insert=True, name="paid")(heard.append)
    mail = app.on_event("order.paid", name="mail")(heard.append)
    for enqueue, said in (
        (lambda: task.delay(1), "changes of the table 'ORDERS'"),
        (lambda: mail.delay_many([(1,)]), "the event 'order.paid'"),
        (lambda: app.send_task("paid", (1,)), "changes of the table 'ORDERS'"),
    ):
        with pytest.raises(EnqueueError, match=said):
            enqueue()
        with eager(app), pytest.raises(EnqueueError, match=said):
            enqueue()
    task("a change")
    assert heard == ["a change"]


def table(app):
    script(
        app,
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER)",
        "CREATE TABLE EFFECT (N INTEGER NOT NULL PRIMARY KEY)",
    )


def effects(app):
    return [number for (number,) in rows(app, "SELECT N FROM EFFECT ORDER BY N")]


def put(self, number):
    with self.connection.cursor() as cursor:
        cursor.execute("INSERT INTO EFFECT VALUES (?)", (number,))


@pytest.mark.usefixtures("url")
def test_a_transactional_run_keeps_what_was_done_before_a_failure(app, heard):
    table(app)
    told = []

    def effect(self, change):
        put(self, change.new["N"])
        heard.append((change.new["N"], effects(app)))
        if change.new["N"] == 2:
            raise ValueError

    feed(
        app, effect, bind=True, transactional=True, autoretry_for=(ValueError,), max_retries=1, default_retry_delay=0,
        on_failure=lambda request, error: told.append((request.args[0].new["N"], request.connection)),
    )  # fmt: skip
    capture(app, inserts(5))
    drain(app)
    # What a run has done is seen when it has ended.
    assert heard == [(0, []), (1, []), (2, []), (2, [0, 1]), (3, [0, 1]), (4, [0, 1])]
    assert effects(app) == [0, 1, 3, 4]
    assert history(app) == [(11, 2, "builtins.ValueError", 1)]
    assert told == [(2, None)]
    assert waiting(app) == (0, 0, 0, 0)


@pytest.mark.usefixtures("url")
def test_the_rest_of_a_long_transactional_run_follows_in_another_transaction(app, heard, monkeypatch):
    monkeypatch.setattr(fed_runner, "TURN", 0.0)
    table(app)

    def effect(self, change):
        put(self, change.new["N"])
        heard.append(effects(app))

    feed(app, effect, bind=True, transactional=True)
    capture(app, inserts(3))
    drain(app)
    assert heard == [[], [0], [0, 1]]
    assert effects(app) == [0, 1, 2]
    assert waiting(app) == (0, 0, 0, 0)


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize(
    ("end", "left", "failed"),
    [
        (lambda c: c.commit(), [0, 2], 1),  # refused: the call alone has failed
        (lambda c: c.execute_immediate("COMMIT"), [0, 1], 3),
        (lambda c: c.close(), [], 3),
    ],
    ids=["commit", "COMMIT", "close"],
)
def test_a_transactional_run_fails_as_a_whole_when_a_call_has_ended_its_transaction(app, end, left, failed):
    table(app)

    def effect(self, change):
        put(self, change.new["N"])
        if change.new["N"] == 1:
            end(self.connection)

    feed(app, effect, bind=True, transactional=True, autoretry_for=(Exception,))
    capture(app, inserts(3))
    drain(app)
    assert effects(app) == left
    assert history(app) == [(11, 1, "fbtasks.errors.TaskDefinitionError", failed)]


@pytest.mark.usefixtures("url")
def test_a_transactional_handler_does_not_hear_its_own_changes_but_others_do(app, heard):
    table(app)

    def touches(self, change):
        heard.append(("fed", change.key["ID"]))
        with self.connection.cursor() as cursor:
            cursor.execute("UPDATE T SET N = N + 1 WHERE ID = ?", (change.key["ID"],))
        if change.key["ID"] == 2:
            raise ValueError

    feed(app, touches, bind=True, transactional=True, ordering="total", order="total")
    app.on_change("T", update=True, name="other", order="total")(
        lambda change: heard.append(("other", change.key["ID"]))
    )
    subscribe(app, "other", id=2, ordering="total")
    listen(app, "T", number=1, task="fed", order="total", **ALL)
    listen(app, "T", number=2, task="other", order="total", update=True)
    for number in (1, 2, 3):
        execute(app, "INSERT INTO T VALUES (?, 0)", number)
    drain(app)
    assert [each for each in heard if each[0] == "fed"] == [("fed", 1), ("fed", 2), ("fed", 3)]
    assert [each for each in heard if each[0] == "other"] == [("other", 1), ("other", 3)]
    assert rows(app, "SELECT ID, N FROM T ORDER BY ID") == [(1, 1), (2, 0), (3, 1)]
    assert waiting(app) == (0, 0, 0, 0)


def test_a_limit_counts_what_a_source_feeds(app, heard):
    app.limit("slow", at_once=1)
    feed(app, heard.append, limits={"slow": None})
    capture(app, inserts(6, None))
    drain(app)  # the worker puts each before the gate, which lets it in when the one before it has ended
    assert sorted(each.key["ID"] for each in heard) == [0, 1, 2, 3, 4, 5]
    assert waiting(app) == (0, 0, 0, 0)
    assert rows(app, "SELECT * FROM QUEUE_GATE WHERE USED + WAITS <> 0") == rows(app, "SELECT * FROM QUEUE_HOLD") == []


def test_what_has_no_order_waits_for_its_limit_alone(app, heard):
    """The lane of its limit is not one of its subscription, where ends and retries would be noted."""
    app.limit("slow", at_once=1)

    def look(change):
        heard.extend(rows(app, "SELECT COUNT(*) FROM QUEUE_HOLD WHERE STEP = -1"))

    feed(app, look, order=None, limits={"slow": None}, ordering="none", most=1)
    capture(app, inserts(3, None), ordered=False)
    drain(app)
    assert set(heard) == {(0,)}
    assert waiting(app) == (0, 0, 0, 0)
