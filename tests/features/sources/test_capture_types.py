"""Every type's values come back from the log as the driver reads them from the table."""

import math
import os
import struct
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.capture import clear, listen, logged, script
from support.databases import SERVER, database
from support.sql import execute, rows
from support.variants import slow

from fbtasks import FBTasks
from fbtasks.firebird import connections

ALL = {"insert": True, "update": True, "delete": True}
once_in_a_database = settings(
    max_examples=int(os.environ.get("FBTASKS_EXAMPLES", "8")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    database=None,
)


class Table:
    """A table of one value beside its key, whose changes are recorded."""

    def __init__(self, app, kind, **options):
        self.app = app
        script(app, f"CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, V {kind})")
        listen(app, "T", **ALL, columns=("V",), **options)

    def travels(self, value):
        """What is logged when a row with *value* is inserted and deleted."""
        statements = (("DELETE FROM QUEUE_CHANGE",), ("INSERT INTO T VALUES (1, ?)", (value,)))
        with self.app.connect() as connection, connection.cursor() as cursor:
            for statement in (*statements, ("UPDATE T SET V = NULL",), ("DELETE FROM T",)):
                cursor.execute(*statement)
                connection.commit()
        insert, update, delete = logged(self.app)
        assert (insert.error, update.error, delete.error) == (None, None, None)
        assert update.new["V"] is None
        assert delete.old["V"] is None
        assert same(update.old["V"], insert.new["V"])
        return insert.new["V"]


def same(one, other):
    both_nan = one != one and other != other
    return type(one) is type(other) and (both_nan or (one == other and str(one) == str(other)))


def decimals(*texts):
    return [*map(Decimal, texts)]


TEXTS = ["", '"', "\\", '\\"', "\0\n\r\t\x1f", "😀€ä", '{"__type__":"x","__value__":1}', "\\u0041", " a  "]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        *(
            (kind, [0, -1, 2**bits - 1, -(2**bits)])
            for kind, bits in (("SMALLINT", 15), ("INTEGER", 31), ("BIGINT", 63))
        ),
        ("NUMERIC(18, 0)", [0, -1, 2**59 - 1, -(2**59)]),
        ("NUMERIC(4, 3)", decimals("0.000", "-0.050", "9.999", "-9.999")),
        ("DECIMAL(9, 2)", decimals("1.20", "-1234567.89")),
        ("NUMERIC(18, 4)", decimals("1.2000", "-12345678901234.5678")),
        ("NUMERIC(38, 2)", decimals("0.01", "-123456789012345678901234567890123456.78")),
        ("INT128", decimals(0, 2**127 - 1, -(2**127))),
        ("DECFLOAT(16)", decimals("1.50", "-1.234567890123456E+300", "0E-398", "Infinity", "-Infinity")),
        ("DECFLOAT(34)", decimals("1.2E-6000", "-9.999999999999999999999999999999999E+6144", "NaN")),
        ("BOOLEAN", [True, False]),
        ("BINARY(4)", [b"a\0b\x20"]),
        *((f"VARCHAR({length}) CHARACTER SET UTF8", TEXTS) for length in (50, 8000)),
    ],
)
def test_values(app, kind, values):
    table = Table(app, kind)
    for value in values:
        assert same(table.travels(value), value)


letters = st.characters(exclude_categories=["Cs"])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (
            "DECFLOAT(34)",
            st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**20), max_value=10**20),
        ),
        ("FLOAT", st.floats(width=32)),
        ("VARCHAR(50) CHARACTER SET UTF8", st.text(letters, max_size=20)),
        ("VARCHAR(8000) CHARACTER SET UTF8", st.text(letters, max_size=20)),
        ("VARBINARY(2000)", st.binary(max_size=40)),
    ],
)
def test_any_value(app, kind, values):
    table = Table(app, kind)

    @once_in_a_database
    @given(values)
    def travels(value):
        assert same(table.travels(value), value)

    travels()


def test_a_char_comes_without_the_blanks_behind_it(app):
    table = Table(app, "CHAR(10) CHARACTER SET UTF8")
    assert [table.travels(value) for value in ("PAID", " ä b ", "")] == ["PAID", " ä b", ""]


def test_any_float(app):
    table = Table(app, "DOUBLE PRECISION")

    @once_in_a_database
    @given(st.floats())
    def travels(value):
        found = table.travels(value)
        assert same(found, value)
        if value == 0:
            assert math.copysign(1, found) == math.copysign(1, value)

    travels()
    negative = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0000))[0]
    assert math.isnan(table.travels(negative))


def test_any_date_and_time(app):
    script(
        app,
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, D DATE, T TIME, S TIMESTAMP)",
    )
    listen(app, "T", insert=True, columns=("D", "T", "S"))

    @once_in_a_database
    @given(st.datetimes(min_value=datetime(1859, 1, 1)))  # the driver writes none before 1858
    def travels(value):
        value = value.replace(microsecond=value.microsecond // 100 * 100)  # the engine has four digits
        clear(app)
        execute(app, "UPDATE OR INSERT INTO T VALUES (1, ?, ?, ?)", value.date(), value.time(), value)
        execute(app, "DELETE FROM T")
        (change,) = logged(app)
        assert change.new == {"ID": 1, "D": value.date(), "T": value.time(), "S": value}
        assert type(change.new["D"]) is date
        assert type(change.new["T"]) is time

    travels()
    clear(app)
    execute(app, "INSERT INTO T VALUES (1, DATE '0001-01-01', TIME '23:59:59.9999', TIMESTAMP '9999-12-31 00:00:00')")
    (change,) = logged(app)
    assert change.new == {"ID": 1, "D": date(1, 1, 1), "T": time(23, 59, 59, 999900), "S": datetime(9999, 12, 31)}


def at(month, microsecond=0, **offset):
    return datetime(2026, month, 1, 10, 11, 12, microsecond, timezone(timedelta(**offset)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-07-01 10:11:12.1234 Europe/Berlin", at(7, 123400, hours=2)),
        ("2026-01-01 10:11:12 Europe/Berlin", at(1, hours=1)),
        ("2026-01-01 10:11:12 -09:30", at(1, hours=-9, minutes=-30)),
        ("2026-01-01 10:11:12 -00:30", at(1, minutes=-30)),
        ("2026-01-01 10:11:12 Asia/Kathmandu", at(1, hours=5, minutes=45)),
        ("2026-01-01 10:11:12 UTC", at(1)),
    ],
)  # fmt: skip
def test_times_with_a_zone_have_its_offset(app, text, value):
    script(
        app,
        "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, S TIMESTAMP WITH TIME ZONE, T TIME WITH TIME ZONE)",
    )
    listen(app, "T", insert=True, columns=("S", "T"))
    zone = text.rpartition(" ")[2]
    execute(app, f"INSERT INTO T VALUES (1, TIMESTAMP '{text}', TIME '10:11:12.1234 {zone}')")
    (change,) = logged(app)
    assert change.error is None
    assert change.new["S"] == value
    assert change.new["S"].utcoffset() == value.utcoffset()
    assert change.new["T"].replace(tzinfo=None) == time(10, 11, 12, 123400)
    if "Berlin" not in zone:  # of a region the engine takes the offset of its own day
        assert change.new["T"].utcoffset() == value.utcoffset()


CHARSETS = {
    "WIN1252": "cp1252", "ISO8859_1": "latin-1", "WIN1251": "cp1251", "DOS437": "cp437", "KOI8R": "koi8-r",
    "SJIS_0208": "shift_jis", "GB18030": "gb18030", "UNICODE_FSS": "utf-8", "ASCII": "ascii",
}  # fmt: skip


@pytest.mark.parametrize(
    ("length", "kind"),
    [
        *((30, kind) for kind in CHARSETS),
        *((8000, kind) if kind in ("WIN1252", "SJIS_0208") else slow(8000, kind) for kind in CHARSETS),
    ],
)
def test_texts_of_other_character_sets(app, kind, length):
    codec = CHARSETS[kind]
    table = Table(app, f"VARCHAR({length}) CHARACTER SET {kind}")
    values = [value for value in ('a"b\\c', "äöü€ß", "ЖЩ", "日本", "", "\n") if codec_has(codec, value)]
    assert len(values) >= 3
    for value in values:
        assert same(table.travels(value), value)
    clear(app)
    empty, part = f"CAST('' AS VARCHAR({length}) CHARACTER SET {kind})", f"CAST(? AS VARCHAR(5) CHARACTER SET {kind})"
    execute(app, f"INSERT INTO T VALUES (1, LPAD({empty}, {length}, {part}))", values[1])
    (change,) = logged(app)
    assert change.new["V"] == (values[1] * length)[:length]


def codec_has(codec, value):
    try:
        value.encode(codec)
    except UnicodeEncodeError:
        return False
    return True


@pytest.mark.parametrize("charset", ["WIN1252", "UTF8"])
@pytest.mark.parametrize("length", [20, 30000])
def test_texts_of_no_character_set_are_read_in_the_one_that_is_named(app, charset, length):
    script(app, f"CREATE TABLE T (ID INTEGER PRIMARY KEY, V VARCHAR({length}) CHARACTER SET NONE)")
    listen(app, "T", insert=True, columns=("V",), charset=charset)
    values = ['ä"\\€', "", "ä€" * (length // 6)]
    with (
        closing(connections.connect(app.settings.url, charset=charset)) as connection,
        connection.cursor() as cursor,
    ):
        for number, value in enumerate(values):
            cursor.execute("INSERT INTO T VALUES (?, ?)", (number, value))
        connection.commit()
    assert [(change.error, change.new["V"]) for change in logged(app)] == [(None, value) for value in values]


@pytest.mark.parametrize("length", [100, 2000, 32000])
def test_long_bytes(app, length):
    table = Table(app, f"VARBINARY({length})")
    for size in (0, 1, length // 2, length):
        assert table.travels(bytes(range(256)) * (size // 256) + b"x" * (size % 256)) is not None
        assert len(table.travels(b"\x01" * size)) == size


@pytest.mark.parametrize(
    "length", [100, 450, *(pytest.param(each, marks=pytest.mark.slow) for each in (500, 2000, 5000)), 8191]
)
def test_texts_of_any_length(app, length):
    """What is short is in the row, what is long in the BLOB, on both sides of each border."""
    table = Table(app, f"VARCHAR({length}) CHARACTER SET UTF8")
    for size in {
        0,
        1,
        length // 4,
        length // 2,
        length - 1,
        length,
        *(n for n in (1800, 1900, 1950, 2000) if n < length),
    }:
        for letter in ("a", '"', "€", "😀"):
            assert table.travels(letter * size) == letter * size


def test_many_long_columns(app):
    columns = [f"C{number}" for number in range(6)]
    script(
        app,
        "CREATE TABLE T (ID INTEGER PRIMARY KEY, "
        + ", ".join(f"{name} VARCHAR(2500) CHARACTER SET UTF8" for name in columns)
        + ")",
    )
    listen(app, "T", **ALL, columns=columns)
    short, long = dict.fromkeys(columns, "ä"), {name: f'{name}"😀' * 500 for name in columns}
    execute(app, f"INSERT INTO T VALUES (1, {', '.join('?' * 6)})", *short.values())
    execute(app, f"UPDATE T SET {', '.join(f'{name} = ?' for name in columns)}", *long.values())
    execute(app, "DELETE FROM T")
    insert, update, delete = logged(app)
    assert insert.new == update.old == {"ID": 1, **short}
    assert update.new == delete.old == {"ID": 1, **long}
    places = rows(app, "SELECT DATA IS NULL FROM QUEUE_CHANGE ORDER BY ID")
    assert [large for (large,) in places] == [False, True, True]


def test_a_long_key(app):
    script(app, "CREATE TABLE T (A VARCHAR(8000) CHARACTER SET UTF8, B VARCHAR(500) CHARACTER SET UTF8)")
    listen(app, "T", **ALL, key=("A", "B"))
    execute(app, "INSERT INTO T VALUES (?, 'x')", "😀" * 8000)
    execute(app, "UPDATE T SET A = 'short'")
    insert, out, into = logged(app)
    assert insert.key == out.key == out.old == {"A": "😀" * 8000, "B": "x"}
    assert into.key == out.new == {"A": "short", "B": "x"}


def test_a_table_of_many_columns(app):
    columns = [f"C{number}" for number in range(300)]
    script(app, "CREATE TABLE T (ID INTEGER PRIMARY KEY, " + ", ".join(f"{name} VARCHAR(10)" for name in columns) + ")")
    listen(app, "T", **ALL, columns=columns)
    execute(app, "INSERT INTO T (ID, C0, C299) VALUES (1, 'a', 'b')")
    execute(app, "UPDATE T SET C1 = 'c'")
    insert, update = logged(app)
    assert insert.new == {"ID": 1, **dict.fromkeys(columns), "C0": "a", "C299": "b"}
    assert update.new == {**insert.new, "C1": "c"}


def test_quoted_names_domains_identity_and_computed_columns(app):
    script(
        app,
        'CREATE DOMAIN "Geld" AS NUMERIC(10, 2)',
        'CREATE TABLE "Order ""Größe""" ("select" INTEGER GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, '
        '"Preis ""€" "Geld", small VARCHAR(5), "small" VARCHAR(5), "Twice" COMPUTED BY ("Preis ""€" * 2), '
        '"O\'Neil" INTEGER, "a\\b" INTEGER)',
    )
    listen(
        app,
        'Order "Größe"',
        insert=True,
        update=("Preis \"€", "small"),
        columns=("Small", "Twice", "O'Neil", "a\\b"),
        when='new."Preis ""€" > 1 AND new."O\'Neil" IS DISTINCT FROM 5',
    )  # fmt: skip
    execute(app, 'INSERT INTO "Order ""Größe""" ("Preis ""€", "small", SMALL, "a\\b") VALUES (1.5, \'x\', \'y\', 7)')
    execute(app, 'UPDATE "Order ""Größe""" SET SMALL = \'z\'')
    execute(app, 'UPDATE "Order ""Größe""" SET "small" = \'z\'')
    insert, update = logged(app)
    assert insert.new == {
        "select": 1, 'Preis "€': Decimal("1.50"), "small": "x", "SMALL": "y", "Twice": Decimal("3.00"), "O'Neil": None,
        "a\\b": 7,
    }  # fmt: skip
    assert update.old == {**insert.new, "SMALL": "z"}
    assert update.new == {**insert.new, "SMALL": "z", "small": "z"}


@pytest.mark.parametrize(
    ("charset", "connection"),
    [
        ("NONE", "UTF8"), ("WIN1252", "WIN1252"), ("UTF8", "WIN1252"),
        slow("NONE", "WIN1252"), slow("WIN1252", "UTF8"), slow("UTF8", "UTF8"),
    ],
)  # fmt: skip
def test_the_character_sets_of_database_and_connection_do_not_matter(tmp_path, template, charset, connection):
    with ExitStack() as stack:
        is_copy = charset == "UTF8" and SERVER is None
        url = stack.enter_context(database(tmp_path / "old.fdb", template if is_copy else None))
        if not is_copy:
            with closing(connections.connect(url)) as made:
                made.execute_immediate(f"ALTER DATABASE SET DEFAULT CHARACTER SET {charset}")
                made.commit()
        app = stack.enter_context(closing(FBTasks("old", replace(url, options={"charset": connection}))))
        app.migrate()
        script(
            app,
            'CREATE TABLE "Größe" (ID INTEGER PRIMARY KEY, "Maß" VARCHAR(20) CHARACTER SET WIN1252, '
            "N NUMERIC(5, 1), D DATE, B BOOLEAN)",
        )
        listen(
            app,
            "größe" if False else "Größe",
            **ALL,
            columns=("Maß", "N", "D", "B"),
            when="new.\"Maß\" <> 'ö'",
            task="größe",
        )
        execute(app, "INSERT INTO \"Größe\" VALUES (1, ?, 1.5, DATE '2026-01-02', TRUE)", 'ä"\\€')
        (change,) = logged(app)
        assert change.new == {"ID": 1, "Maß": 'ä"\\€', "N": Decimal("1.5"), "D": date(2026, 1, 2), "B": True}
