"""Definitions of ``on_change``, and the JSON of changes: without a database."""

from datetime import UTC, datetime
from decimal import Decimal
from functools import partial

import pytest

from fbtasks import FBTasks
from fbtasks.errors import ConfigurationError, SerializationError, TaskDefinitionError
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds import changes
from fbtasks.features.sources.store import tables, triggers
from fbtasks.features.sources.store.capture import resolve
from fbtasks.features.sources.store.tables import Column, Table
from fbtasks.tasks import formats


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({}, TaskDefinitionError, r"on_change\('ORDERS'\) listens to nothing. Give insert=True"),
        ({"update": False}, TaskDefinitionError, "listens to nothing"),
        ({"update": ()}, ConfigurationError, r"update \(\) names no column"),
        ({"update": None}, ConfigurationError, "update None must be True, False or a list of column names"),
        ({"update": 1}, ConfigurationError, "update 1 must be"),
        ({"update": ("A", 1)}, ConfigurationError, "update holds 1"),
        ({"insert": 1}, ConfigurationError, "insert 1 must be True or False"),
        ({"delete": "yes"}, ConfigurationError, "delete 'yes' must be True or False"),
        ({"insert": True, "always": 1}, ConfigurationError, "always 1 must be"),
        ({"insert": True, "key": ()}, ConfigurationError, r"key \(\) names no column"),
        ({"insert": True, "key": ("",)}, ConfigurationError, "key holds ''"),
        ({"insert": True, "columns": 5}, ConfigurationError, "columns 5 must be a list of column names"),
        ({"insert": True, "columns": ("A", "")}, ConfigurationError, "columns holds ''"),
        ({"insert": True, "when": ""}, ConfigurationError, "when '' must be text"),
        ({"insert": True, "when": " \n"}, ConfigurationError, "is blank"),
        ({"insert": True, "order": "keys"}, ConfigurationError, r"order 'keys' must be 'key' .*, 'total' .* or None"),
        ({"insert": True, "order": []}, ConfigurationError, r"order \[\] must be"),
        ({"insert": True, "charset": "NONE"}, ConfigurationError, "charset 'NONE' must be the character set"),
        ({"insert": True, "charset": "UTF8) --"}, ConfigurationError, "charset .* must be the character set"),
        ({"table": "", "insert": True}, ConfigurationError, "table '' must be text"),
    ],
)
def test_what_cannot_be_a_definition_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        ChangeSource(**{"table": "ORDERS", **options})


@pytest.mark.parametrize(
    "define", [partial(FBTasks.on_change, table="ORDERS", insert=True), partial(FBTasks.on_event, event="paid")]
)
def test_what_was_noted_does_not_expire(define):
    with pytest.raises(TaskDefinitionError, match="expires=10 is for calls and for rows of polled tables"):
        define(FBTasks("shop", "firebird:///queue.fdb"), expires=10)


def test_a_definition_is_kept_in_one_form():
    source = ChangeSource(table="orders", update=["a", "b", "a"], key="id", columns=["c"], charset="win1252")
    assert source.update == ("a", "b")
    assert source.key == ("id",)
    assert source.columns == ("c",)
    assert source.charset == "WIN1252"
    assert source.order == "key"
    assert ChangeSource(table="T", update="A").update == ("A",)


def test_names_are_meant_as_firebird_means_them():
    known = {"ORDERS", "orders", "Mixed", 'a"b', "GRößE"}
    assert tables.meant("orders", known) == "orders"
    assert tables.meant("Orders", known) == "ORDERS"
    assert tables.meant("mixed", known) is None
    assert tables.meant('"Mixed"', known) == "Mixed"
    assert tables.meant('"mixed"', known) is None
    assert tables.meant('"a""b"', known) == 'a"b'
    assert tables.meant("größe", known) == "GRößE"  # the engine's capitals of a plain name are those of ASCII
    assert tables.quoted('a"b') == '"a""b"'


HEAD = b'{"i":7,"o":"U","t":"2026-01-02 03:04:05.6780","x":9,"u":"ANN"'


def load(data):
    return changes.read(formats.load_json(data))


def test_a_change_is_read():
    change = load(HEAD + b',"k":{"ID":1},"p":{"A":null},"n":{"A":{"__type__":"decimal","__value__":"1.20"}},"z":1}')
    assert change == changes.Change(
        "update",
        {"ID": 1},
        {"ID": 1, "A": None},
        {"ID": 1, "A": Decimal("1.20")},
        "ANN",
        datetime(2026, 1, 2, 3, 4, 5, 678000, UTC),
        9,
        7,
    )
    assert str(change.new["A"]) == "1.20"
    assert (change.count, change.moved, change.error) == (1, None, None)


def test_a_moved_row_has_the_key_it_is_handled_under():
    out = load(HEAD + b',"m":"out","k":{"ID":2},"q":{"ID":1}}')
    into = load(HEAD + b',"m":"in","k":{"ID":2},"q":{"ID":1}}')
    assert (out.key, out.moved) == ({"ID": 1}, "out")
    assert (into.key, into.moved) == ({"ID": 2}, "in")
    assert out.old == into.old == {"ID": 1}
    assert out.new == into.new == {"ID": 2}


def test_an_error_has_no_values():
    change = load(HEAD + b',"k":{"ID":2},"e":"divide by zero"}')
    assert (change.error, change.key, change.old, change.new) == ("divide by zero", {"ID": 2}, None, None)
    assert load(HEAD + b',"e":"divide by zero"}').key == {}


@pytest.mark.parametrize("data", [b"[]", b"{}", b'"x"', HEAD.replace(b'"U"', b'"X"') + b"}"])
def test_what_is_no_change_is_refused(data):
    with pytest.raises(SerializationError, match="a recorded change cannot be read"):
        load(data)


def table(length):
    columns = (
        Column("ID", tables.INTEGER, length=4),
        Column("STATUS", tables.VARCHAR, length=10, charset="UTF8", width=4),
        Column("NOTE", tables.VARCHAR, length=length, charset="UTF8", width=4),
    )
    return Table("ORDERS", columns, ("ID",), frozenset())


def body(length, **options):
    """The text of a trigger, up to what it does with errors."""
    source = ChangeSource(table="ORDERS", **options)
    text = triggers.trigger(7, "shop.paid", "mail", resolve(source, table(length)))
    return text.partition("WHEN ANY DO")[0]


def test_a_short_row_pays_nothing_for_long_ones():
    short = body(50, insert=True, update=True, delete=True, columns=("STATUS", "NOTE"))
    assert "OCTET_LENGTH" not in short
    assert "LARGE" not in short
    assert "BLOB_APPEND" not in short


def test_a_long_row_is_measured_and_a_longer_one_may_be_a_blob():
    long = body(1000, insert=True, columns=("NOTE",))
    assert "OCTET_LENGTH(QUEUE_REST) <= " in long
    assert "QUEUE_WIDE = " not in long
    longer = body(8000, update=True, columns=("NOTE",))
    assert "QUEUE_WIDE = BLOB_APPEND(" in longer
    assert 'OCTET_LENGTH(new."NOTE")' in longer


def test_a_trigger_is_for_what_is_wanted():
    only = body(50, insert=True)
    assert "AFTER INSERT POSITION 32767" in only
    assert "old." not in only
    assert "POST_EVENT 'fbtasks:queue:mail';" in only
    assert "FBTASKS_SILENT" in only
    assert "FBTASKS_SILENT" not in body(50, insert=True, always=True)
    assert 'old."STATUS" IS DISTINCT FROM new."STATUS"' in body(50, update=("STATUS",))
