"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from fbtasks.feature import Feature


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"
