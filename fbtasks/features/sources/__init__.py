"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from fbtasks.feature import Feature


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"
