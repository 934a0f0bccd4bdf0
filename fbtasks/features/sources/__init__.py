"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ADOPTED", "FEED", "LINE", "LOOK", "NEXT_OWNER", "OWNER", "WAITS_SINCE"})
