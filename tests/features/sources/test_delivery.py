"""Options of ``on_change``, ``on_event`` and ``poll_table`` that have no effect together are refused by name."""

import pytest

from fbtasks import FBTasks
from fbtasks.errors import ConfigurationError, TaskDefinitionError


@pytest.fixture
def app():
    return FBTasks("shop", "firebird:///nosuch/queue.fdb")


def defined(app, kind, **options):
    """A task that a change, an event or a row feeds."""
    if kind == "change":
        return app.on_change("ORDERS", insert=True, name=kind, **options)(len)
    if kind == "event":
        return app.on_event("order.paid", name=kind, **options)(len)
    return app.poll_table("INBOX", name=kind, **options)(len)


@pytest.mark.parametrize("kind", ["change", "event"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"quiet": 2}, "quiet= and at_most= belong together"),
        ({"at_most": 2}, "quiet= and at_most= belong together"),
        ({"quiet": 2, "at_most": 30, "after": 1}, "give either after= or quiet= with at_most="),
        ({"quiet": 2, "at_most": 30, "order": "total"}, "quiet= waits for each key on its own, and needs order='key'"),
        ({"quiet": 2, "at_most": 30, "order": None}, "quiet= waits for each key on its own, and needs order='key'"),
        ({"quiet": 30, "at_most": 2}, "quiet=30 has no effect: .* at_most=2 .* or after=2 alone"),
        ({"quiet": 2, "at_most": 2}, "quiet=2 has no effect"),
        ({"coalesce": True, "batch": 1}, "batch=1 gives it one"),
        ({"coalesce": True, "order": None}, "give batch= as well, or order='key'"),
        ({"stop_on_failure": True, "order": None}, "needs order='key' or 'total'"),
        ({"serializer": "json"}, "serializer='json' has no effect: .* or give ignore_result=False"),
        ({"ordered": "id"}, "ordered= is for calls: .* such as order="),
        ({"unique": True}, "unique= is for calls"),
        ({"limits": {"sms": "id"}}, r"limits=\{'sms': ...\} has a key, .* Give \{'sms': None\}"),
        ({"expires": 5}, "expires=5 is for calls and for rows"),
    ],
)
def test_what_has_no_effect_together_is_refused(app, kind, options, said):
    with pytest.raises(TaskDefinitionError, match=said):
        defined(app, kind, **options)


@pytest.mark.parametrize("name", ["quiet", "at_most"])
def test_a_time_of_nothing_is_refused(app, name):
    with pytest.raises(ConfigurationError, match=f"{name} 0 must be a number of seconds above 0"):
        defined(app, "change", **{"quiet": 2, "at_most": 30, name: 0})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequence": "N", "order_by": "CREATED"}, r"order_by=\('CREATED',\) has no effect: .* by their numbers"),
        ({"key": "ID", "serializer": "json"}, "serializer='json' has no effect"),
    ],
)
def test_what_has_no_effect_on_rows_is_refused(app, options, said):
    with pytest.raises(TaskDefinitionError, match=said):
        defined(app, "poll", **options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("change", {"key": "CUSTOMER", "order": "total"}),  # what change.key has
        ("change", {"key": "CUSTOMER", "order": None}),
        ("change", {"key": "CUSTOMER", "order": "total", "coalesce": True}),
        ("change", {"order": None, "coalesce": True, "batch": 2}),
        ("change", {"order": None, "after": 2}),
        ("change", {"order": "total", "stop_on_failure": True, "batch": 10}),
        ("event", {"serializer": "json", "ignore_result": False}),
        ("event", {"quiet": 2, "at_most": 3, "coalesce": True}),
        ("poll", {"sequence": "N", "delete": True, "order_by": "CREATED", "error": "ERR"}),
        ("poll", {"key": "ID", "expires": 5, "serializer": "json", "ignore_result": False}),
    ],
)
def test_what_has_an_effect_is_taken(app, kind, options):
    assert defined(app, kind, **options).subscription.source.kind == kind


def test_the_shortest_quiet_time_is_one(app):
    """None at all would be the whole of at_most."""
    defined(app, "event", quiet=0.0001, at_most=30)
    (feed,) = app.features["sources"].feeds()
    assert (feed.values[7], feed.values[5]) == (1, 30_000)
