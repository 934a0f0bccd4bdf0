"""Periodic tasks."""

from __future__ import annotations

from fbtasks.feature import Feature


class Schedules(Feature):
    """Periodic tasks."""

    name = "schedules"
