"""What Firebird's replication needs of the queue, and whether a copy has what the primary has."""

import json
import os
import re
from pathlib import Path

import pytest
import support
from support.programs import python
from support.sql import rows

import fbtasks
from fbtasks.database import features
from fbtasks.database.packages import triggers, with_hooks
from fbtasks.database.schema import migrations, ours, statements

KEYLESS = """
    SELECT TRIM(R.RDB$RELATION_NAME) FROM RDB$RELATIONS R
    WHERE R.RDB$SYSTEM_FLAG = 0 AND R.RDB$VIEW_BLR IS NULL AND NOT EXISTS(
        SELECT 1 FROM RDB$RELATION_CONSTRAINTS C
        WHERE C.RDB$RELATION_NAME = R.RDB$RELATION_NAME AND C.RDB$CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE'))
"""


@pytest.mark.emptied
def test_every_table_has_a_key(app):
    """The copy finds by it which row was changed: without one the first change of a row stops the replication."""
    assert rows(app, KEYLESS) == []


class Routine:
    """What a procedure, a function or a trigger writes, which rows it changes by a cursor, and what it calls."""

    def __init__(self, text):
        self.text = re.sub(r"--.*|'[^']*'", "", text)
        self.written = set(re.findall(r"\b(?:INSERT INTO|UPDATE|DELETE FROM|MERGE INTO) (QUEUE_\w+)", self.text))
        self.inserted = set(re.findall(r"\b(?:INSERT|MERGE) INTO (QUEUE_\w+)", self.text))
        declared = set(re.findall(r"\bDECLARE (\w+) CURSOR FOR\b", self.text))
        changed = re.findall(r"\b(?:UPDATE|DELETE FROM) (QUEUE_\w+)[^;]*? WHERE CURRENT OF (\w+)", self.text)
        self.by_cursor = {(table, cursor) for table, cursor in changed if cursor in declared}

    def sets(self, table, columns):
        """Whether it sets one of the columns of a table."""
        updates = re.findall(rf"\bUPDATE {table}(?: \w+)? SET ([^;]*)", self.text)
        return any(re.search(rf"(?:^|,)\s*(?:\w+\.)?{column} =", update) for update in updates for column in columns)

    def calls(self, package, known):
        """The routines that it calls."""
        named = re.findall(r"(EXECUTE PROCEDURE )?\b(?:(FBTASKS_\w+)\.)?(\w+)(\()?", self.text)
        called = {(of or package, name) for word, of, name, mark in named if word or of or mark}
        return called.intersection(known)


def routines(app):
    """All that one statement may run, by package (None: a trigger) and name, with the tables of triggers."""
    packages = with_hooks(ours(), map(features.answering, ours()[1:]))
    found = {(package, each.name): Routine(each.body) for package, inside in packages.items() for each in inside}
    fired = {}
    scripts = [part.text(name) for part in ours() for name in migrations(part).values()]
    for statement in (*triggers(), *(each for script in scripts for each in statements(script))):
        if match := re.match(r"CREATE (?:OR ALTER )?TRIGGER (\w+) FOR (\w+)", statement):
            found[None, match[1]] = Routine(statement)
            fired.setdefault(match[2], set()).add((None, match[1]))
    return found, fired


def reached(found, fired, start):
    """What a call of *start* may run."""
    seen, ahead = set(), [start]
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += found[name].calls(name[0], found)
            ahead += [each for table in found[name].written for each in fired.get(table, ())]
    return seen


KEYS = """
    SELECT TRIM(C.RDB$RELATION_NAME), TRIM(S.RDB$FIELD_NAME)
    FROM RDB$RELATION_CONSTRAINTS C JOIN RDB$INDEX_SEGMENTS S ON S.RDB$INDEX_NAME = C.RDB$INDEX_NAME
    WHERE C.RDB$CONSTRAINT_TYPE IN ('PRIMARY KEY', 'UNIQUE')
"""


@pytest.mark.emptied
def test_no_declared_cursor_changes_a_row_that_the_same_statement_may_have_made(app):
    """The copy does not find such a row (5.0.4), and the replication stops; that of a FOR SELECT, or its key, it does.

    The same goes for a row whose key the statement may have changed.
    """
    keys = {}
    for table, column in rows(app, KEYS):
        keys.setdefault(table, set()).add(column)
    found, fired = routines(app)
    assert unsafe(found, fired, keys) == set()


def unsafe(found, fired, keys):
    """Package, routine and name of each cursor that may change what its statement has made."""
    seen = set()
    for caller in found:
        run = reached(found, fired, caller)
        for name in run:
            for table, cursor in found[name].by_cursor:
                if any(table in found[each].inserted or found[each].sets(table, keys.get(table, ())) for each in run):
                    seen.add((*name, cursor))
    return seen


def test_no_other_text_declares_a_cursor():
    """What the test above reads is all that there is."""
    folder = Path(fbtasks.__file__).parent
    texts = [*folder.rglob("*.py"), *folder.rglob("queries.sql"), *folder.rglob("migrations/*.sql")]
    assert [path for path in texts if re.search(r"DECLARE \w+ CURSOR", path.read_text("utf-8"))] == []


SCHEMA = ["QUEUE_COLLECTED", "QUEUE_FEATURE", "QUEUE_GENERATION", "QUEUE_IDENTITY", "QUEUE_SCHEMA", "QUEUE_SCHEMA_STEP"]
"""Tables that are written when a database is made or migrated, before the copy is."""


@pytest.mark.thorough
@pytest.mark.embedded("it configures the replication of the engine in this process")
def test_the_copy_has_what_the_primary_has_and_takes_over(template, tmp_path):
    """Each feature has run once, with the engine's own replication. Then the copy is promoted and adopted."""
    tests = Path(support.__file__).parents[1]
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(tests)}
    run = python(
        "import sys; from support import standby; standby.main(*sys.argv[1:])", tmp_path, template, "", env=env
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert (found["differences"], found["after"], found["said"]) == ({}, "", "")
    assert found["unused"] == SCHEMA
    assert "read-only" in found["standby"]
    assert "fbtasks adopt" in found["promoted"]
    assert (found["read"], found["adopted"]) == (0, 0)
    assert sorted(map(str, found["ran"])) == [
        "['STOCK', 2]", "['STOCK', 3]", "['TAKEN', 2]", "['TAKEN', 3]", "it ran", "it waited", "it was scheduled",
    ]  # fmt: skip
