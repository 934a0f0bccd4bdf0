"""How tables are found by the names that definitions have for them: by an index, however many tables there are."""

import re

import pytest
from support.capture import script

from fbtasks.database.packages import queries
from fbtasks.errors import TaskDefinitionError
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.firebird.session import Session


@pytest.fixture
def tables(app):
    """Two tables whose names differ in capitals alone, one with a quote in its name, and one with the longest name."""
    for name in ("ORDERS", "Orders", 'A""B', "L" * 63):
        script(app, f'CREATE TABLE "{name}" (ID INTEGER NOT NULL PRIMARY KEY)')
    return app


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("orders", "ORDERS"),
        ("ORDERS", "ORDERS"),
        ("Orders", "Orders"),
        ('"Orders"', "Orders"),
        ('"A""B"', 'A"B'),
        ("l" * 63, "L" * 63),
    ],
)
def test_a_table_is_found_as_it_is_quoted_or_in_capitals(tables, name, found):
    with tables.database.session() as session:
        table = Catalog(session).describe(name)
    assert (table.name, table.primary_key) == (found, ("ID",))


@pytest.mark.parametrize("name", ['"orders"', "ORDERS ", "", '""', "L" * 64, "ö" * 200])
def test_a_name_of_no_table_is_refused(tables, name):
    with (
        tables.database.session() as session,
        pytest.raises(TaskDefinitionError, match=f"^the database has no table {re.escape(repr(name))}"),
    ):
        Catalog(session).describe(name)


def test_the_list_of_tables_is_read_once_and_for_names_that_are_not_found_alone(tables, monkeypatch):
    read, asked = Session.read, []

    def noted(session, name, *params):
        asked.append(name)
        return read(session, name, *params)

    monkeypatch.setattr(Session, "read", noted)
    with tables.database.session() as session:
        catalog = Catalog(session)
        catalog.describe("orders")
        assert "sql_tables" not in asked
        for name in ("ordres", "ORDER"):
            with pytest.raises(TaskDefinitionError, match="Did you mean 'ORDERS'"):
                catalog.describe(name)
    assert asked.count("sql_tables") == 1


@pytest.mark.parametrize("name", ["source_relations", "source_columns", "source_primary_key", "poll_indexed"])
def test_what_is_read_of_a_table_is_found_by_indexes(app, name):
    """Else it would take longer the more tables the database has."""
    with app.connect() as connection, connection.cursor() as cursor:
        statement = cursor.prepare(queries()[name])
        plan = statement.detailed_plan
        statement.free()
    assert "Full Scan" not in plan, plan
