"""Values and exceptions come back as they were, or are refused with a clear error of ours."""

import asyncio
import enum
import hashlib
import hmac
import json
import os
import pickle
import sys
import threading
import types
from collections import Counter, namedtuple
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import partial
from zoneinfo import ZoneInfo

import cloudpickle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import serialization

from fbtasks import FBTasks
from fbtasks.errors import (
    ConfigurationError,
    ContentDisallowed,
    PayloadTooLarge,
    SerializationError,
    TaskFailure,
)
from fbtasks.tasks import serialize
from fbtasks.tasks.call import Failed
from fbtasks.tasks.remote_error import describe_exception, rebuild_exception
from fbtasks.tasks.serialize import JSON_TYPE, MAX_DEPTH, PICKLE_TYPE, Payload, Serializer, show_json

KEY = b"a key for the tests only"


def make(*accept, default="json", key=KEY, limit=1_000_000):
    return Serializer(
        default=default, accept=accept or ("json",), signing_keys=() if key is None else (key,), limit=limit
    )


def through_json(value):
    serializer = make()
    return serializer.load_result(serializer.dump_result(value, task="t", number=7), number=7)


def refusal(value):
    with pytest.raises(SerializationError) as caught:
        make().dump_call([value], {}, task="shop.mail")
    return str(caught.value)


# What JSON gives back


def is_mark(value):
    return isinstance(value, dict) and value.keys() == {"__type__", "__value__"}


offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.binary(),
    st.datetimes(),
    st.datetimes(timezones=offsets),
    st.dates(),
    st.times(),
    st.times(timezones=offsets),
    st.decimals(allow_nan=False),
    st.uuids(),
)
keys = st.text(max_size=5) | st.sampled_from(["__type__", "__value__"])
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4).filter(lambda value: not is_mark(value))
    ),
    max_leaves=12,
)


headers = st.dictionaries(keys, st.text(max_size=5), max_size=3)


@given(st.lists(values, max_size=4), st.dictionaries(keys, values, max_size=4), headers)
@example(
    [b"\xff\x00", b"text", Decimal("-Infinity"), Decimal("1.50"), -0.0, 10**300, time(23, 59, 59, 999_999)], {}, {}
)
@example([datetime(2026, 10, 25, 2, 30, fold=1), time(2, 30, fold=1)], {"at": {"x": time(2, fold=1)}}, {})
@example([{"__type__": "datetime"}, {"__type__": "datetime", "__value__": 1, "more": 2}, "NUL \0"], {}, {"a": "b"})
def test_a_call_comes_back_as_it_was(args, kwargs, headers):
    serializer = make("json", "cloudpickle")
    for name in ("json", "cloudpickle"):
        if name == "json" and (is_mark(kwargs) or is_mark(headers)):
            continue
        payload = serializer.dump_call(args, kwargs, headers, task="t", serializer=name)
        back = serializer.load_call(payload, task="t")
        assert back == (args, kwargs, headers)
        assert repr(back) == repr((args, kwargs, headers))  # 1, 1.0 and True are equal, but not the same


def test_an_aware_datetime_is_the_same_instant_at_a_fixed_offset():
    summer = datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = through_json(summer)
    assert back == summer
    assert back.tzinfo == timezone(timedelta(hours=2))


def test_the_second_reading_of_a_clock_that_is_put_back_stays_the_second():
    later = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1)
    back = through_json(later)
    assert back.utcoffset() == timedelta(hours=1)
    assert back.replace(tzinfo=later.tzinfo).astimezone(UTC) == later.astimezone(UTC)
    assert through_json(later.replace(tzinfo=None)).fold == 1


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        (Point(1, 2), [1, 2]),
        (Counter("aa"), {"a": 2}),
        ({Colour.RED: Level.LOW}, {"red": 1}),
    ],
)
def test_a_subclass_comes_back_as_its_plain_type(value, plain):
    back = through_json(value)
    assert back == plain
    assert type(back) is type(plain)
    assert repr(back) == repr(plain)


def test_an_object_says_itself_what_it_is_in_json():
    class Money:
        def __json__(self):
            return {"cents": 5}

    assert through_json([Money()]) == [{"cents": 5}]


def test_a_call_is_the_array_that_sql_producers_write():
    assert make().dump_call((2, 3), {}, task="add") == Payload(JSON_TYPE, b"[[2,3],{}]")
    assert make().load_call(Payload(JSON_TYPE, b' [ [2,3],{"k": "\xc3\xa9"}]\n'), task="t") == ([2, 3], {"k": "é"}, {})
    assert make().dump_call((2,), {}, {"a": "b"}, task="add").data == b'[[2],{},{"a":"b"}]'


# What JSON would lose


@pytest.mark.parametrize(
    ("value", "place", "reason"),
    [
        ({"a": [0, 1, 2, {1: "x"}]}, "args[0]['a'][3]", "the key 1 of type int"),
        ({None: 1}, "args[0]", "the key None"),
        ([[float("nan")]], "args[0][0][0]", "nan"),
        ([{1, 2}], "args[0][0]", "set"),
        (timedelta(1), "args[0]", "datetime.timedelta"),
        (time(1, tzinfo=ZoneInfo("Europe/Berlin")), "args[0]", "time zone"),
        ({"x": {"__type__": "uuid", "__value__": 1}}, "args[0]['x']", "__type__"),
        (["\ud83d\ude00"], "args[0][0]", "U+D83D"),
        ({"\udcff": 1}, "args[0]", "U+DCFF"),
    ],
)
def test_what_json_would_change_is_refused_with_its_place(value, place, reason):
    message = refusal(value)
    assert message.startswith(f"task 'shop.mail': {place} ")
    assert reason in message


def test_the_refusal_names_keyword_arguments_and_results():
    with pytest.raises(SerializationError, match=r"^task 't': kwargs\['when'\]\[1\] is a set.*cloudpickle"):
        make().dump_call([], {"when": [1, set()]}, task="t")
    with pytest.raises(SerializationError, match=r"^task 't': kwargs is a dict with just"):
        make().dump_call([], {"__type__": "x", "__value__": 1}, task="t")
    with pytest.raises(SerializationError, match=r"^task 't': result\[0\] is a set"):
        make().dump_result([set()], task="t", number=7)


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_what_is_nested_too_deeply_is_refused(depth):
    value = None
    for _ in range(depth):
        value = [value]
    message = refusal(value)
    assert "deep" in message
    assert len(message) < 500
    with pytest.raises(SerializationError):
        make("cloudpickle").dump_result([value] * 2 if depth > 10_000 else set, task="t", number=7)
    loop = []
    loop.append(loop)
    assert "in itself" in refusal(loop)


def test_the_deepest_that_is_written_can_be_read():
    value = "x"
    for _ in range(MAX_DEPTH):
        value = {"k": value}
    assert through_json(value) == value


def test_a_number_too_long_for_the_interpreter_is_refused():
    with pytest.raises(SerializationError, match="task 't'"):
        make().dump_result(10**5000, task="t", number=7)
    with pytest.raises(SerializationError):
        make().load_result(Payload(JSON_TYPE, b"1" * 5000), number=7)


def test_an_object_is_refused_with_all_that_would_take_it():
    own = ", give the class a __json__ method, register it by kombu.utils.json.register_type"
    pickled = ", or use serializer='cloudpickle' with a signing_key."
    for value, what, remedy in ((types.SimpleNamespace(), "types.SimpleNamespace", own), ({1}, "set", "")):
        said = f"task 'shop.mail': args[0] is a {what}, which JSON does not have. Pass simple values{remedy}{pickled}"
        assert refusal(value) == said


class Hostile:
    """Raises wherever it is looked at."""

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__

    def __json__(self):
        raise RuntimeError("no json")

    def __reduce__(self):
        raise RuntimeError("no reduce")


anything = st.recursive(
    st.one_of(
        scalars,
        st.floats(),
        st.text(st.characters()),
        st.text(st.characters(categories=["Cs"])),
        st.builds(Hostile),
        st.sets(st.integers()),
        st.decimals(),
        st.functions(),
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.one_of(keys, st.integers(), st.none()), inner, max_size=3)
        | st.fixed_dictionaries({"__type__": inner, "__value__": inner})
    ),
    max_leaves=6,
)


@given(anything)
def test_writing_raises_only_errors_of_ours(value):
    serializer = make("json", "cloudpickle")
    for name in ("json", "cloudpickle"):
        try:
            payload = serializer.dump_call([value], {}, task="t", serializer=name)
        except SerializationError as error:
            str(error).encode("utf-8")
        else:
            args, *others = serializer.load_call(payload, task="t")
            assert len(args) == 1
            assert others == [{}, {}]


# Reading what any producer wrote


@given(st.binary() | st.text().map(str.encode), st.sampled_from([JSON_TYPE, PICKLE_TYPE, "text/plain", "", "\0"]))
@example(b"", JSON_TYPE)
@example(b"\xff", JSON_TYPE)
@example(b"\xef\xbb\xbf[[],{}]", JSON_TYPE)
@example(b"[" * 1_000_000, JSON_TYPE)
@example(b'{"a":' * 100_000, JSON_TYPE)
@example(b'{"__type__": "datetime", "__value__": 5}', JSON_TYPE)
@example(b'{"__type__": [], "__value__": 5}', JSON_TYPE)
@example(b'{"__type__": "decimal", "__value__": "x"}', JSON_TYPE)
def test_reading_raises_only_errors_of_ours(data, content_type):
    serializer = make("json", "cloudpickle")
    for load in (partial(serializer.load_call, task="t"), partial(serializer.load_result, number=7)):
        try:
            load(Payload(content_type, data))
        except SerializationError as error:
            message = str(error)
            assert len(message) < 1000


@pytest.mark.parametrize(
    "body", [None, [], [[], {}, 1], [[], {}, {"a": 1}], [[], {}, {}, {}], [{}, []], {"a": 1}, [[], {1: 2}]], ids=str
)
def test_only_a_call_is_read_as_a_call(body):
    payload = Payload(PICKLE_TYPE, signed(b"call\0t", cloudpickle.dumps(body)))
    with pytest.raises(SerializationError, match="not a call"):
        make("cloudpickle").load_call(payload, task="t")


# cloudpickle and its signature


def test_cloudpickle_carries_what_json_cannot():
    serializer = make("cloudpickle", default="cloudpickle")
    payload = serializer.dump_call([{1: {2}}, lambda x: x + 1], {}, task="t")
    assert payload.content_type == PICKLE_TYPE
    (table, function), *_ = serializer.load_call(payload, task="t")
    assert table == {1: {2}}
    assert function(1) == 2


def signed(what, body, key=KEY):
    """A payload that is signed by hand."""
    head = PICKLE_TYPE.encode() + b"\0%d\0" % len(what) + what + b"\0"
    return hmac.new(key, head + body, hashlib.sha256).digest() + body


def test_the_signature_is_hmac_sha256_over_type_purpose_and_body():
    serializer = make("cloudpickle", default="cloudpickle")
    result = serializer.dump_result(5, task="t", number=7).data
    assert result == signed(b"result\0007", result[32:])
    call = serializer.dump_call([5], {}, task="t").data
    assert call == signed(b"call\0t", call[32:])


def test_a_signed_payload_serves_no_other_purpose():
    serializer = make("cloudpickle", default="cloudpickle")
    call = serializer.dump_call([[], {}], {}, task="harmless")
    result = serializer.dump_result([[1], {}], task="t", number=7)
    assert serializer.load_call(call, task="harmless") == ([[], {}], {}, {})
    assert serializer.load_result(result, number=7) == [[1], {}]
    for put_to_another_use in (
        lambda: serializer.load_call(call, task="dangerous"),
        lambda: serializer.load_call(result, task="t"),
        lambda: serializer.load_result(call, number=7),
        lambda: serializer.load_result(result, number=8),
    ):
        with pytest.raises(ContentDisallowed, match="for another task, or changed since"):
            put_to_another_use()


def test_keys_are_rotated_one_after_the_other():
    def app(*keys):
        return FBTasks(
            "a", "firebird:///nosuch.fdb", serializer="cloudpickle", signing_key=keys if len(keys) > 1 else keys[0]
        ).serializer

    def understands(reader, writer):
        try:
            return reader.load_result(writer.dump_result(5, task="t", number=7), number=7) == 5
        except ContentDisallowed:
            return False

    old, accepts, signs, new = app("old"), app("old", "new"), app("new", "old"), app("new")
    assert all(understands(one, other) for one in (old, accepts) for other in (old, accepts))
    assert all(understands(one, other) for one in (accepts, signs) for other in (accepts, signs))
    assert all(understands(one, other) for one in (signs, new) for other in (signs, new))
    assert not understands(new, accepts)
    assert not understands(old, signs)


@given(st.data())
def test_no_changed_payload_is_unpickled(data):
    serializer = make("cloudpickle")
    good = signed(b"result\0007", cloudpickle.dumps(Bomb()))
    at = data.draw(st.integers(0, len(good) - 1))
    flip = data.draw(st.integers(1, 255))
    changed = data.draw(
        st.sampled_from([good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :], good[:at] or b"x", good + b"x"])
    )
    with pytest.raises(ContentDisallowed, match="signature"):
        serializer.load_result(Payload(PICKLE_TYPE, changed), number=7)
    for key in (b"another key", b""):
        with pytest.raises(ContentDisallowed):
            serializer.load_result(
                Payload(PICKLE_TYPE, signed(b"result\0007", cloudpickle.dumps(Bomb()), key)), number=7
            )
    assert not ran
    serializer.load_result(Payload(PICKLE_TYPE, good), number=7)
    ran.clear()


ran = []


class Bomb:
    def __reduce__(self):
        return ran.append, (1,)


def test_a_signed_payload_that_cannot_be_unpickled_is_an_error_of_ours():
    with pytest.raises(SerializationError, match="cannot be read"):
        make("cloudpickle").load_result(Payload(PICKLE_TYPE, signed(b"result\0007", b"not a pickle")), number=7)


@pytest.mark.parametrize("kind", ["decimal", "bytes", "datetime", "uuid", "fbtasks.fold", "unknown", ["a list"]])
@pytest.mark.parametrize("value", [[5], "\ud800", None, {}])
def test_json_with_a_mark_of_another_type_is_an_error_of_ours(kind, value):
    data = json.dumps({"__type__": kind, "__value__": value}).encode()
    with pytest.raises(SerializationError, match="the payload cannot be read as application/json: ") as caught:
        make().load_result(Payload(JSON_TYPE, data), number=7)
    assert isinstance(caught.value.__cause__, ValueError)


def test_what_cloudpickle_cannot_write_is_an_error_of_ours():
    with pytest.raises(SerializationError, match="task 't': result cannot be serialised with 'cloudpickle'"):
        make().dump_result(threading.Lock(), task="t", serializer="cloudpickle", number=7)


def test_cloudpickle_is_read_only_where_it_is_accepted():
    payload = make().dump_result(5, task="t", serializer="cloudpickle", number=7)
    with pytest.raises(ContentDisallowed, match=r"accepted: json.*accept_content"):
        make("json").load_result(payload, number=7)
    assert make("cloudpickle").load_result(payload, number=7) == 5


def test_cloudpickle_needs_a_key():
    for attempt in (
        lambda: make("cloudpickle", key=None),
        lambda: make(default="cloudpickle", key=None),
        lambda: make(key=None).dump_result(1, task="t", serializer="cloudpickle", number=7),
    ):
        with pytest.raises(ConfigurationError, match="needs a signing_key"):
            attempt()


# Names of serializers


@pytest.mark.parametrize("name", ["pickle", "application/x-python-serialize"])
def test_plain_pickle_is_refused_everywhere(name):
    for attempt in (
        lambda: make(name),
        lambda: make(default=name),
        lambda: make().dump_result(1, task="t", serializer=name, number=7),
    ):
        with pytest.raises(ConfigurationError, match="'cloudpickle' with a signing_key"):
            attempt()
    with pytest.raises(ContentDisallowed, match="never read"):
        make().load_result(Payload("application/x-python-serialize", pickle.dumps(Bomb())), number=7)


def test_a_serializer_without_its_library_is_refused(monkeypatch):
    serialization.register("absent", None, lambda data: data, "application/x-absent")
    try:
        with pytest.raises(ConfigurationError, match="Install its library"):
            make("absent")
    finally:
        serialization.unregister("absent")


def test_another_serializer_of_kombu_can_be_used():
    serialization.register("reversed", lambda body: json.dumps(body)[::-1], lambda d: json.loads(d[::-1]), "x/rev")
    try:
        serializer = make("reversed", default="reversed")
        payload = serializer.dump_call([1], {"a": "b"}, task="t")
        assert payload.content_type == "x/rev"
        assert serializer.load_call(payload, task="t") == ([1], {"a": "b"}, {})
        with pytest.raises(SerializationError, match="cannot be serialised with 'reversed'"):
            serializer.dump_result(set(), task="t", number=7)
        with pytest.raises(ContentDisallowed):
            make("json").load_call(payload, task="t")
    finally:
        serialization.unregister("reversed")


def test_the_host_programs_kombu_is_left_alone():
    before = (
        dict(serialization.registry.name_to_type),
        set(serialization.registry._disabled_content_types),
    )
    serializer = make("json", "cloudpickle")
    serializer.load_result(serializer.dump_result(1, task="t", serializer="cloudpickle", number=7), number=7)
    assert before == (
        serialization.registry.name_to_type,
        serialization.registry._disabled_content_types,
    )


# Size


def test_the_limit_is_exact():
    serializer = make(limit=100)
    assert len(serializer.dump_result("x" * 98, task="t", number=7).data) == 100
    with pytest.raises(PayloadTooLarge, match=r"task 't': result: 101 bytes .* payload_limit is 100"):
        serializer.dump_result("x" * 99, task="t", number=7)


# Exceptions


class ShopError(Exception):
    """Takes other arguments than it hands on, so it cannot be rebuilt."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")


class Reducing(Exception):
    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text

    def __reduce__(self):
        return Reducing, (self.code, self.text)


class Outer:
    class InnerError(LookupError):
        pass


class Unshowable(Exception):
    def __str__(self):
        raise RuntimeError("no str")

    @property
    def __notes__(self):
        raise RuntimeError("no notes")

    def __reduce__(self):
        raise RuntimeError("no reduce")

    __repr__ = __str__


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def round_trip(error):
    return rebuild_exception(describe_exception(raised(error)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("boom", 3, {"a": [1]}),
        FileNotFoundError(2, "No such file", "/tmp/x"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        Outer.InnerError("inner"),
        Reducing(4, "four"),
        json.JSONDecodeError("bad", "doc", 1),
        ValueError(datetime(2024, 1, 1), Decimal("1.5"), b"\xff"),
    ],
)
def test_an_exception_comes_back(error):
    back = round_trip(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert getattr(back, "filename", None) == getattr(error, "filename", None)
    assert "Remote traceback:\nTraceback (most recent call last)" in back.__notes__[0]


def local_error():
    class LocalError(Exception):
        pass

    return LocalError("x")


@pytest.mark.parametrize(
    "error",
    [
        ShopError(4, "four"),
        KeyError(("its message shows", "a tuple")),
        ValueError({1, 2}),
        local_error(),
        ExceptionGroup("several", [ValueError("x")]),
        SystemExit(3),
        asyncio.CancelledError("x"),
    ],
)
def test_what_cannot_be_rebuilt_becomes_a_task_failure(error):
    back = round_trip(error)
    assert type(back) is TaskFailure
    assert type(error).__name__ in str(back)
    assert str(error) in str(back)
    assert not str(back).startswith("builtins.")


def remote(name, args=b"[]", message=""):
    return Failed(name, message, "", args)


@pytest.mark.parametrize(
    ("name", "args", "message"),
    [
        ("os.system", b'["echo x"]', ""),
        ("builtins.BaseException", b"[]", ""),
        ("builtins.object", b"[]", ""),
        ("subprocess.os.error", b"[]", ""),
        ("builtins.ValueError", b"not json", ""),
        ("builtins.ValueError", b"[NaN]", "nan"),
        ("builtins.ValueError", b'["other"]', "message"),
        ("builtins.FileNotFoundError.__init__", b"[]", ""),
        ("builtins.OSError", b'[2, "x"]', "[Errno 2] x"),
        ("", b"[]", ""),
    ],
)
def test_only_exceptions_are_built_and_only_as_they_were(name, args, message):
    back = rebuild_exception(remote(name, args, message))
    assert type(back) is TaskFailure


def test_a_name_without_a_module_is_a_builtin_whose_message_may_have_been_cut():
    text = "a" * 50 + "b" * 50
    for message in (text, "a" * 10 + " ... " + "b" * 10):
        assert repr(rebuild_exception(remote("ValueError", json.dumps([text]).encode(), message))) == repr(
            ValueError(text)
        )


def test_rebuilding_imports_nothing(monkeypatch, tmp_path):
    (tmp_path / "a_module_not_loaded.py").write_text("class SomeError(Exception): pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert type(rebuild_exception(remote("a_module_not_loaded.SomeError"))) is TaskFailure
    assert "a_module_not_loaded" not in sys.modules
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail("asked for an attribute")
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    assert type(rebuild_exception(remote("lazy_module.SomeError"))) is TaskFailure


def test_an_exception_that_cannot_be_shown_is_described():
    described = describe_exception(raised(Unshowable("x")))
    assert described.error_type.endswith("Unshowable")
    assert described.message == "(its message cannot be shown)"
    assert "Unshowable" in described.traceback
    assert isinstance(rebuild_exception(described), Exception)


def test_lone_surrogates_do_not_stop_an_exception():
    described = describe_exception(raised(ValueError("\udcff")))
    described.message.encode()
    described.traceback.encode()
    assert described.message == "\\udcff"


def test_the_traceback_begins_in_the_tasks_own_code():
    folder = os.path.dirname(serialize.__file__)
    inside = compile("def run(task):\n    return task()\n", os.path.join(folder, "worker", "some.py"), "exec")
    names = {}
    exec(inside, names)

    def task():
        names["run"](lambda: 1 / 0)

    with pytest.raises(ZeroDivisionError) as caught:
        names["run"](task)
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # as the worker catches it
    lines = describe_exception(error).traceback.splitlines()
    assert "in task" in lines[1]
    assert sum("some.py" in line for line in lines) == 1  # below the task's own frame it stays


def test_an_error_of_the_machinery_keeps_its_traceback():
    with pytest.raises(SerializationError) as caught:
        make().load_call(Payload(JSON_TYPE, b""), task="t")
    caught.value.__traceback__ = caught.value.__traceback__.tb_next
    assert "serialize.py" in describe_exception(caught.value).traceback


@given(
    st.text(st.characters()),
    st.binary() | st.sampled_from([None, b"[1]", b'["a", {}]', b"{}"]),
    st.text(st.characters()),
)
def test_rebuilding_never_raises(message, args, trace):
    for name in ("builtins.ValueError", "builtins.UnicodeDecodeError", "os.error", message):
        error = rebuild_exception(Failed(name, message, trace, args))
        assert isinstance(error, Exception)


# For people


def test_payloads_are_shown_without_being_unpickled():
    assert show_json(Payload(JSON_TYPE, b'[["\\u00e9"],{}]')) == '[["é"], {}]'
    assert show_json(Payload(JSON_TYPE, b"\xff")) == "(1 bytes of application/json)"
    assert show_json(Payload(JSON_TYPE, b"[" * 100_000)) == "(100,000 bytes of application/json)"
    assert show_json(Payload(PICKLE_TYPE, pickle.dumps(Bomb()))).endswith(f"bytes of {PICKLE_TYPE})")


@pytest.mark.parametrize(("limit", "size"), [(0, 100), (200, 199), (1000, 2000)])
def test_everything_is_cut_to_the_limit(limit, size):
    described = describe_exception(raised(ValueError("start" + "x" * size + "end")), limit=limit)
    assert len(described.message) <= limit
    assert len(described.traceback) <= limit
    if limit == 1000:
        assert (described.message[:5], described.message[-3:]) == ("start", "end")
        assert described.traceback.startswith("Traceback")
        assert "end" in described.traceback[-10:]
