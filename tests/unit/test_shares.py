"""What ``-Q`` says, and how room is dealt by it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fbtasks import ConfigurationError
from fbtasks.queue.shares import Share, parse_shares, queue_in, share_text
from fbtasks.worker.claiming import Turns

KNOWN = ["mail", "reports", "tenant:12", "shop:mail"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("mail", {"mail": Share()}),
        ("mail:3,reports", {"mail": Share(3), "reports": Share()}),
        (" mail:3 = 2 , reports ", {"mail": Share(3, 2), "reports": Share()}),
        ("mail,mail", {"mail": Share()}),
        ("other:3", {"other": Share(3)}),
        ("shop:mail:1000=1000", {"shop:mail": Share(1000, 1000)}),
        ("tenant:12:5=2", {"tenant:12": Share(5, 2)}),
    ],
)
def test_shares(text, found):
    assert parse_shares(text, KNOWN) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "mail=0",
            "-Q 'mail=0': the number of tasks at once, '0', must be a whole number from 1 to 1000, such as mail=2, or "
            "mail:3=2. A queue that is not to be served is left out.",
        ),
        ("mail=", "the number of tasks at once, '', must be"),
        ("mail=٣", "the number of tasks at once"),
        (
            "mail:0",
            "-Q 'mail:0': the weight, '0', must be a whole number from 1 to 1000, such as mail:3. A queue that is not "
            "to be served is left out.",
        ),
        ("mail:-1", "the weight, '-1', must be"),
        (
            "mail:x",
            "-Q 'mail:x': the app has a queue 'mail' and none 'mail:x', and 'x' is no weight: give a whole number from "
            "1 to 1000, such as mail:3.",
        ),
        ("mail:3,mail", "-Q names the queue 'mail' twice, as 'mail:3' and as 'mail': keep one of them."),
        (
            "tenant:12",
            "-Q 'tenant:12' may be the queue 'tenant:12' or the queue 'tenant' with the weight 12: write tenant:12:1 "
            "for the first.",
        ),
    ],
)
def test_shares_that_cannot_be(text, message):
    with pytest.raises(ConfigurationError) as caught:
        parse_shares(text, KNOWN)
    assert message in str(caught.value)


@pytest.mark.parametrize("queue", ["mail", "shop:mail", "tenant:12", "a:1.5", "a:", "a.5"])
@pytest.mark.parametrize("share", [Share(), Share(3), Share(1, 2), Share(3, 2)])
def test_the_text_of_a_share_is_read_as_that_share(queue, share):
    text = share_text(queue, share)
    assert parse_shares(text, []) == {queue: share}
    assert queue_in(text) == queue


def deal(turns, queues, room, rooms=None):
    """One claim in which each queue has all that it is asked for."""
    dealt = dict(turns.deal(queues, room, rooms or {}))
    turns.used(dealt, set(dealt), set())
    return Counter(dealt)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=5), st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_after_any_number_of_claims_each_queue_has_its_proportion(weights, rooms):
    queues = [f"q{n}" for n in range(len(weights))]
    turns = Turns(queues, {queue: Share(weight) for queue, weight in zip(queues, weights, strict=True)})
    had = Counter()
    for room in rooms:
        dealt = deal(turns, queues, room)
        assert dealt.total() == room
        had += dealt
        for queue, weight in zip(queues, weights, strict=True):
            assert abs(had[queue] - had.total() * weight / sum(weights)) < len(queues)


def test_a_queue_that_had_nothing_is_not_alone_afterwards():
    """However long that was, and whether it was asked or had no room here."""
    queues = ["a", "b"]
    for without_room in ({"b"}, set()):
        turns = Turns(queues, {"a": Share(3)})
        for _ in range(50):
            dealt = dict(turns.deal(queues, 8, {"b": 0} if without_room else {}))
            turns.used(dealt, {"a"}, without_room)
        had = Counter()
        for _ in range(4):
            had += deal(turns, queues, 8)
        assert abs(had["b"] - 8) <= 3


def test_what_a_queue_may_not_have_is_for_the_others():
    turns = Turns(["a", "b", "c"], {})
    assert dict(turns.deal(["a", "b", "c"], 10, {"a": 1, "b": 0})) == {"a": 1, "c": 9}
    assert turns.deal(["a"], 10, {"a": 0}) == []
    assert turns.deal(["a", "b"], 10, {"a": 2, "b": 3}) == [("a", 2), ("b", 3)]


def test_queues_that_had_less_are_asked_first():
    turns = Turns(["a", "b"], {})
    turns.used(dict(turns.deal(["a", "b"], 10, {})), {"a"}, set())
    assert [queue for queue, _ in turns.deal(["a", "b"], 10, {})] == ["b", "a"]
