"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"DECIDE", "ENDED", "FOLLOWS_RUNNING", "FORGOTTEN", "KEEPS", "REVIVED", "REVIVING"})
