"""Progress: what a task says of itself while it runs."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Progress(Feature):
    """Progress: what a task says of itself while it runs."""

    name = "progress"
    schema = Path(__file__).with_name("schema")
