"""Queues: how much they may hold, when their tasks may run, and how those age."""

from __future__ import annotations

from fbtasks.feature import Feature


class Queues(Feature):
    """Queues: how much they may hold, when their tasks may run, and how those age."""

    name = "queues"
