"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ENQUEUING", "FEED", "FEED_BATCHES", "HAS_ROOM", "LINE", "OWNER", "ROOM", "TOOK"})
