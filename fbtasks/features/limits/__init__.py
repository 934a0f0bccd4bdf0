"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from fbtasks.feature import Feature


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"
