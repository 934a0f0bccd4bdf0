"""Rows that another transaction holds, leases of different lengths: what is taken back, and from which worker."""

from contextlib import contextmanager
from functools import partial

import kombu
import pytest
from depth.counter import Counter
from support.registering import register
from support.sql import execute, held, one, rows

from fbtasks import kombu as transport
from fbtasks.contrib.celery.transport.process import process_for
from fbtasks.errors import ConflictError
from fbtasks.firebird.session import UPDATE
from fbtasks.queue import tasks
from fbtasks.queue.register import processes
from fbtasks.tasks.call import Failed, Finished, Stale
from fbtasks.url import DatabaseURL

LONG = 1e6
GONE = 987654321
"""The number of a connection that there is not."""


def run(app, work):
    return app.database.use(lambda session: session.run(work))


def a_worker(app, lease=30.0, silence=0.0):
    """One whose connection is gone."""
    number = register(app, host="elsewhere", lease=lease)
    aged = f"DATEADD(-{int(silence * 1000)} MILLISECOND TO HEARTBEAT_TIME)"
    execute(
        app,
        f"UPDATE QUEUE_PROCESS SET ATTACHMENT_ID = {GONE}, HEARTBEAT_TIME = {aged},"
        f" LEASE_UNTIL = DATEADD({int(lease * 1000)} MILLISECOND TO {aged}) WHERE ID = {number}",
    )
    return number


@pytest.fixture
def up_for_an_hour(app):
    """As seen by what asks since when there have been connections: this one, which stays."""
    app.migrate()
    with app.connect() as connection:
        yield connection


def test_a_worker_has_the_grace_of_its_own_lease(app, wait_for, up_for_an_hour):
    def dead(number):
        return run(app, lambda t: processes.rescue(t, number, gone=False, awake=LONG, crash_limit=3)).why

    patient, hasty = a_worker(app, lease=300.0), a_worker(app, lease=3.0)
    assert wait_for(lambda: dead(hasty), 3) == "its connection is gone"
    assert dead(patient) is None
    ours = a_worker(app, lease=3.0)

    def neighbours():
        reply = run(app, lambda t: processes.heartbeat(t, "worker", ours, lease=3.0))
        return {neighbour.process_id: neighbour.lease for neighbour in reply.neighbours}

    hasty = a_worker(app, lease=3.0)
    assert neighbours() == {patient: 300.0, hasty: 3.0}


def test_a_task_that_was_held_with_others_is_not_charged_when_it_is_taken_back_later(app):
    number = a_worker(app)
    begun, other = app.send_task("t"), app.send_task("t")
    assert len(run(app, lambda t: tasks.claim(t, number, "default", 2))) == 2
    execute(app, f"UPDATE QUEUE_TASK SET SUSPECT = 1 WHERE ID = {begun.id}")

    def rescue():
        return run(app, lambda t: processes.rescue(t, number, gone=True, awake=LONG, crash_limit=3))

    with held(app, "QUEUE_TASK", begun.id):
        assert rescue() == (1, "its process is gone")
    assert (begun.status, other.status) == ("STARTED", "PENDING")
    assert rescue() == (1, "its process is gone")
    assert rows(app, "SELECT CRASH_COUNT, SUSPECT FROM QUEUE_TASK ORDER BY ID") == [(0, 2), (0, 1)]
    assert rows(app, "SELECT ID FROM QUEUE_PROCESS") == []


@pytest.fixture
def last_crash(app):
    """A suspect of a worker that is thought dead: one more crash fails it. Its claim, and the rescue."""
    number = a_worker(app)
    app.send_task("t")
    (claim,) = run(app, lambda t: tasks.claim(t, number, "default", 1))
    execute(app, "UPDATE QUEUE_TASK SET SUSPECT = 1, CRASH_COUNT = 2")
    return claim, lambda t: processes.rescue(t, number, gone=True, awake=LONG, crash_limit=3)


def fails(claim):
    return lambda t: tasks.finish(t, 1, 0, [Finished(claim, Failed("E", "m"), 0.0)])


def errors(app):
    return [error for (error,) in rows(app, "SELECT ERROR_TYPE FROM QUEUE_HISTORY")]


def test_a_failure_after_a_rescue_has_failed_its_task_finds_it_gone(app, last_crash):
    claim, rescue = last_crash
    with app.database.session() as session, app.database.session() as rescuer:
        with rescuer.transaction(UPDATE) as transaction:
            assert rescue(transaction) == (1, "its process is gone")
            with pytest.raises(ConflictError):  # the worker tries again
                session.run(fails(claim), attempts=1)
        assert session.run(fails(claim)) == [Stale(claim.id, 0)]
    assert errors(app) == ["fbtasks.errors.WorkerLost"]


def test_a_rescue_leaves_a_task_whose_failure_is_being_recorded(app, last_crash):
    claim, rescue = last_crash
    with app.database.session() as session:
        with session.transaction(UPDATE) as transaction:
            assert fails(claim)(transaction) == []
            assert run(app, rescue) == (0, "its process is gone")
        assert run(app, rescue) == (0, "its process is gone")
    assert errors(app) == ["E"]
    assert rows(app, "SELECT ID FROM QUEUE_PROCESS") == []


def test_of_two_that_fail_a_task_the_one_that_does_not_see_the_other_yet_finds_it_gone(app):
    """The other one commits while the statement runs that records the outcomes of two tasks."""
    first, second = app.send_task("t"), app.send_task("t")
    claims = run(app, lambda t: tasks.claim(t, 1, "default", 2))
    execute(
        app,
        f"CREATE TRIGGER MEANWHILE FOR QUEUE_HISTORY BEFORE INSERT AS BEGIN IF (NEW.ID = {first.id}) THEN "
        f"IN AUTONOMOUS TRANSACTION DO IF (EXISTS(SELECT 1 FROM QUEUE_TASK WHERE ID = {second.id})) THEN "
        f"EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE({second.id}, 11, NULL, 0, 'other', 'm', NULL, NULL, NULL); END",
    )
    items = [Finished(claim, Failed("E", "m"), 0.0) for claim in claims]
    assert run(app, lambda t: tasks.finish(t, 1, 0, items)) == [Stale(int(second.id), 0)]
    assert sorted(errors(app)) == ["E", "other"]


def test_any_of_several_queues(app):
    app.migrate()

    def ready(*queues):
        return app.database.use(lambda session: tasks.any_ready(session, queues))[0]

    assert not ready("a", "b", "c")
    app.send_task("t", queue="b")
    assert ready("a", "b", "c")
    assert ready("b")
    assert not ready("a", "bb", "c")
    assert len(run(app, lambda t: tasks.claim(t, 1, "b", 1))) == 1
    assert not ready("a", "b", "c")


@pytest.fixture
def broker(app, url):
    app.migrate()
    yield process_for(DatabaseURL.parse(url), lease=30.0, auto_migrate=None)
    transport.close_all()


QUEUE = kombu.Queue("q", kombu.Exchange(""), routing_key="q")


@contextmanager
def consuming(url, count):
    """The messages 0 to *count* - 1, which came."""
    with kombu.Connection(url) as connection:
        messages = []
        with connection.Consumer([QUEUE], callbacks=[lambda body, message: messages.append(message)]):
            for number in range(count):
                connection.Producer().publish(number, exchange="", routing_key="q")
            while len(messages) < count:
                connection.drain_events(timeout=5)
            yield messages


def test_a_settlement_that_is_held_up_holds_up_nothing_else(app, url, wait_for):
    with consuming(url, 3) as messages:
        first, *_ = (number for (number,) in rows(app, "SELECT ID FROM QUEUE_MSG ORDER BY ID"))
        beaten = "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS"
        with held(app, "QUEUE_MSG", first):
            for message in messages:
                message.ack()
            wait_for(lambda: len(rows(app, "SELECT ID FROM QUEUE_MSG")) == 1)
            for _ in range(3):
                before = one(app, beaten)
                wait_for(lambda b=before: one(app, beaten) != b, 6)
            with kombu.Connection(url) as connection:
                connection.Producer().publish("more", exchange="", routing_key="q")
                wait_for(lambda: QUEUE(connection.default_channel).get() is not None, 6)
        wait_for(lambda: first not in [number for (number,) in rows(app, "SELECT ID FROM QUEUE_MSG")])


def test_a_settlement_that_is_refused_holds_up_nothing_else(app, url, wait_for, caplog):
    app.migrate()
    execute(
        app,
        "CREATE TRIGGER NEVER FOR QUEUE_MSG BEFORE DELETE AS DECLARE N INTEGER; BEGIN "
        "IF (MOD(OLD.ID, 3) = 0) THEN N = CAST('never' AS INTEGER); END",
    )
    with consuming(url, 3) as messages:
        for message in messages:
            message.ack()
        wait_for(lambda: len(rows(app, "SELECT ID FROM QUEUE_MSG")) == 1)
        wait_for(lambda: "its settlement is refused: " in caplog.text)
        assert caplog.text.count("its settlement is refused: ") == 1


def test_a_consumer_whose_row_is_held_does_not_keep_others_from_being_rescued(app, broker, wait_for, up_for_an_hour):
    ours = broker.register()
    execute(
        app,
        "EXECUTE BLOCK AS DECLARE N INTEGER = 100001; BEGIN WHILE (N < 100003) DO BEGIN "
        "INSERT INTO QUEUE_PROCESS (ID, KIND, HOST, HOST_KEY, PID, PID_START, ATTACHMENT_ID, START_TIME, "
        "HEARTBEAT_TIME, LEASE_UNTIL) "
        f"SELECT :N, KIND, 'elsewhere', 1, 1, 1, {GONE}, START_TIME, HEARTBEAT_TIME, "
        f"DATEADD(3 SECOND TO HEARTBEAT_TIME) FROM QUEUE_PROCESS WHERE ID = {ours}; N = N + 1; END END",
    )

    def registered():
        return [number for (number,) in rows(app, "SELECT ID FROM QUEUE_PROCESS ORDER BY ID")]

    with held(app, "QUEUE_PROCESS", 100001):
        wait_for(lambda: registered() == [ours, 100001])
    wait_for(lambda: registered() == [ours])


def looked_after_by(app, number):
    reply = run(app, lambda t: processes.heartbeat(t, "worker", number, lease=30.0))
    return [neighbour.process_id for neighbour in reply.neighbours]


def test_each_process_is_looked_after_by_a_few_on_its_host_and_a_few_elsewhere(app):
    hosts = {host: [register(app, host=host) for _ in range(count)] for host, count in {"a": 6, "b": 4, "c": 1}.items()}
    a = hosts["a"]
    told = {number: looked_after_by(app, number) for numbers in hosts.values() for number in numbers}
    here = {number: [each for each in told[number] if each in a] for number in a}
    assert here == {a[at]: [a[(at + step) % 6] for step in (1, 2, 3)] for at in range(6)}
    assert set(told[hosts["b"][0]]) > set(hosts["b"][1:])
    for host, numbers in hosts.items():
        elsewhere = {each for other in hosts if other != host for number in hosts[other] for each in told[number]}
        assert elsewhere & set(numbers), f"nobody elsewhere looks after {host}"


def test_dead_ones_that_hold_locked_tasks_hide_none_of_the_others(app):
    first, *waiting, last = [register(app, host="a") for _ in range(6)]
    execute(app, f"UPDATE QUEUE_PROCESS SET PARTLY_RELEASED = 1 WHERE ID IN ({', '.join(map(str, waiting))})")
    assert looked_after_by(app, first) == [*waiting, last]


def test_a_heartbeat_reads_as_much_in_a_crowd_as_among_few(app, url):
    counter = Counter(url)
    try:
        with app.database.session() as session, counter.counting():

            def fetches(count):
                numbers = [register(app, host="a") for _ in range(count)]

                def beat():
                    for number in numbers[:8]:
                        session.run(partial(processes.heartbeat, kind="worker", process_id=number, lease=30.0))

                beat()
                return counter.of(beat).fetches / 8

            few, many = fetches(8), fetches(80)
            assert many < 1.2 * few
    finally:
        counter.close()
