"""SQL takes names for equal that differ in the spaces at their ends, also in unique keys, and Python does not.

So no name that is compared may end in a space. Each text that SQL compares, and each in an index, stands here with who
sees to that: a new one fails the tests until somebody has looked at it.
"""

import re
from pathlib import Path

import pytest
from firebird.driver import DatabaseError
from support.sql import execute, rows

import fbtasks

CHECKED = {
    **dict.fromkeys(
        ("QUEUE", "LAST_QUEUE", "NEXT_QUEUE", "FORMER_QUEUE", "TASK_QUEUE", "IS_IN"),
        "a queue: checks.queue_name, CHECK_CALL",
    ),
    "NAME": "a task, a schedule: checks.is_name, CHECK_CALL; of Celery: names.kept, names.key; a feature: its class",
    "APP": "config._name",
    "EVENT": "subscription.event_name, RAISE_EVENT",
    "DEAD_EXCHANGE": "names.kept",
    "DEAD_ROUTING_KEY": "names.kept",
    "ROUTING_KEY": "names.kept",
    "PART": "names.key",
    "CLAIMED_BY": "names.key",
    "FEATURE": "a feature: its class",
    "ENQUEUED_BY": "the engine, which knows no such user",
    "ID": "a number; of QUEUE_GROUP_SAVED the id of a group, which the database gives",
    "TASK_ID": "a number: texts are found by TASK_HASH",
    "VERSION": "a number; else config._version",
    **dict.fromkeys(("KIND", "STATE", "KNOWN_HASH", "VERSIONS", "PACKAGE"), "our own words"),
}
"""The names of texts that are compared with others, columns and variables, and why none ends in a space."""
INDEXED = {
    "QUEUE_CELERY.NAME", "QUEUE_CELERY_CHORD.NAME", "QUEUE_MSG_EXCHANGE.NAME", "QUEUE_MSG_QUEUE.NAME",
    "QUEUE_DEPTH.QUEUE", "QUEUE_FEEDER.QUEUE", "QUEUE_MINUTE.QUEUE", "QUEUE_NOTE.QUEUE", "QUEUE_PLACE.QUEUE",
    "QUEUE_POLICY.QUEUE", "QUEUE_SHIFT.QUEUE", "QUEUE_STAT.QUEUE", "QUEUE_SUBSCRIPTION.QUEUE", "QUEUE_TASK.QUEUE",
    "QUEUE_VERSION.QUEUE", "QUEUE_SUBSCRIPTION.EVENT", "QUEUE_EXTRA.FEATURE", "QUEUE_FEATURE.NAME",
    "QUEUE_GROUP_SAVED.ID", "QUEUE_PROCESS.KIND", "QUEUE_SCHEMA_STEP.FEATURE",
}  # fmt: skip

TEXT = re.compile(
    r"\b([A-Z_]+) (?:QUEUE_(?:NAME|TEXT|MSG_NAME|LIMIT_NAME|USER|WORD|HASH)"
    r"|(?:VAR)?CHAR\(\d+\)(?: CHARACTER SET (?:ASCII|UTF8))?)\b"
)
COMPARED = re.compile(
    r"(?:\b(?:WHERE|AND|OR|ON|WHEN|NOT)\s+|[(,]\s*)(?:COALESCE\()?(?:\w+\.)?:?([A-Z_]+)"
    r"(?:, \w+\))?\s*(?:=|<>|IN \(|IS (?:NOT )?DISTINCT FROM)(?!\s*['\d-])"
)
SQL = {
    path: re.sub(r"--.*", "", path.read_text())
    for path in sorted(Path(fbtasks.__file__).parent.rglob("*.sql"))
}  # fmt: skip


def test_every_text_that_sql_compares_is_one_without_spaces_at_its_end():
    texts = {match[1] for text in SQL.values() for match in TEXT.finditer(text)}
    assert {"NAME", "QUEUE", "PART", "ORDER_KEY"} <= texts
    compared = {
        match[1]
        for path, text in SQL.items() if path.parent.name != "migrations"
        for match in COMPARED.finditer(re.sub(r"\bSET\s[^;]*?\b(?=WHERE|MATCHING)", "", text))
    }  # fmt: skip
    assert sorted(texts & compared) == sorted(CHECKED)


def test_every_text_in_an_index_is_one_without_spaces_at_its_end(app):
    app.migrate()
    found = rows(
        app,
        "SELECT TRIM(I.RDB$RELATION_NAME) || '.' || TRIM(S.RDB$FIELD_NAME) FROM RDB$INDICES I "
        "JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = I.RDB$INDEX_NAME "
        "JOIN RDB$RELATION_FIELDS R ON R.RDB$RELATION_NAME = I.RDB$RELATION_NAME "
        "AND R.RDB$FIELD_NAME = S.RDB$FIELD_NAME JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = R.RDB$FIELD_SOURCE "
        "WHERE I.RDB$RELATION_NAME STARTING WITH 'QUEUE_' AND F.RDB$FIELD_TYPE IN (14, 37) "
        "AND F.RDB$CHARACTER_SET_ID <> 1",  # OCTETS: hashes
    )
    assert {name for (name,) in found} == INDEXED


@pytest.mark.parametrize(
    "call",
    [
        "FBTASKS.ENQUEUE('add ')",
        "FBTASKS.ENQUEUE(' add')",
        "FBTASKS.ENQUEUE('add', '[]', '{}', NULL, 'default ')",
    ],
)
def test_sql_takes_no_name_with_a_space_at_its_end(app, call):
    app.migrate()
    with pytest.raises(DatabaseError, match=r"without spaces at its ends|is not a queue name"):
        execute(app, f"SELECT ID FROM {call}")


def test_sql_raises_no_event_with_a_space_at_the_end_of_its_name(app):
    app.migrate()
    with pytest.raises(DatabaseError, match="the name of an event must have 1 to 63 letters"):
        execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('paid ')")


def test_ids_and_keys_with_a_space_at_their_end_are_told_apart(app):
    """They are compared by their hashes."""
    app.limit("customer", at_once=1)
    add = app.task(name="add", limits={"customer": "key"}, unique=True)(lambda key: None)
    app.on_event("paid", name="paid")(lambda event: None)
    app.migrate()
    found = [add.apply_async((key,), task_id=key) for key in ("a", "a ")]
    assert len({result.id for result in found}) == 2
    assert [app.AsyncResult(key).id for key in ("a", "a ")] == [result.id for result in found]
    assert len(rows(app, "SELECT DISTINCT OWNER_ID, LANE FROM QUEUE_HOLD")) == 4
    for key in ("a", "a "):
        app.raise_event("paid", 1, order_key=key)
    assert len(rows(app, "SELECT DISTINCT LANE FROM QUEUE_CHANGE")) == 2
