"""Celery over the database: a transport of kombu, and a backend for results."""

from __future__ import annotations

from pathlib import Path

from fbtasks.feature import Feature


class Celery(Feature):
    """Celery over the database: a transport of kombu, and a backend for results."""

    name = "celery"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"PROCESS_LEFT"})
