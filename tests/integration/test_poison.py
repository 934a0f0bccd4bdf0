"""Rows written by hand with nonsense in them: refused, or failed with a clear error, and never a worker that dies."""

import json
import math
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.draining import drain
from support.sql import execute, rows

from fbtasks import ConfigurationError, DatabaseError, EnqueueError, ResultTimeout, TaskDefinitionError
from fbtasks.queue import results, tasks
from fbtasks.states import State
from fbtasks.tasks.request import RetryRequested

pytestmark = pytest.mark.emptied

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def add(app):
    return app.task(name="add")(lambda a, b: a + b)


def good_ones_still_run(app, add):
    result = add.delay(1, 1)
    drain(app)
    assert result.get(timeout=5) == 2
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2") == [(0,)]
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_PROCESS WHERE NAME STARTING WITH 'drain'") == [(0,)]


def test_what_no_worker_could_handle_is_refused_by_the_database(app, add):
    add.delay(1, 2)
    for change in (
        "STATE = 7", "STATE = -1", "STATE = NULL", "TRY_COUNT = -1", "TRY_COUNT = 2147483647", "CRASH_COUNT = -1",
        "PRIORITY_RANK = -32768", "SUSPECT = 3", "NAME = NULL", "QUEUE = NULL", "START_TIME = NULL",
        "CONTENT_TYPE = NULL",
    ):  # fmt: skip
        with pytest.raises(Exception, match=r"CHECK|not null|NOT NULL|validation|overflow"):
            execute(app, f"UPDATE QUEUE_TASK SET {change}")
    good_ones_still_run(app, add)


UNREADABLE = [
    ("PAYLOAD = x'00'", "cannot be read"),
    ("PAYLOAD = x''", "payload is empty"),
    ("PAYLOAD = NULL", "payload is empty"),
    ("PAYLOAD = x'5B5B5D5D'", "not a call"),
    ("PAYLOAD = x'6E756C6C'", "not a call"),
    ("CONTENT_TYPE = ''", "not accepted"),
    ("CONTENT_TYPE = 'application/x-python-serialize'", "not accepted"),
]


def test_what_cannot_be_read_fails_with_a_clear_error(app, add):
    bad = add.delay_many([(1, 2)] * len(UNREADABLE))
    for result, (change, _) in zip(bad, UNREADABLE, strict=True):
        execute(app, f"UPDATE QUEUE_TASK SET {change} WHERE ID = {result.id}")
    good_ones_still_run(app, add)
    with app.database.session() as session:
        for result, (change, said) in zip(bad, UNREADABLE, strict=True):
            row = results.find(session, int(result.id))
            assert row.state is State.FAILED, change
            assert said in row.error_msg, change


LATE = "TIMESTAMP '9999-12-31 23:59:59.9999'"
ODD = [
    ("START_TIME = TIMESTAMP '0001-01-01'", State.SUCCEEDED),
    (f"START_TIME = {LATE}", State.SUCCEEDED),
    (f"STATE = 1, START_TIME = {LATE}", State.SCHEDULED),
    ("STATE = 1, START_TIME = TIMESTAMP '0001-01-01'", State.SUCCEEDED),
    (f"RAISE_TIME = {LATE}", State.SUCCEEDED),
    ("EXPIRE_TIME = TIMESTAMP '0001-01-01'", State.CANCELLED),
    (f"EXPIRE_TIME = {LATE}", State.SUCCEEDED),
    ("MAX_TRIES = -5", State.SUCCEEDED),
    ("SUSPECT = 2", State.SUCCEEDED),
    ("WORKER_ID = -1, CLAIM_ID = -1", State.SUCCEEDED),
    ("STATE = 2", State.SUCCEEDED),
    ("STATE = 2, WORKER_ID = 77, CLAIM_ID = 78, SUSPECT = 1", State.SUCCEEDED),
    ("STATE = 3", State.SUCCEEDED),
    ("HAS_TASK_ID = TRUE", State.SUCCEEDED),
    ("ERROR_MSG = 'earlier'", State.SUCCEEDED),
    ("NAME = ''", State.PARKED),
    ("NAME = ASCII_CHAR(10) || ASCII_CHAR(27) || '[31m;' || ASCII_CHAR(0)", State.PARKED),
    ("NAME = LPAD('', 255, '\N{PILE OF POO}')", State.PARKED),
    ("QUEUE = ''", State.READY),
]


def test_other_nonsense_runs_waits_or_is_parked(app, add):
    odd = add.delay_many([(1, 2)] * len(ODD))
    for result, (change, _) in zip(odd, ODD, strict=True):
        execute(app, f"UPDATE QUEUE_TASK SET {change} WHERE ID = {result.id}")
    good_ones_still_run(app, add)
    with app.database.session() as session:
        states = [results.find(session, int(result.id)).state for result in odd]
        results.queues(session)  # an operator can look at it
    assert [(change, state) for (change, _), state in zip(ODD, states, strict=True)] == ODD


@pytest.mark.parametrize("moment", ["0001-01-01", "9999-12-31 23:59:59.9999"])
def test_a_claim_goes_on_behind_the_first_and_the_last_moment_that_there_is(app, add, moment):
    numbers = [int(add.delay(n, n).id) for n in range(5)]
    execute(app, f"UPDATE QUEUE_TASK SET START_TIME = TIMESTAMP '{moment}'")
    found, ends = [], {}
    with app.database.session() as session:
        while claims := session.run(lambda t, ends=ends: tasks.claim(t, 1, "default", 2, ends=ends)):
            ends = {0: (claims[-1].start, claims[-1].id)}
            found += [claim.id for claim in claims]
    assert found == numbers


REGISTERED = [
    "HOST = ASCII_CHAR(10) || ';;' || ASCII_CHAR(13)", "PID = -1", "PID_START = -1", "QUEUES = ''",
    "HEARTBEAT_TIME = TIMESTAMP '9999-12-31', LEASE_UNTIL = TIMESTAMP '0001-01-01'",
    "HEARTBEAT_TIME = TIMESTAMP '0001-01-01', LEASE_UNTIL = TIMESTAMP '9999-12-31'",
    "HEARTBEAT_TIME = TIMESTAMP '0001-01-01', LEASE_UNTIL = TIMESTAMP '0001-01-01'",
    "ATTACHMENT_ID = NULL", "NAME = ''", "CONCURRENCY = -3",
]  # fmt: skip


def test_nonsense_in_the_register_hurts_nobody(app, add):
    drain(app)
    for number, change in enumerate(REGISTERED, 99):
        execute(
            app,
            "INSERT INTO QUEUE_PROCESS (ID, KIND, NAME, HOST, PID, PID_START, START_TIME, HEARTBEAT_TIME, LEASE_UNTIL,"
            f" QUEUES, POOL, CONCURRENCY, VERSION) VALUES ({number}, 'worker', 'w', 'h', 1, 1, QUEUE_NOW(),"
            " QUEUE_NOW(), QUEUE_NOW(), 'a', 'solo', 1, '0')",
        )
        execute(app, f"UPDATE QUEUE_PROCESS SET {change} WHERE ID = {number}")
    execute(app, "INSERT INTO QUEUE_CANCEL (ID, REQUEST_TIME, TERMINATE) VALUES (4711, TIMESTAMP '0001-01-01', 1)")
    good_ones_still_run(app, add)
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_CANCEL") == [(0,)]


def test_a_row_whose_id_no_sequence_gives_fails_with_a_clear_error(app, add):
    held = "STATE = 2, WORKER_ID = 77, CLAIM_ID = 78"
    numbers = {-(2**63): "STATE = 0", -1: "STATE = 2", 0: held}
    for result, (number, columns) in zip(add.delay_many([(1, 2)] * 3), numbers.items(), strict=True):
        execute(app, f"UPDATE QUEUE_TASK SET ID = {number}, {columns} WHERE ID = {result.id}")
    good_ones_still_run(app, add)
    with app.database.session() as session:
        for number in numbers:
            row = results.find(session, number)
            assert row.state is State.FAILED
            assert f"its ID, {number}, is not above 0" in row.error_msg


def test_random_payloads_never_kill_a_worker(app, add):
    @settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
    @given(
        st.lists(st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()), min_size=20, max_size=20)
    )
    def feed(payloads):
        for payload in payloads:
            number = add.delay(1, 2).id
            execute(app, "UPDATE QUEUE_TASK SET PAYLOAD = ? WHERE ID = ?", payload, int(number))
        good_ones_still_run(app, add)

    feed()
    assert {state for (state,) in rows(app, "SELECT DISTINCT STATE FROM QUEUE_HISTORY")} <= {10, 11}
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK") == [(0,)]


def test_long_names_are_refused(app):
    length = 256
    with pytest.raises(TaskDefinitionError, match="255"):
        app.send_task("x" * length)
    with pytest.raises(EnqueueError, match="task_id"):
        app.send_task("add", task_id="x" * length)
    with pytest.raises(TaskDefinitionError, match="255"):
        app.task(name="x" * length)(lambda: 1)
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK") == [(0,)]


class Unspeakable(Exception):
    def __str__(self):
        raise RuntimeError("no")


RAISED = [
    ValueError("nul \0 in it"), ValueError("\ud800 lone"), ValueError("x" * 10_000_000), Unspeakable("a"),
    type("E" * 300, (Exception,), {})("long"), type("Café'\n;", (Exception,), {})("odd"), SystemExit(3),
    GeneratorExit(), RecursionError("deep"), ExceptionGroup("g", [ValueError(1)]),
]  # fmt: skip


def test_whatever_is_raised_is_recorded(app, add):
    @app.task(name="bad", max_retries=0)
    def bad(number):
        raise RAISED[number]

    for result in bad.delay_many([(number,) for number in range(len(RAISED))]):
        drain(app)
        assert result.status == "FAILURE"
        assert "bad" in result.traceback
        with pytest.raises(Exception) as caught:  # noqa: PT011  # whichever type it can be rebuilt as
            result.get(timeout=1)
        assert not isinstance(caught.value, ResultTimeout)
    good_ones_still_run(app, add)


COPY = """
    INSERT INTO QUEUE_TASK (ID, HAS_TASK_ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, CONTENT_TYPE,
        PAYLOAD)
    SELECT ID, HAS_TASK_ID, NAME, QUEUE, 0, 0, RAISE_TIME, START_TIME, CONTENT_TYPE, PAYLOAD FROM QUEUE_HISTORY
"""


@pytest.mark.parametrize("fails", [False, True])
def test_a_finished_row_that_is_copied_back_runs_again_and_ends_as_a_failure(app, add, fails):
    broken = [fails]

    @app.task(name="again", max_retries=0)
    def again():
        if broken[0]:
            raise ValueError("not yet")
        return "done"

    result = again.delay()
    drain(app)
    broken[0] = not fails
    execute(app, COPY)
    good_ones_still_run(app, add)
    assert result.status == "FAILURE"
    (again, error), added = rows(app, "SELECT NAME, ERROR_TYPE FROM QUEUE_HISTORY ORDER BY ID")
    assert (again, added) == ("again", ("add", None))
    assert error == ("fbtasks.errors.DatabaseError" if fails else "builtins.ValueError")
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_TASK") == [(0,)]


@pytest.mark.usefixtures("url")  # a new file: a connection that has finished tasks may go on without the trigger
def test_a_task_of_which_the_database_takes_no_end_is_put_off(app, add, caplog):
    execute(app, "CREATE EXCEPTION EX_RULE 'a rule of this database'")
    execute(
        app,
        "CREATE TRIGGER RULE FOR QUEUE_HISTORY BEFORE INSERT AS BEGIN"
        " IF (NEW.NAME = 'bad') THEN EXCEPTION EX_RULE; END",
    )
    runs = []
    bad = app.task(name="bad")(lambda: runs.append(1)).delay()
    good_ones_still_run(app, add)
    assert runs == [1]
    assert "The database is away" not in caplog.text
    with app.database.session() as session:
        row = results.find(session, int(bad.id))
    assert row.state is State.SCHEDULED
    assert "a rule of this database" in row.error_msg
    assert row.start_time - row.raise_time > timedelta(minutes=50)


@pytest.mark.parametrize("countdown", [math.nan, -1, 1e300])
def test_a_retry_after_a_time_that_cannot_be_is_an_error(app, add, countdown):
    @app.task(bind=True, name="bad")
    def bad(self):
        self.retry(countdown=countdown)

    result = bad.delay()
    good_ones_still_run(app, add)
    with pytest.raises(
        ConfigurationError, match=rf"countdown {countdown}\b.* at most a hundred years".replace("+", r"\+")
    ):
        result.get(timeout=1)


def test_an_outcome_that_cannot_be_encoded_is_a_failure(app, add):
    def bad():
        raise RetryRequested(None, math.nan, None)

    result = app.task(name="bad")(bad).delay()
    good_ones_still_run(app, add)
    with pytest.raises(DatabaseError, match="could not be recorded: it has what cannot be written"):
        result.get(timeout=1)


def test_a_policy_that_waits_too_long_waits_for_a_hundred_years(app, add):
    def bad():
        raise ValueError

    long = {"retry_backoff": 1e300, "retry_backoff_max": 1e300, "retry_jitter": False}
    result = app.task(name="bad", autoretry_for=(ValueError,), **long)(bad).delay()
    good_ones_still_run(app, add)
    with app.database.session() as session:
        row = results.find(session, int(result.id))
    assert row.state is State.SCHEDULED
    assert (row.start_time - row.raise_time).days == pytest.approx(36_525, abs=1)
