import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fbtasks.errors import ConfigurationError, ContentDisallowed, PayloadTooLarge, SerializationError
from fbtasks.serialize import Payload, Serializer, describe_exception, rebuild_exception

JSON = Serializer(default="json", accept={"json"}, signing_key=None, limit=10_000)
PICKLE = Serializer(default="cloudpickle", accept={"json", "cloudpickle"}, signing_key=b"key", limit=10_000)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.datetimes()
    | st.dates()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])).filter(lambda k: k != "__type__"), inner,
                      max_size=3),
    max_leaves=8,
)


@given(values)
def test_json_gives_back_what_it_was_given(value):
    assert JSON.load_result(JSON.dump_result(value, task="t")) == value


@pytest.mark.parametrize(
    "value",
    [datetime(2026, 1, 2, 3, 4, 5, 678, UTC), date(2026, 1, 2), time(3, 4), Decimal("1.10"), uuid4(), b"\xff\x00"],
)
def test_types_come_back_as_they_were(value):
    back = JSON.load_call(JSON.dump_call([value], {"k": value}, task="t"))
    assert back == ([value], {"k": value})
    assert type(back[0][0]) is type(value)


def test_tuples_come_back_as_lists():
    assert JSON.load_result(JSON.dump_result((1, (2,)), task="t")) == [1, [2]]


@pytest.mark.parametrize(
    ("value", "part"),
    [({1: 2}, "key 1"), ({"__type__": "x"}, "__type__"), (math.nan, "nan"), ({1, 2}, "set"), (object(), "object"),
     ("\ud800", "surrogate")],
)
def test_what_would_break_is_refused(value, part):
    with pytest.raises(SerializationError, match=part) as caught:
        JSON.dump_call([value], {}, task="mail.send")
    assert "mail.send" in str(caught.value)


def test_deep_nesting_is_refused():
    value: list = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SerializationError, match="nested"):
        JSON.dump_result(value, task="t")


def test_too_large_names_task_and_size():
    with pytest.raises(PayloadTooLarge, match=r"'big'.*20,0\d\d bytes.*10,000"):
        JSON.dump_call(["x" * 20_000], {}, task="big")


@given(st.binary(max_size=200))
def test_random_bytes_are_a_clear_error(data):
    for content_type in ("application/json", "application/x-fbtasks-cloudpickle"):
        try:
            PICKLE.load_call(Payload(content_type, data))
        except SerializationError:
            pass


def test_cloudpickle_needs_its_signature():
    payload = PICKLE.dump_result({1: (2, 3)}, task="t")
    assert PICKLE.load_result(payload) == {1: (2, 3)}
    forged = Payload(payload.content_type, bytes([payload.data[0] ^ 1]) + payload.data[1:])
    with pytest.raises(ContentDisallowed, match="signature"):
        PICKLE.load_result(forged)
    with pytest.raises(ContentDisallowed, match="accept_content"):
        JSON.load_result(payload)


@pytest.mark.parametrize(("name", "part"), [("pickle", "cloudpickle"), ("nosuch", "Known"), ("cloudpickle", "signing")])
def test_serializers_that_cannot_be_had(name, part):
    with pytest.raises(ConfigurationError, match=part):
        Serializer(default=name, accept={"json"}, signing_key=None, limit=1)


def test_exceptions_are_rebuilt_or_told_of():
    try:
        raise KeyError("k")
    except KeyError as error:
        back = rebuild_exception(describe_exception(error))
    assert isinstance(back, KeyError)
    assert back.args == ("k",)
    assert "Remote traceback" in back.__notes__[0]

    class Local(Exception):
        def __str__(self):
            raise ValueError

    assert type(rebuild_exception(describe_exception(Local()))).__name__ == "TaskFailure"
    assert type(rebuild_exception(describe_exception(SystemExit(1)))).__name__ == "TaskFailure"
