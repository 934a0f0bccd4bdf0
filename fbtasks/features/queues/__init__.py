"""Queues: how much they may hold, when their tasks may run, and how those age."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Queues(Feature):
    """Queues: how much they may hold, when their tasks may run, and how those age."""

    name = "queues"
    schema = Path(__file__).with_name("schema")
