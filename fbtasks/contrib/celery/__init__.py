"""Celery over the database: a transport of kombu, and a backend for results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fbtasks.feature import Duty, Every, Feature, Worker


class Celery(Feature):
    """Celery over the database: a transport of kombu, and a backend for results."""

    name = "celery"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"PROCESS_LEFT"})

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Forgets what is over."""
        from fbtasks.contrib.celery.store.keyvalues import prune

        yield Every("forgetting what Celery has stored", 60.0, prune, at_start=False)
