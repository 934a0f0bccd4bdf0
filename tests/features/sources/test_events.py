"""Events: raised from SQL and from Python, and what each handler is given."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from support.feeding import handle
from support.sql import execute, one, rows

from fbtasks.errors import ConfigurationError, EnqueueError, SerializationError
from fbtasks.features.sources import runs
from fbtasks.features.sources.kinds import events
from fbtasks.queue import tasks
from fbtasks.states import State

pytestmark = pytest.mark.emptied

MAIL, BOOK = "shop.mail", "books.book"


@pytest.fixture
def session(app):
    app.database.make_ready()
    with app.database.session() as session:
        yield session


def claim(session):
    return session.run(lambda t: tasks.claim(t, 1, "default", 10))


def read(session, claim):
    payload = claim.payload
    if payload is None:
        payload = session.run(lambda t: tasks.payload(t, claim.id))
    args, kwargs = json.loads(payload)
    assert kwargs == {}
    return [events.read(each) for each in args]


def test_each_handler_has_a_task_of_its_own(app, session):
    handle(app, "order.paid", MAIL, id=1)
    handle(app, "order.paid", BOOK, id=2)
    handle(app, "order.sent", "shop.other", id=3)
    app.raise_event("order.paid", {"id": 7, "text": 'a "quoted" \\ \n text ä'})
    found = claim(session)
    assert sorted(each.name for each in found) == [BOOK, MAIL]
    for each in found:
        (event,) = read(session, each)
        assert (event.name, event.data) == ("order.paid", {"id": 7, "text": 'a "quoted" \\ \n text ä'})
        assert (event.order_key, event.count) == (None, 1)
        assert abs(event.time - datetime.now(UTC)) < timedelta(minutes=1)


def test_it_is_raised_from_plain_sql(app, session):
    handle(app, "order.paid", MAIL)
    execute(app, """EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', '{"id": 1}')""")
    execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid')")
    found = [event.data for each in claim(session) for event in read(session, each)]
    assert found == [{"id": 1}, None]


def test_a_long_one_is_kept_beside_its_task(app, session):
    handle(app, "order.paid", MAIL, id=1)
    handle(app, "order.paid", BOOK, id=2, direct=0)
    app.raise_event("order.paid", "x" * 100_000)
    found = claim(session)
    assert len(found) == 2
    assert {read(session, each)[0].data for each in found} == {"x" * 100_000}


def test_one_with_a_start_is_scheduled(app, session):
    handle(app, "order.paid", MAIL, id=1)
    handle(app, "order.paid", BOOK, id=2, direct=0)
    app.raise_event("order.paid", start=60)
    app.raise_event("order.paid", start=datetime(2999, 1, 1, tzinfo=UTC))
    execute(
        app,
        "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', NULL, TIMESTAMP '2998-12-31 19:00:00 America/New_York')",
    )
    assert not claim(session)
    found = rows(app, "SELECT STATE, START_TIME FROM QUEUE_TASK ORDER BY START_TIME")
    assert [state for state, _ in found] == [State.SCHEDULED] * 6
    assert [start for _, start in found][2:] == [datetime(2999, 1, 1)] * 4


def test_those_of_one_order_key_are_handled_one_after_the_other(app, session):
    handle(app, "order.paid", MAIL)
    for number in range(3):
        for key in ("a", 'b"\\ö'):
            app.raise_event("order.paid", number, order_key=key)
    found = claim(session)
    runs = [read(session, each) for each in found]
    assert sorted((each[0].order_key, [event.data for event in each]) for each in runs) == [
        ("a", [0, 1, 2]), ('b"\\ö', [0, 1, 2]),
    ]  # fmt: skip
    app.raise_event("order.paid", 3, order_key="a")
    app.raise_event("order.paid", "without")
    assert [read(session, each)[0].data for each in claim(session)] == ["without"]


@pytest.mark.parametrize(
    "bad", ['{"id": 1', "", "1}, {}", '1},{"e":"order.paid","i":1,"u":"SYSDBA","d":"1"', "[" * 1800]
)
def test_what_is_no_json_fails_alone_and_stands_for_nothing_else(app, session, bad):
    handle(app, "order.paid", MAIL, ordering="total", direct=0)
    app.raise_event("order.paid", 1)
    execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', ?)", bad)
    app.raise_event("order.paid", 2)
    (found,) = claim(session)
    payload = found.payload or session.run(lambda t: tasks.payload(t, found.id))
    first, broken, second = runs.members(payload)
    assert (events.read(first).data, events.read(second).data) == (1, 2)
    with pytest.raises(SerializationError, match="an event cannot be read"):
        events.read(broken)


@pytest.mark.parametrize("name", ["", "order paid", 'a"b', "ä", "x" * 64, None, 7])
def test_a_bad_name_is_refused(app, name):
    with pytest.raises(ConfigurationError, match="must have 1 to 63 letters"):
        app.raise_event(name)
    if not isinstance(name, int):
        with pytest.raises(Exception, match="must have 1 to 63 letters"):
            execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT(?)", name)


def test_what_cannot_be_is_refused(app):
    with pytest.raises(EnqueueError, match="give start or order_key"):
        app.raise_event("order.paid", start=1, order_key="7")
    with pytest.raises(EnqueueError, match="order_key 7 must be a string"):
        app.raise_event("order.paid", order_key=7)
    with pytest.raises(EnqueueError, match="start 'soon' must be"):
        app.raise_event("order.paid", start="soon")
    with pytest.raises(SerializationError, match=r"event 'order\.paid': data\['a'\] is a set.*is always JSON\.$"):
        app.raise_event("order.paid", {"a": {1}})
    with pytest.raises(Exception, match="both a start time and an order key"):
        execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.paid', NULL, TIMESTAMP '2999-01-01 UTC', 'k')")
    assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE") == 0
