"""Definitions of ``poll_table``, and how they go with a table: without a database."""

import pytest

from fbtasks import FBTasks, Row
from fbtasks.errors import ConfigurationError, SerializationError, TaskDefinitionError
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import tables
from fbtasks.features.sources.store.poll_statements import Statements
from fbtasks.features.sources.store.polls import Shape, resolve
from fbtasks.features.sources.store.tables import Column, Table

STATUS = {"status": "S", "ready": "R", "done": "D", "failed": "E"}
COLUMNS = (
    Column("ID", tables.BIGINT, nullable=False),
    Column("A", tables.VARCHAR, length=10, charset="UTF8", width=4, nullable=False),
    Column("S", tables.CHAR, length=1, charset="UTF8", width=4),
    Column("WIDE", tables.VARCHAR, length=30, charset="UTF8", width=4),
    Column("CODE", tables.SMALLINT),
    Column("ERR", tables.VARCHAR, length=100, charset="WIN1252"),
    Column("NOTES", tables.BLOB),
    Column("X", tables.DOUBLE),
    Column("LEGACY", tables.VARCHAR, length=10, charset="NONE"),
    Column("TWICE", tables.BIGINT, computed=True),
    Column("LONG", tables.VARCHAR, length=600, charset="UTF8", width=4),
)
KEYED = Table("INBOX", COLUMNS, ("ID",), frozenset({"UTF8", "WIN1252"}))
BARE = KEYED._replace(primary_key=())


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"table": ""}, ConfigurationError, "table '' must be text"),
        ({"key": ()}, ConfigurationError, r"key \(\) names no column"),
        ({"key": "ID", "sequence": "N"}, TaskDefinitionError, "key= and sequence= both name"),
        ({"ready": "R"}, TaskDefinitionError, r"ready='R' is a value of a status column. Name it: status='STATUS'"),
        ({"status": "S"}, TaskDefinitionError, "status='S' needs ready= as well"),
        ({"status": "S", "ready": "R"}, TaskDefinitionError, "needs done= as well"),
        ({"status": "S", "ready": "R", "done": "D"}, TaskDefinitionError, "needs failed= as well"),
        ({**STATUS, "delete": True}, TaskDefinitionError, "delete=True deletes a row that is done.* Leave done= out"),
        ({**STATUS, "done": "R"}, TaskDefinitionError, "ready= and done= are both 'R'"),
        ({**STATUS, "taken": "D"}, TaskDefinitionError, "taken= and done= are both 'D'"),
        ({**STATUS, "taken": 1}, TaskDefinitionError, "must be all texts or all numbers"),
        ({**STATUS, "ready": ""}, ConfigurationError, "ready '' must be what the status column holds"),
        ({**STATUS, "ready": True}, ConfigurationError, "ready True must be what the status column holds"),
        ({**STATUS, "ready": b"R"}, ConfigurationError, "ready b'R' must be what"),
        ({"sequence": "ID", "error": "ERR"}, TaskDefinitionError, "error='ERR' cannot be written"),
        ({"delete": 1}, ConfigurationError, "delete 1 must be True or False"),
        ({"when": " "}, ConfigurationError, "when ' ' is blank"),
        ({"columns": 5}, ConfigurationError, "columns 5 must be a list"),
        ({"order_by": (1,)}, ConfigurationError, "order_by holds 1"),
        ({"every": 5}, ConfigurationError, r"every 5 must be the seconds from one look to the next"),
        ({"every": (5, 0.1)}, ConfigurationError, "not above the second"),
        ({"every": (0.001, 1)}, ConfigurationError, "0.01 at the least"),
        ({"every": (0, 1)}, ConfigurationError, "every 0 must be a number of seconds above 0"),
        ({"every": ("a", 1)}, ConfigurationError, "every 'a' must be a number of seconds"),
        ({"every": (1, float("nan"))}, ConfigurationError, "every nan must be"),
    ],
)
def test_what_cannot_be_a_definition_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        PollSource(**{"table": "INBOX", **options})


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        (KEYED, {"key": "IDD"}, "has no column 'IDD'. Did you mean 'ID'"),
        (KEYED, STATUS, "taken= is missing"),
        (BARE, {**STATUS, "taken": "T"}, "has no primary key, so rows that are 'T' could not be told apart. Name key="),
        (BARE, STATUS, "cannot name a task, for which it needs 27 characters. Make it longer, or name key= and taken="),
        (BARE, {}, "nothing would show which rows were handled. Give one of key=, status=, sequence= and delete=True"),
        (KEYED, {**STATUS, "taken": "TT"}, r"has 1 character: taken='TT' is too long for it"),
        (KEYED, {**STATUS, "status": "CODE", "taken": "T"}, "holds whole numbers of 16 bits: ready='R' is none"),
        (
            KEYED,
            {"status": "CODE", "ready": 0, "taken": 1, "done": 2, "failed": 40_000},
            "16 bits: failed=40000 is none",
        ),
        (KEYED, {"status": "S", "ready": 0, "taken": 1, "done": 2, "failed": 3}, "holds texts: give ready='0'"),
        (
            KEYED,
            {**STATUS, "status": "TWICE", "taken": "T"},
            "must be one of texts or whole numbers that can be changed",
        ),
        (KEYED, {**STATUS, "status": "ID", "taken": "T"}, "and not of the key"),
        (KEYED, {**STATUS, "status": "NOTES", "taken": "T"}, "must be one of texts or whole numbers"),
        (KEYED, {**STATUS, "taken": "T", "error": "S"}, "the error column 'S' .* none of the key or the status"),
        (KEYED, {**STATUS, "taken": "T", "error": "CODE"}, "the error column 'CODE'"),
        (BARE, {"delete": True, "columns": "A", "error": "ERR"}, "error='ERR' cannot be written: the row is not found"),
        (KEYED, {"key": "X"}, "'X' cannot be of a key: texts of its values are not exact"),
        (KEYED, {"key": "LONG"}, "'LONG' is too long for a key: 2000 bytes"),
        (KEYED, {"sequence": "A"}, "sequence='A' must be a column of whole numbers"),
        (KEYED, {"columns": "NOTES"}, "'NOTES' of 'INBOX' is a BLOB"),
        (BARE, {"delete": True}, "'NOTES' of 'INBOX' is a BLOB"),
        (KEYED, {"columns": "LEGACY"}, r"CHARACTER SET NONE.*poll_table\(..., charset='WIN1252'\)"),
        (KEYED, {**STATUS, "status": "LEGACY", "taken": "ж"}, r"NONE, .*Say it: poll_table\(..., charset='WIN1252'\)"),
        (
            KEYED,
            {**STATUS, "status": "LEGACY", "taken": "ж", "charset": "WIN1252"},
            "has CHARACTER SET WIN1252, which does not have all letters of taken='ж'",
        ),
        (KEYED, {**STATUS, "status": "ERR", "taken": "ж"}, "WIN1252, which does not have all letters of taken='ж'"),
        (
            KEYED,
            {**STATUS, "status": "LEGACY", "taken": "ж" * 6, "charset": "UTF8"},
            "has 10 characters: taken='жжжжжж' is too long for it",
        ),
        (KEYED, {**STATUS, "taken": "T", "error": "LEGACY"}, "'LEGACY' of 'INBOX' has CHARACTER SET NONE"),
        (KEYED, {"when": "LEGACY = 'ж'"}, "'LEGACY' of 'INBOX' has CHARACTER SET NONE"),
        (KEYED, {"order_by": "NOTES"}, "'NOTES' cannot be sorted by"),
    ],
)
def test_what_does_not_go_with_the_table_is_refused(table, options, said):
    with pytest.raises(TaskDefinitionError, match=said):
        resolve(PollSource(**{"table": "INBOX", **options}), table)


@pytest.mark.parametrize(
    ("table", "options", "shape", "privileges"),
    [
        (KEYED, {**STATUS, "taken": "T"}, Shape.STATUS, ("SELECT", "UPDATE")),
        (BARE, {**STATUS, "taken": "T", "sequence": "ID"}, Shape.STATUS, ("SELECT", "UPDATE")),
        (
            KEYED,
            {"status": "S", "ready": "R", "taken": "T", "failed": "E", "delete": True},
            Shape.STATUS,
            ("SELECT", "UPDATE", "DELETE"),
        ),
        (KEYED, {}, Shape.KEPT, ("SELECT",)),
        (KEYED, {"error": "ERR"}, Shape.KEPT, ("SELECT", "UPDATE")),
        (BARE, {"key": ("A", "ID")}, Shape.KEPT, ("SELECT",)),
        (KEYED, {"sequence": "id"}, Shape.SEQUENCE, ("SELECT",)),
        (KEYED, {"delete": True}, Shape.DELETE, ("SELECT", "UPDATE", "DELETE")),
        (BARE, {"delete": True, "columns": ("A",)}, Shape.REMOVE, ("SELECT", "UPDATE", "DELETE")),
        (BARE, {**STATUS, "status": "WIDE", "columns": "A"}, Shape.NAMED, ("SELECT", "UPDATE")),
    ],
)
def test_the_shape_follows_from_definition_and_table(table, options, shape, privileges):
    poll = resolve(PollSource(**{"table": "INBOX", **options}), table)
    assert poll.shape is shape
    statements = Statements(7, poll, 1, 0)
    assert bool(statements.settle) == poll.settles == (shape not in (Shape.SEQUENCE, Shape.REMOVE))
    written = statements.take + statements.settle
    assert ("DELETE FROM" in written) == ("DELETE" in privileges)
    assert ("FOR UPDATE" in written) == ("UPDATE" in privileges)


def test_options_of_the_decorator():
    app = FBTasks("x", "firebird:///nowhere.fdb")

    @app.poll_table("INBOX", key="ID", delete=True, queue="mail", max_retries=2, every=[1, 2])
    def handle(row):
        return row

    source = handle.subscription.source
    assert (handle.subscription.source.kind, handle.subscription.most, source.every, source.key) == (
        "poll",
        1,
        (1, 2),
        ("ID",),
    )
    assert (handle.options.queue, handle.options.max_retries, handle.options.ignore_result) == ("mail", 2, True)
    for wrong in ("statsu", "coalesce", "batch"):
        with pytest.raises(TaskDefinitionError, match=f"option of poll_table.*'{wrong}'|'{wrong}'"):
            app.poll_table("INBOX", **{wrong: True})


def test_a_row_is_read_as_it_was_written():
    app = FBTasks("x", "firebird:///nowhere.fdb")
    task = app.poll_table("INBOX", key="ID")(lambda row: row)
    row = task.subscription.source.read({"k": {"ID": 1}, "v": {"A": "a"}})
    assert row == Row("INBOX", {"ID": 1}, {"ID": 1, "A": "a"})
    with pytest.raises(AttributeError):
        row.table = "OTHER"
    for wrong in ({}, [], {"k": 1, "v": {}}, None):
        with pytest.raises(SerializationError, match="a row of 'INBOX' cannot be read"):
            task.subscription.source.read(wrong)
