"""Where an order is kept, what is committed late is not overtaken by what began after its commit."""

import json
import random
from contextlib import ExitStack, closing

import pytest
from support.feeding import subscribe
from support.limbo import end_limbo, prepare
from support.sql import execute, one
from support.variants import slow

from fbtasks.firebird.session import INSERT, NO_AUTO_UNDO
from fbtasks.queue import tasks

pytestmark = pytest.mark.emptied

FAR = 1500
"""Numbers after which a look back begins further on."""


CHANGE = (
    "INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, DATA) "
    "VALUES (1, 0, NEXT VALUE FOR QUEUE_CHANGE_SEQ, QUEUE_NOW(), ?)"
)


class Changes:
    """A source in total order."""

    sequence = "QUEUE_CHANGE_SEQ"

    def __init__(self, app, session):
        self.app, self.session = app, session
        subscribe(app, "tests.handle", ordering="total")

    def write(self, connection, number, key):
        with closing(connection.cursor()) as cursor:
            cursor.execute(CHANGE, (json.dumps({"i": number}).encode(),))

    def read(self, claim):
        payload = claim.payload or self.session.run(lambda t: tasks.payload(t, claim.id))
        return [each["i"] for each in json.loads(payload)[0]]


class Calls:
    """Calls of a task that is ordered by one of its arguments."""

    sequence = "QUEUE_NOTE_SEQ"

    def __init__(self, app, session):
        self.app, self.session = app, session
        self.move = app.task(name="move", ordered="key")(lambda key, n: None)
        self.move.delay(0, -1)

    def write(self, connection, number, key):
        self.move.using(connection).delay(key, number)

    def read(self, claim):
        return [json.loads(claim.payload)[0][1]]


@pytest.fixture(params=[Changes, Calls])
def feed(request, app, session):
    return request.param(app, session)


of_changes = pytest.mark.parametrize("feed", [Changes], indirect=True)
"""What a source notes of transactions that have not ended; the lines of limits are read from the beginning."""


@pytest.fixture
def connections(app):
    with ExitStack() as stack:
        yield [stack.enter_context(app.connect()) for _ in range(4)]


@pytest.fixture
def claimed(feed, claim, end):
    """Claims as a worker does that has just looked from the start, and ends what it got, until nothing comes."""

    def claimed(*, from_start=False):
        found = []
        while claims := claim(from_start=from_start):
            for each in claims:
                found += feed.read(each)
            end(claims)
        return [number for number in found if number >= 0]

    claimed(from_start=True)
    return claimed


def pass_by(app, feed, count=FAR):
    execute(app, f"SELECT GEN_ID({feed.sequence}, {count}) FROM RDB$DATABASE")


def elders(app):
    return len(one(app, "SELECT MAX(ELDERS) FROM QUEUE_DISPATCH")) // 38


def back(app):
    return one(app, "SELECT MAX(BACK_ID) FROM QUEUE_DISPATCH")


def test_what_was_committed_before_another_one_was_written_comes_first(feed, connections, claimed):
    late, other, *_ = connections
    feed.write(late, 1, 1)
    feed.write(other, 2, 2)
    other.commit()
    assert claimed() == [2]
    feed.write(late, 3, 1)
    late.commit()
    feed.write(other, 4, 1)
    other.commit()
    assert claimed() == [1, 3, 4]


def test_however_long_its_transaction_takes(feed, app, connections, claimed):
    late, other, *_ = connections
    feed.write(late, 1, 1)
    seen, before = [], []
    for number in range(2, 8):
        pass_by(app, feed)
        feed.write(other, number, 2)
        other.commit()
        seen += claimed()
        before.append(back(app))
    assert seen == [*range(2, 8)]
    if isinstance(feed, Changes):
        assert before == sorted(before)
        assert before[-1] > before[0]
        assert elders(app) == 1
    late.commit()
    feed.write(other, 8, 1)
    other.commit()
    assert claimed() == [1, 8]
    assert elders(app) == 0


@of_changes
def test_one_that_is_rolled_back_is_forgotten(app, feed, connections, claimed):
    late, other, *_ = connections
    feed.write(late, 1, 1)
    pass_by(app, feed)
    for number in (2, 3):
        feed.write(other, number, 1)
        other.commit()
        assert claimed() == [number]
    assert elders(app) == 1
    late.rollback()
    feed.write(other, 4, 1)
    other.commit()
    assert claimed() == [4]
    assert elders(app) == 0


@of_changes
def test_dead_ones_are_none_that_may_still_come(app, feed, connections, claimed):
    """Of a transaction without undo the changes stay, until they are cleared away: it counts as dead, not as undone."""
    other, dead, *_ = connections
    before = []
    for number in range(1, 5):
        for _ in range(20):
            dead.begin(INSERT + NO_AUTO_UNDO)
            feed.write(dead, -1, 1)
            dead.rollback()
        pass_by(app, feed)
        feed.write(other, number, 2)
        other.commit()
        assert claimed() == [number]
        before.append(back(app))
    assert before == sorted(set(before))
    assert elders(app) == 0


@pytest.mark.usefixtures("url")
@pytest.mark.parametrize("when", ["before the first look back", "later"])
@pytest.mark.parametrize("how", ["alive", "in limbo"])
def test_what_was_prepared_before_another_one_was_written_comes_first(
    app, url, connections, session, claim, end, when, how
):
    feed = Changes(app, session)
    late, other, *_ = connections

    def claimed():
        return [number for each in claim(from_start=False) for number in feed.read(each)]

    def passes_by(number):
        pass_by(app, feed)
        feed.write(other, number, 1)
        other.commit()
        found = claim(from_start=False)
        end(found)
        assert [number for each in found for number in feed.read(each)] == [number]

    claim(from_start=True)
    if when == "later":
        passes_by(100)
    statement = CHANGE.replace("?", "'{\"i\": 1}'")
    if how == "alive":
        late.execute_immediate(statement)
        late.main_transaction._tra.prepare()
    else:
        prepare(url, statement)
    for number in (2, 3):
        passes_by(number)
    if how == "alive":
        late.commit()
    else:
        end_limbo(app, "commit")
    feed.write(other, 4, 1)
    other.commit()
    first = claim(from_start=False)
    end(first)
    seen = [number for each in first for number in feed.read(each)] + claimed()
    assert seen == [1, 4]


@of_changes
def test_with_more_transactions_than_can_be_noted_it_begins_where_it_began(app, feed, connections, claimed):
    late, other, old, _ = connections
    with closing(old.cursor()) as cursor:
        own = cursor.execute("SELECT CURRENT_TRANSACTION FROM RDB$DATABASE").fetchone()[0]
    execute(app, "UPDATE QUEUE_DISPATCH SET ELDERS = ?", f"{own:019}{0:019}" * 49)
    pass_by(app, feed)
    feed.write(other, 1, 2)
    other.commit()
    assert claimed() == [1]
    feed.write(late, 2, 1)
    pass_by(app, feed)
    feed.write(other, 3, 2)
    other.commit()
    assert claimed() == [3]
    assert elders(app) == 50
    pass_by(app, feed)
    late.commit()
    feed.write(other, 4, 1)
    other.commit()
    assert claimed() == [2, 4]


@of_changes
def test_a_restored_database_begins_anew(app, feed, connections, claimed):
    execute(app, "UPDATE QUEUE_DISPATCH SET BACK_ID = 1000000000, BACK_TX = 1000000000")
    feed.write(connections[0], 1, 1)
    connections[0].commit()
    assert claimed() == [1]
    assert one(app, "SELECT COUNT(*) FROM QUEUE_DISPATCH WHERE BACK_TX = 1000000000 AND BACK_ID <> 1000000000") == 0


@pytest.mark.parametrize("seed", [0, 1, *map(slow, range(2, 20))])
def test_at_random(app, feed, connections, claimed, seed):
    rng = random.Random(seed)
    number, step, seen = 0, 0, []
    open_writes = {n: [] for n in range(len(connections))}
    written, committed = {}, {}
    for step in range(400):
        which = rng.randrange(len(connections))
        connection, writes = connections[which], open_writes[which]
        match rng.choices(("write", "commit", "rollback", "far", "claim"), (10, 6, 1, 1, 4))[0]:
            case "write":
                number += 1
                feed.write(connection, number, key := rng.randrange(2))
                written[number] = step, key, which
                writes.append(number)
            case "commit" if writes:
                connection.commit()
                committed.update(dict.fromkeys(writes, step))
                writes.clear()
            case "rollback" if writes:
                connection.rollback()
                writes.clear()
            case "far":
                pass_by(app, feed, rng.choice((300, 1500)))
            case "claim":
                seen += claimed()
    for which, writes in open_writes.items():
        if writes:
            connections[which].commit()
        committed.update(dict.fromkeys(writes, step + 1))
    seen += claimed(from_start=True)
    assert sorted(seen) == sorted(committed)
    place = {each: at for at, each in enumerate(seen)}
    for first in committed:
        for second in committed:
            same = isinstance(feed, Changes) or written[first][1] == written[second][1]
            if same and committed[first] < written[second][0]:
                assert place[first] < place[second], (first, second)
            if same and first < second and committed[first] == committed[second]:  # of one transaction
                assert place[first] < place[second], (first, second)
