"""The claim of messages: what it reads, and in which order messages come when it goes on where the last one ended."""

from contextlib import closing

import pytest
from support.publishing import published
from support.registering import register
from support.sql import execute, out_of_order, table_reads

from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import DONE, GIVEN_BACK, LowWaterMarks, Publication, QueueSpec, Taken

pytestmark = pytest.mark.emptied


@pytest.fixture
def session(app):
    app.migrate()
    with app.database.session() as session:
        yield session


def declared(session):
    return session.run(lambda t: messages.declare_queue(t, QueueSpec("q"), None)).id


@pytest.fixture
def consumer(app, session):
    return register(app, "consumer", lease=3600.0)


@pytest.fixture
def queue(session):
    return declared(session)


@pytest.fixture
def claim(session, consumer, queue):
    claims = iter(range(1, 10**6))

    def claim(most, after=None, settled=b""):
        number = next(claims)
        return session.run(lambda t: messages.claim(t, consumer, number, queue, most, settled, after))

    return claim


@pytest.fixture
def reads(session):
    """Rows of QUEUE_MSG that this connection has read by an index, so far."""
    before, _ = table_reads(session, "QUEUE_MSG")  # to empty the table reads all of it

    def count():
        in_order, by_index = table_reads(session, "QUEUE_MSG")
        assert in_order == before
        return by_index

    return count


def fill(session, count, priority=0):
    """All of one moment, which is the worst case."""
    session.run(lambda t: t.script(published(count, priority=priority)))


def put(session, text, priority=0):
    session.run(lambda t: messages.publish(t, [Publication("", "q", text, priority)]))


def texts(found):
    return [claimed.message for claimed in found]


@pytest.fixture
def old_snapshot(app, session, queue):
    """A transaction that keeps what a backlog of 3,000 messages of one moment was when it began."""
    fill(session, 3000)
    watcher = app.database.open()
    watcher.connection.begin(bytes((3, 2, 6)))  # isc_tpb_concurrency
    with watcher.connection.cursor() as cursor:
        cursor.execute("SELECT COUNT(*) FROM QUEUE_MSG").fetchone()
        yield
    watcher.connection.rollback()
    watcher.close()


@pytest.mark.usefixtures("url")
def test_a_claim_reads_in_the_order_of_its_index(app):
    """A range of it, for each of the procedure's own cursors and queries: no sort, and no scan of the table."""
    app.migrate()

    def wrong_plans():
        with closing(app.database.open()) as session:
            consumer, queue = register(app, "consumer", lease=3600.0), declared(session)
            session.run(lambda t: messages.claim(t, consumer, 1, queue, 5, b""))
            bounds = "lower bound: [23]/3, upper bound: 3/3"
            return out_of_order(session, "FBTASKS_CELERY.CLAIM", "QUEUE_MSG", "QUEUE_MSG_CLAIM", bounds)

    assert wrong_plans() == []
    execute(app, "DROP INDEX QUEUE_MSG_CLAIM")
    assert wrong_plans() != []


def test_what_was_claimed_before_is_not_read_again(old_snapshot, claim, reads):
    costs, mark = [], None
    for _ in range(50):
        before = reads()
        taken = claim(50, mark)
        costs.append(reads() - before)
        assert len(taken) == 50
        mark = taken.mark
    assert max(costs) <= 110, "each is found by its place in the index, and changed by its number"


def test_the_places_of_what_was_deleted_are_not_walked_again(old_snapshot, session, claim):
    def fetches():
        sql = """SELECT S.MON$PAGE_FETCHES FROM MON$IO_STATS S JOIN MON$ATTACHMENTS A ON A.MON$STAT_ID = S.MON$STAT_ID
            WHERE A.MON$ATTACHMENT_ID = CURRENT_CONNECTION"""
        with session.transaction() as transaction, transaction.driver.cursor() as counting:
            return counting.execute(sql).fetchone()[0]

    costs, mark, settled = [], None, b""
    for _ in range(50):
        before = fetches()
        taken = claim(50, mark, settled)
        costs.append(fetches() - before)
        mark, settled = taken.mark, b"".join(each.settle(DONE) for each in taken)
    assert sum(costs[-10:]) < 1.3 * sum(costs[2:12])


def test_a_mark_is_told_by_a_claim_that_took_all_it_was_to_take(session, claim):
    fill(session, 5)
    assert claim(3).mark is not None
    assert claim(3).mark is None


@pytest.mark.parametrize("most", [1, 3])
def test_with_marks_the_order_is_the_same(session, claim, most):
    for text, priority in ((b"low", 0), (b"mid", 4), (b"high", 9)):
        for number in range(7):
            put(session, b"%s%d" % (text, number), priority)
    expected = [b"%s%d" % (text, number) for text in (b"high", b"mid", b"low") for number in range(7)]
    found, mark = [], None
    while taken := claim(most, mark):
        found += texts(taken)
        mark = taken.mark
    assert found == expected


def test_what_is_better_or_later_than_the_mark_comes_at_once_and_the_rest_when_that_is_not_enough(session, claim):
    for text in (b"a", b"b", b"c", b"d"):
        put(session, text)
    first = claim(2)
    assert texts(first) == [b"a", b"b"]
    given_back = first[0].settle(GIVEN_BACK)
    put(session, b"better", 5)
    assert texts(claim(2, first.mark, given_back)) == [b"better", b"c"]
    put(session, b"later")
    assert texts(claim(9, first.mark)) == [b"d", b"later", b"a"]


def test_marks_are_kept_for_a_while_and_until_something_is_given_back(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("fbtasks.contrib.celery.store.messages.clock.monotonic", lambda: now[0])
    marks, taken = LowWaterMarks(), Taken()
    assert marks.get(1) is None
    taken.mark = 1
    marks.note(1, taken)
    now[0] += 0.6
    assert (marks.get(1), marks.get(2)) == (1, None)
    taken.mark = 2
    marks.note(1, taken)
    now[0] += 0.3
    assert marks.get(1) == 2
    now[0] += 0.2
    assert marks.get(1) is None, "a second after the first"
    marks.note(1, taken)
    assert marks.get(1) == 2
    taken.mark = None
    marks.note(1, taken)
    assert marks.get(1) is None
    taken.mark = 3
    marks.note(1, taken)
    marks.forget()
    assert marks.get(1) is None
