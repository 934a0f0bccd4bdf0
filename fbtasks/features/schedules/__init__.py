"""Periodic tasks."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Schedules(Feature):
    """Periodic tasks."""

    name = "schedules"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"NEXT_TICK"})
