"""What Firebird's replication needs of the queue, and whether a copy has what the primary has."""

import pytest
from support.sql import rows

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
