"""Types of what the transport reads: checked when a message is published, and again when it is delivered."""

import json

import pytest

from fbtasks.contrib.celery.store.messages import Claimed
from fbtasks.contrib.celery.transport import wire
from fbtasks.errors import SerializationError

TASK = {"lang": "py", "task": "shop.price", "id": "1", "eta": None, "expires": None, "timelimit": [None, None]}


def publish(*, exchange="", key="q", withhold=True, properties=None, **parts):
    message = {"body": b"x", "properties": properties or {}, "headers": {}, **parts}
    return wire.publication(message, exchange, key, withhold=withhold, fallback=None)


def deliver(head, body=b"x"):
    packed = json.dumps(head).encode()
    return wire.payload(
        Claimed(1, 1, 1, 0, False, "", "q", "", "", b""), b"%08d%b%b" % (len(packed), packed, body), 1, "c"
    )


HEADS = {
    "a list of headers": {"h": [1]},
    "no headers": {"h": None},
    "a list of properties": {"p": [1]},
    "a list as content type": {"t": ["application/json"]},
    "a number as encoding": {"e": 5},
    **{
        f"{name}: {value}": {"h": {**TASK, name: value}}
        for name, value in (
            ("task", ["x"]), ("id", None), ("shadow", [1]), ("eta", {}), ("expires", [1]),
            ("timelimit", 5), ("timelimit", [1, 2, 3]), ("stamps", 5), ("stamped_headers", 5),
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("wrong", HEADS.values(), ids=HEADS)
def test_a_wrong_type_is_refused_at_both_ends(wrong):
    head = {"p": {}, "h": {}, "t": "application/json", "e": "utf-8", **wrong}
    with pytest.raises(SerializationError, match=r"must be|has two values"):
        deliver(head)
    if head["h"] is not None:  # which is given for none
        with pytest.raises(SerializationError, match=r"must be|has two values"):
            publish(
                headers=head["h"], properties=head["p"], **{"content-type": head["t"], "content-encoding": head["e"]}
            )


@pytest.mark.parametrize(
    "parts",
    [
        {"body": 5},
        {"exchange": 5},
        {"key": None},
        {"properties": {"priority": "high"}},
        {"properties": {"priority": float("inf")}},
        {"properties": {"expiration": "soon"}},
    ],
    ids=str,
)
def test_a_publisher_is_told_which_value_is_wrong(parts):
    with pytest.raises(SerializationError, match=r"must be"):
        publish(**parts)


def test_no_head_at_all():
    for wrong in ([1], 5, "x", None):
        with pytest.raises(SerializationError, match="the head of a message must be dict"):
            deliver(wrong)


def test_what_is_right_passes():
    made = publish(headers=TASK, properties={"priority": "12", "expiration": "1000"})
    assert (made.priority, made.ttl) == (9, 1000)
    assert publish(body=None, headers=None).message.endswith(b"}")
    headers = {"task": {"name": 1}, "id": [2], "eta": {}, "timelimit": 5}  # of another program
    assert deliver({"p": {}, "h": headers, "t": None, "e": None})["headers"] == headers
    publish(headers=headers)
    found = deliver({"p": {"reply_to": "r"}, "h": TASK, "t": None, "e": None})
    assert (found["headers"], found["properties"]["reply_to"], found["body"]) == (TASK, "r", b"x")


def test_the_title_of_a_message():
    assert wire.title(publish(headers=TASK).message) == " (task 'shop.price', id '1')"
    assert [wire.title(text) for text in (None, b"", b"xyz", publish().message)] == [""] * 4
