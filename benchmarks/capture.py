"""What the trigger of a subscription costs the transaction that writes a row, beside the same row without it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial
from statistics import median
from typing import Any, Final

from benchmarks.bench import Bench
from benchmarks.ceiling import timed
from benchmarks.figures import Sample
from benchmarks.internals import connect
from benchmarks.scratch import scratch_database
from benchmarks.stopping import held
from fbtasks import FBTasks
from fbtasks.features.sources import managing as subscriptions

PLAIN: Final = "PLAIN_ORDERS"
CAPTURED: Final = "CAPTURED_ORDERS"
"""The table with the trigger."""
TURNS: Final = 12
"""How often many rows are written to each table."""

_TABLE: Final = """
    CREATE TABLE {} (
        ID INTEGER NOT NULL PRIMARY KEY, CUSTOMER VARCHAR(40), TOTAL NUMERIC(12, 2), CREATED TIMESTAMP)
    """


def capture(bench: Bench) -> Iterator[Sample]:
    """Rows in a transaction each, and many rows in one: into two tables in turns, which differ in the trigger alone."""
    scale = bench.scale
    with scratch_database(bench.database.url) as url:
        prepare(url)
        with held(), closing(connect(url)) as connection:
            plain, captured = _Table(connection, PLAIN), _Table(connection, CAPTURED)
            with closing(plain), closing(captured):
                yield from _compared(plain, captured, "single", "a transaction for each row", scale.bare // 10, 10, 1)
                what = f"{scale.rows:,} rows in a transaction"
                yield from _compared(plain, captured, "many", what, TURNS, 1, scale.rows)


def prepare(url: str) -> None:
    """Creates the two tables, and the trigger of a subscription to all four columns, whose task nobody calls."""
    with closing(FBTasks("fbtasks-bench-capture", url)) as app:
        app.migrate()
        with held(), closing(connect(url)) as connection:
            for table in (PLAIN, CAPTURED):
                connection.execute_immediate(_TABLE.format(table))
            connection.commit()
        app.on_change(CAPTURED, insert=True, columns=("CUSTOMER", "TOTAL", "CREATED"), name="capture")(print)
        subscriptions.apply(app.database, app.name, app.features["sources"].feeds())


class _Table:
    """Writes rows through the driver, with a statement that is prepared once."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        self._insert = self._cursor.prepare(f"INSERT INTO {name} (ID, CUSTOMER, TOTAL, CREATED) VALUES (?, ?, ?, ?)")
        self._last = 0
        self.write(1)

    def write(self, rows: int) -> None:
        """Writes *rows* rows in a transaction."""
        for number in range(self._last + 1, self._last + rows + 1):
            created = datetime(2026, 1, 1) + timedelta(seconds=number)
            values = (number, f"Customer {number}", Decimal(number) / 100, created)
            self._cursor.execute(self._insert, values)
        self._connection.commit()
        self._last += rows

    def close(self) -> None:
        """Frees the statement."""
        self._insert.free()
        self._cursor.close()


def _compared(
    plain: _Table, captured: _Table, key: str, what: str, turns: int, transactions: int, rows: int
) -> Iterator[Sample]:
    """In each turn *transactions* of *rows* rows go to the one table, and as many to the other."""
    spent: dict[_Table, list[float]] = {plain: [], captured: []}
    for number in range(turns):
        for table in (plain, captured) if number % 2 else (captured, plain):
            with held():
                spent[table] += [timed(partial(table.write, rows)) / rows for _ in range(transactions)]
    without, with_it = median(spent[plain]), median(spent[captured])
    yield Sample(f"capture/{key}/plain", f"row of four columns, {what}", 1e6 * without, "us a row")
    yield Sample(f"capture/{key}/captured", f"row of four columns, captured, {what}", 1e6 * with_it, "us a row")
    yield Sample(f"capture/{key}/ratio", f"captured / not, {what} (medians)", with_it / without, "")
