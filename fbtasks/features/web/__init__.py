"""A dashboard: what the queue holds and has done, for people."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Web(Feature):
    """A dashboard, and what workers write down for it."""

    name = "web"
    schema = Path(__file__).with_name("schema")
