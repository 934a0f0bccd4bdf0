"""Progress: what a task says of itself while it runs."""

from __future__ import annotations

from fbtasks.feature import Feature


class Progress(Feature):
    """Progress: what a task says of itself while it runs."""

    name = "progress"
