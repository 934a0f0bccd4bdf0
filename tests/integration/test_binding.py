"""Parameters that are bound without the driver arrive as by the driver, and are refused as it refuses them."""

import datetime
from contextlib import closing
from decimal import Decimal
from unittest import mock

import pytest
from firebird.driver import DatabaseError, interfaces
from hypothesis import example, given
from hypothesis import strategies as st

from fbtasks.firebird.driver import binding

pytestmark = pytest.mark.emptied

TYPES = (
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "VARCHAR(5)",
    "VARBINARY(5)",
    "CHAR(5)",
    "BINARY(5)",
    "TIMESTAMP",
    "DOUBLE PRECISION",
    "NUMERIC(9, 2)",
)
SQL = f"SELECT {', '.join(f'CAST(? AS {kind})' for kind in TYPES)} FROM RDB$DATABASE"
MOMENT = datetime.datetime(2026, 3, 1, 23, 59, 59, 999999)

numbers = st.integers(-(2**70), 2**70)
moments = st.datetimes(datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59))
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
anything = st.one_of(st.none(), st.booleans(), numbers, texts, st.binary(max_size=8), moments, st.just(Decimal("1.25")))


def answer(cursor, statement, values):
    """What the database answers to *values*, or how they are refused."""
    try:
        cursor.execute(statement, values)
        return cursor.fetchall()
    except Exception as error:  # of the driver's, or of Python's where the driver converts
        return type(error), str(error).splitlines()[-1]


def test_values_of_every_type_arrive_as_the_drivers_do(session):
    with session.transaction() as transaction:
        ours, theirs = binding.cursor_of(transaction.driver), transaction.driver.cursor()
        with closing(ours), closing(theirs), ours.prepare(SQL) as first, theirs.prepare(SQL) as second:

            @given(st.tuples(*[anything] * len(TYPES)))
            @example((32767, 2**31 - 1, -(2**63), "ä" * 5, b"\0\1", "abc", b"xyz", MOMENT, 1.5, Decimal("1.25")))
            @example((32768, 1, 1, None, None, None, None, None, None, None))
            @example((1, 1, 1, "ä" * 6, None, None, None, None, None, None))
            @example((1, 1, 1, "x" * 21, None, None, None, None, None, None))
            @example(("12", "13", 1, "", b"", "", b"", None, "1.5", "2.5"))
            @example((True, 1, 1, 5, None, None, None, "2026-01-01", None, None))
            @example((1, 2))
            def same(values):
                assert answer(ours, first, values) == answer(theirs, second, values)

            same()


def test_the_driver_does_not_describe_parameters_again(session):
    values = (7, 2**31 - 1, None, "äöü", b"\0\1", None, None, MOMENT, None, None)
    with session.transaction() as transaction, closing(binding.cursor_of(transaction.driver)) as cursor:
        with mock.patch("firebird.driver.Cursor._pack_input", side_effect=AssertionError):
            cursor.execute(SQL, values)
            seen = cursor.fetchall()
        assert seen == [
            (7, 2**31 - 1, None, "äöü", b"\0\1", None, None, MOMENT.replace(microsecond=999900), None, None)
        ]


def test_a_call_that_goes_well_is_looked_at_with_one_call(session):
    with session.transaction() as transaction, closing(transaction.driver.cursor()) as cursor:
        with mock.patch.object(interfaces.iStatus, "get_state", side_effect=AssertionError("sets of flags")):
            assert len(cursor.execute("SELECT FIRST 20 RDB$FIELD_NAME FROM RDB$FIELDS").fetchall()) == 20
        with pytest.raises(DatabaseError, match=r"Table unknown\n-NOWHERE"):
            cursor.execute("SELECT 1 FROM NOWHERE")
        assert cursor.execute("SELECT 1 FROM RDB$DATABASE").fetchall() == [(1,)]
