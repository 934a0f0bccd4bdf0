"""What workers write down for a dashboard, what becomes of it, and what is read of it."""

from contextlib import closing
from datetime import UTC, datetime, timedelta

import pytest
from support.draining import drain
from support.duties import Worker
from support.registering import register
from support.sql import NOW, execute, one, rows
from support.users import with_role

from fbtasks import FBTasks
from fbtasks import timing as clock
from fbtasks.errors import ConflictError
from fbtasks.features.web import duty, store
from fbtasks.features.web.duty import Depths, Statistics, Upkeep
from fbtasks.firebird.session import also_doing
from fbtasks.queue.operations import tasks
from fbtasks.tasks.call import RELEASED, Claim, Crashed, Failed, Finished, Reason, Requeue, Succeeded

pytestmark = pytest.mark.emptied

MINUTE = timedelta(minutes=1)


@pytest.fixture
def now(session):
    """The database's clock."""
    return session.read("now")[0][0].replace(tzinfo=UTC)


def read_series(session, now, **of):
    """The points of the last minutes that are not empty: succeeded, failed, cancelled, retried."""
    found = store.series(session, now - MINUTE, now + 2 * MINUTE, 60, **of)
    return [each[1:5] for each in found if any(each[1:5])]


def test_what_ends_is_counted_by_name_by_queue_and_for_all(app, session, now):
    tried = []

    def fails_first():
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("order 17 is not there")

    app.task(name="good")(lambda: 1).delay_many([()] * 3)
    app.task(name="good_too", queue="other")(lambda: 1).delay()
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0).delay()
    again = app.task(name="again", max_retries=1, default_retry_delay=0, autoretry_for=(Exception,))(
        fails_first
    ).delay()
    drain(app)
    assert read_series(session, now) == [(5, 1, 0, 1)]
    assert read_series(session, now, queue="other") == [(1, 0, 0, 0)]
    assert read_series(session, now, queue="default", name="again") == [(1, 0, 0, 1)]
    assert read_series(session, now, name="good") == [(3, 0, 0, 0)]
    found = {row.name: row for row in store.names(session, now - MINUTE, now + MINUTE)}
    assert [(row.succeeded, row.failed, row.retried) for name, row in sorted(found.items())] == [
        (1, 0, 1), (0, 1, 0), (3, 0, 0), (1, 0, 0),
    ]  # fmt: skip
    assert found["good"].run.p99 < 1
    assert [row.name for row in store.names(session, now - MINUTE, now + MINUTE, "other")] == ["good_too"]
    (first,) = store.tries(session, int(again.id))
    assert first[0:2] == (1, one(app, "SELECT WORKER FROM QUEUE_HISTORY WHERE NAME = 'again'"))
    assert first[4:7] == ("retry", "builtins.ValueError", "order 17 is not there")
    assert "in fails_first" in first.traceback
    assert now - MINUTE < first.start <= first.end < now + MINUTE
    assert store.tries(session, int(bad.id)) == []


def test_tries_are_in_the_order_of_their_times_whichever_worker_notes_them_first(session):
    now = clock.monotonic()
    first = store.Tried(1, 1, "retry", "one", now - 5, 1.0, "E", "m", "")
    for each in (first._replace(number=2, worker="two", ended=now), first):
        session.run(lambda t: store.put(t, {}, [each]))  # noqa: B023
    assert [(each.number, each.worker) for each in store.tries(session, 1)] == [(1, "one"), (2, "two")]


def test_an_app_may_have_that_off(url):
    with closing(FBTasks("off", url, statistics=False)) as app:
        app.task(name="good")(lambda: 1).delay()
        drain(app)
        assert one(app, "SELECT COUNT(*) FROM QUEUE_MINUTE") == 0
        made = app.features["web"].duties(Worker())
        assert [each.name for each in made] == ["joining and forgetting counters"]


class Watched(Worker):
    """Keeps what is to be called with outcomes."""

    def watch_outcomes(self, recorded):
        self.recorded = recorded


def test_waits_and_times_are_told_by_the_histograms_and_few_tries_are_noted_at_once(app, session, now, monkeypatch):
    monkeypatch.setattr(duty, "TRIES", 2)
    worker = Watched()
    statistics = Statistics(worker)
    start = int((now - timedelta(seconds=20)).timestamp() * 10_000)
    claims = [Claim(n, 1, "t", "default", start=start) for n in range(100)]
    worker.recorded([Finished(claim, Succeeded(), 0.02 if claim.id < 90 else 5.0) for claim in claims])
    outcomes = (
        Crashed("died", charged=True),
        Requeue(Reason.RETRY, 1.0, "ValueError: x", "builtins.ValueError", traceback="T" * 9000),
        Requeue(Reason.RETRY, 1.0, "y", "E"), Crashed("died", charged=True, limit=1), Failed("E", "m"), RELEASED,
        Requeue(Reason.SNOOZE, 1.0),
    )  # fmt: skip
    worker.recorded([Finished(claim, outcome) for claim, outcome in zip(claims, outcomes, strict=False)])
    statistics.finish(session)
    (point,) = (each for each in store.series(session, now - MINUTE, now + 2 * MINUTE, 60) if each.succeeded)
    assert point[1:5] == (100, 2, 0, 3)
    assert 0.001 < point.run.p50 < 0.03 < 3 < point.run.p95 < point.run.p99 <= 10
    assert 10 < point.wait.p50 < 30
    tries = [each for number in (0, 1, 2) for each in store.tries(session, number)]
    assert [(each.kind, each.error, len(each.traceback or "")) for each in tries] == [
        ("crash", "died", 0), ("retry", "x", 4000),
    ]  # fmt: skip
    assert statistics.due() == float("inf")


BUCKETS = ", ".join(f"{kind}_{n}" for kind in ("RUN", "WAIT") for n in range(12))
ROW = (
    "INSERT INTO QUEUE_MINUTE (SPAN, AT_TIME, QUEUE, NAME, NAME_HASH, WRITER, SUCCEEDED, FAILED, CANCELLED, RETRIED,"
    f" ELAPSED_MS, WAITED_MS, {BUCKETS}) VALUES ({{span}}, {{time}}, '', '', CRYPT_HASH('' USING SHA256), {{writer}},"
    f" 1, 0, 0, 2, 5, 7, {', '.join(str(int(n == 4)) for n in range(24))})"
)
DEPTH = (
    "INSERT INTO QUEUE_DEPTH (SPAN, AT_TIME, QUEUE, WRITER, READY, SCHEDULED, HELD, RUNNING, BUSY, SLOTS)"
    " VALUES (60, {time}, '', {writer}, {writer}, 0, 0, 0, 1, 2)"
)


def put(app, sql, moment, **of):
    time = f"TIMESTAMP '{moment:%Y-%m-%d %H:%M:00}'"
    execute(app, sql.format(time=time, **of))


def test_what_is_old_is_joined_and_tells_the_same(app, session, now):
    hour = now.replace(minute=0, second=0, microsecond=0)
    minute = now.replace(second=0, microsecond=0)
    for n in range(40):  # each ten seconds of a minute, four hours ago and longer, and of the last minutes
        put(app, ROW, hour - timedelta(hours=5, minutes=n), span=10, writer=1)
        put(app, ROW, minute - timedelta(minutes=3, seconds=30 * n), span=10, writer=100 + n)
        put(app, ROW, hour - timedelta(days=3, minutes=10 * n), span=600, writer=1)
        put(app, DEPTH, hour - timedelta(hours=6, minutes=n), writer=n)
    before = [sum(each[1:5]) for each in store.series(session, now - timedelta(days=4), now, 3600)]
    points = store.series(session, now - timedelta(minutes=30), now, 60)
    upkeep = Upkeep()
    while upkeep(session):
        pass
    assert [sum(each[1:5]) for each in store.series(session, now - timedelta(days=4), now, 3600)] == before
    assert sum(before) == 3 * 40 * 3
    assert store.series(session, now - timedelta(minutes=30), now, 60) == points
    counts = dict(rows(app, "SELECT SPAN, COUNT(*) FROM QUEUE_MINUTE GROUP BY 1"))
    assert counts == {60: 21, 600: 5, 3600: 8}
    depths = store.backlog(session, hour - timedelta(hours=8), hour)
    assert [each.ready for each in depths] == [39, 30, 20, 10, 0]
    assert depths[0].time == hour - timedelta(hours=6, minutes=40)


def test_of_two_that_join_one_leaves_it_to_the_other(app, session, now):
    for n in range(4):
        put(app, ROW, now - timedelta(minutes=5), span=10, writer=n)
    with app.database.session() as other, other.transaction() as transaction:
        assert transaction.call("FBTASKS_WEB.FOLD", 10, 60, 90) == 4
        with pytest.raises(ConflictError):
            session.call("FBTASKS_WEB.FOLD", 10, 60, 90, attempts=1)
        assert Upkeep()(session) is False
    assert session.call("FBTASKS_WEB.FOLD", 10, 60, 90) == 0
    assert rows(app, "SELECT SPAN, SUCCEEDED, RUN_4, RETRIED FROM QUEUE_MINUTE") == [(60, 4, 4, 8)]


def test_what_was_kept_long_enough_goes(app, session, now, monkeypatch):
    for days in (59, 61):
        put(app, ROW, now - timedelta(days=days), span=3600, writer=1)
    for days in (181, 179):
        number = session.run(lambda t: store.note(t, None, "ann", "retry", "task 1", ""))
        execute(app, f"UPDATE QUEUE_AUDIT SET AT_TIME = DATEADD(-{days} DAY TO AT_TIME) WHERE ID = {number}")
    alive = int(app.task(name="t")(lambda: None).delay().id)
    tried = store.Tried(alive, 1, "retry", "w", 0.0, 0.0, "E", "m", "")
    session.run(lambda t: store.put(t, {}, [tried._replace(number=n) for n in (1, 2, 3)] + [tried._replace(task=99)]))
    execute(app, "UPDATE QUEUE_TRY SET END_TIME = DATEADD(-8 DAY TO END_TIME) WHERE TRY_NO = 1 AND TASK_ID <> 99")
    upkeep = Upkeep()
    upkeep(session)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_MINUTE") == 1
    assert [each.id for each in store.audit(session)] == [number]
    assert [each.number for each in store.tries(session, alive)] == [2, 3]
    assert store.tries(session, 99) == []
    one(app, "SELECT GEN_ID(QUEUE_TRY_SEQ, 99998) FROM RDB$DATABASE")  # the 100,000th but one is the third
    monkeypatch.setattr(duty, "READS", 1)
    for _ in range(4):
        upkeep(session)
    assert [each.number for each in store.tries(session, alive)] == [3]


def test_one_worker_notes_the_depths_of_a_minute_for_all(app, session, now):
    app.migrate()
    register(app, queues=["served", "default"], concurrency=4)
    task = app.task(name="t")(lambda: None)
    task.delay_many([()] * 3)
    task.apply_async(countdown=3600, queue="later")
    depths = Depths()
    depths(session)
    execute(app, f"UPDATE QUEUE_DEPTH SET AT_TIME = {NOW}")  # the minute may end meanwhile
    Depths()(session)
    found = {queue: store.backlog(session, now - MINUTE, now + MINUTE, queue) for queue in (None, "default", "served")}
    assert {queue: [each[1:] for each in some] for queue, some in found.items()} == {
        None: [(3, 1, 0, 0, 0, 4)],
        "default": [(3, 0, 0, 0, 0, 4)],
        "served": [(0, 0, 0, 0, 0, 4)],
    }
    execute(app, f"UPDATE QUEUE_DEPTH SET AT_TIME = DATEADD(-1 MINUTE TO {NOW})")
    depths._next = 0.0
    depths(session)
    assert len(store.backlog(session, now - 3 * MINUTE, now + MINUTE)) == 2


def test_versions_of_workers_are_noted_when_they_change(app, session, now):
    app.migrate()
    old = register(app, name="old", queues=["mail"], version="1.0")
    note = Depths()

    def versions(queue=None):
        note._next = 0.0
        execute(app, "DELETE FROM QUEUE_DEPTH")
        note(session)
        return [each.versions for each in store.versions(session, queue)]

    assert versions() == versions("mail") == ["1.0"]
    register(app, name="new", queues=["mail", "later"], version="1.1")
    assert versions("mail") == versions() == ["1.0, 1.1", "1.0"]
    assert versions("later") == ["1.1"]
    execute(app, "DELETE FROM QUEUE_PROCESS WHERE ID = ?", old)
    assert versions("mail") == ["1.1", "1.0, 1.1", "1.0"]
    execute(app, "DELETE FROM QUEUE_PROCESS")
    assert versions("mail") == ["1.1", "1.0, 1.1", "1.0"]
    execute(app, "UPDATE QUEUE_VERSION SET AT_TIME = DATEADD(-61 DAY TO AT_TIME) WHERE VERSIONS <> '1.1'")
    Upkeep()(session)
    assert versions("mail") == ["1.1"]


def test_a_failure_has_the_version_of_its_worker_or_those_of_its_queue_then(app, session):
    @app.task(name="t", max_retries=0)
    def fails(number):
        raise ValueError(f"no {number}")

    fails.delay(1)
    drain(app)
    put = f"INSERT INTO QUEUE_VERSION VALUES ('default', DATEADD(? MINUTE TO {NOW}), 1, ?)"
    for minutes, version in ((-2, "1.0"), (-1, "1.1"), (1, "1.2")):
        execute(app, put, minutes, version)
    execute(app, "UPDATE QUEUE_HISTORY SET WORKER = 'here'")

    def versions():
        (group,) = store.failure_groups(session, str).rows
        return group.versions

    assert versions() == ("1.1", "1.1")
    execute(app, f"UPDATE QUEUE_HISTORY SET FINISH_TIME = DATEADD(-1 HOUR TO {NOW})")
    assert versions() == (None, None)
    register(app, name="here", version="1.2")
    fails.delay(2)
    drain(app)
    execute(app, "UPDATE QUEUE_HISTORY SET WORKER = 'here'")
    assert versions() == (None, "1.2")


def test_failures_with_one_cause_are_one_group(app, session):
    def fails(number):
        if number < 3:
            raise ValueError(
                f"no order {number} of 'customer {number}' in 7f3e1b2a-1111-2222-3333-4444444444{number:02}"
            )
        raise KeyError(number)

    task = app.task(name="fails", max_retries=0)(fails)
    app.task(name="other", max_retries=0)(fails).delay(1)
    ids = [int(each.id) for each in task.delay_many([(n,) for n in range(5)])]
    drain(app)
    groups = store.failure_groups(session, str)
    assert (groups.looked_at, [(each.name, each.count) for each in groups.rows]) == (
        6, [("fails", 3), ("fails", 2), ("other", 1)],
    )  # fmt: skip
    first, second, _ = groups.rows
    assert first.message == "no order # of '...' in #"
    assert (first.error_type, second.error_type) == ("builtins.ValueError", "builtins.KeyError")
    assert sorted(first.ids) == ids[:3]
    assert groups.until <= first.first <= first.last
    assert store.failure_groups(session, str, name="other").rows[0].key not in (first.key, second.key)
    assert store.failure_groups(session, str, most=1).looked_at == 1
    assert sorted(store.group_ids(session, str, first.key, 10)) == ids[:3]
    assert len(store.group_ids(session, str, first.key, 2)) == 2


@pytest.mark.parametrize(
    ("messages", "normalised"),
    [
        (["order 4711 took 30.25 s", "order 12 took 31 s"], "order # took # s"),
        (["mailbox ann.berg+x@example.com is full", "mailbox bob@mail.example.org is full"], "mailbox # is full"),
        (
            ["no 1c9a3bfe-11d2-4b6e-9a51-0242ac120002 at 0x7f3e1b2a", "no DEADBEEF-11d2-4b6e-9a51-0242ac120002 at 0x1"],
            "no # at #",
        ),
        (["token 01ARZ3NDEKTSV4RRFFQ69G5FAV of a1b2c3d4e", "token sk9aB3dE5fG7hJ1kL3 of 1234567f"], "token # of #"),
        (
            [
                "[Errno 2] No such file or directory: '/srv/in/ann/prices.csv'",
                "[Errno 2] No such file or directory: 'x y'",
            ],
            "[Errno #] No such file or directory: '...'",
        ),
        (["cannot read /srv/in/ann/prices.csv: empty", r"cannot read C:\in\bob\a.csv: empty"], "cannot read #: empty"),
        (["404 for url: https://api.example.com/orders/ann?x=1", "404 for url: http://10.0.0.7:80/"], "# for url: #"),
        (
            ["refused: state='open', who=\"Ann B\"", "refused: state='shut', who=\"bob\""],
            "refused: state='...', who='...'",
        ),
        (["no customer 'ann'", "no customer 'bob'"], "no customer '...'"),
        (['violation of UNIQUE KEY constraint "ORDERS_PK"'], 'violation of UNIQUE KEY constraint "ORDERS_PK"'),
        (
            ["can't decide and/or don't know text/html of Bob's facade"],
            "can't decide and/or don't know text/html of Bob's facade",
        ),
    ],
)
def test_what_differs_between_messages_of_one_failure(messages, normalised):
    assert {store.normalised(each, "builtins.ValueError") for each in messages} == {normalised}


@pytest.mark.parametrize(
    ("error", "message"), [(AttributeError, "'NoneType' object has no attribute 'price'"), (KeyError, "'customer'")]
)
def test_names_in_a_program_tell_failures_apart(error, message):
    assert store.normalised(message, f"builtins.{error.__name__}") == message


def test_the_audit_has_one_line_for_an_operation_however_often_it_is_tried(app, session):
    failed = app.task(name="fails", max_retries=0)(lambda: 1 / 0).delay()
    drain(app)
    written = [None]

    def note(transaction, done=True):
        written.append(store.note(transaction, written[-1], "ann", "retry", f"task {failed.id}", "x" * 50_000))
        assert done
        if len(written) == 2:
            raise ConflictError("once more")

    with also_doing(note):
        tasks.retry(app.database, [failed.id])
    session.run(note)  # of another transaction of it
    assert written[-1] == written[-2]
    (line,) = store.audit(session)
    assert (line.id, line.who, line.action, line.what) == (written[-1], "ann", "retry", f"task {failed.id}")
    assert len(line.said) == 50_000
    session.run(lambda t: store.note(t, None, "bob", "pause", "queue mail", ""))
    assert [each.who for each in store.audit(session)] == ["bob", "ann"]
    assert [each.who for each in store.audit(session, most=1)] == ["bob"]
    assert [each.who for each in store.audit(session, before=store.audit(session)[0].id)] == ["ann"]


@pytest.mark.usefixtures("url")
def test_nobody_rewrites_or_erases_the_audit(app, session):
    lines = [session.run(lambda t: store.note(t, None, "ann", "discard", "task 1", "x")) for _ in range(2)]
    before = store.audit(session)
    assert {line.login for line in before} == {one(app, "SELECT CURRENT_USER FROM RDB$DATABASE").strip()}
    logins = {}
    for role, routine, *params in (
        ("operator", "FBTASKS_WEB_ADMIN.NOTE", lines[0], "bob", "look", "nothing", ""),
        ("operator", "FBTASKS_WEB_ADMIN.NOTE", lines[1] + 1, "ann", "look", "nothing", ""),  # the next one of others
        ("worker", "FBTASKS_WEB.FORGET", 100_000),
    ):
        with with_role(app, role) as url, closing(FBTasks("other", url)) as other:
            logins[role] = other.settings.url.user
            other.database.use(lambda session, call=(routine, *params): session.call(*call))
    forged, *rest = store.audit(session)
    assert rest == before
    assert (forged.who, forged.login) == ("ann", logins["operator"])
    assert session.run(lambda t: store.note(t, None, "ann", "purge", "queue a", "")) not in [*lines, forged.id]


@pytest.mark.parametrize(
    ("buckets", "told"),
    [
        ([0] * 12, None),
        ([10] + [0] * 11, (0.0017, 0.0029, 0.003)),
        ([0] * 11 + [1], (1470, 3292, 3536)),
        ([50, 0, 0, 0, 0, 50] + [0] * 6, (0.003, 0.89, 0.98)),
    ],
)
def test_percentiles_lie_within_their_buckets(buckets, told):
    found = store.percentiles(buckets)
    assert found == (told and pytest.approx(told, rel=0.05))


def test_a_series_has_a_point_for_each_span_as_long_as_rows_are(session, now):
    end = now.replace(second=0, microsecond=0)

    def spans(**ago):
        found = store.series(session, end - timedelta(**ago), end, 60)
        return len(found), (found[1].time - found[0].time).total_seconds()

    assert spans(hours=1) == (60, 60)
    assert spans(hours=24) == (pytest.approx(144, abs=1), 600)
    assert spans(days=50) == (pytest.approx(1200, abs=1), 3600)
    assert spans(days=5000)[0] <= 1500
    assert store.series(session, datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 2, tzinfo=UTC), 60)[0] == (
        datetime(2020, 1, 1, tzinfo=UTC), 0, 0, 0, 0, None, None,
    )  # fmt: skip
