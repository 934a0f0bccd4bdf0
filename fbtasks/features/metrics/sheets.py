"""The metrics of the database as a page of dashboards."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fbtasks.features.metrics import needs_extra
from fbtasks.sheet import Sheet

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class MetricsSheet(Sheet):
    """No list: it answers Prometheus, as ``fbtasks metrics`` does."""

    name = "metrics"

    def __init__(self, app: FBTasks) -> None:
        self._app = app

    @cached_property
    def served(self) -> Callable[[Any, Any], Any]:
        """The WSGI app that answers. Raises :class:`ConfigurationError` without the extra ``metrics``."""
        with needs_extra():
            from prometheus_client import CollectorRegistry, make_wsgi_app

            from fbtasks.features.metrics.operations import DatabaseMetrics
            from fbtasks.features.metrics.server import logger
        registry = CollectorRegistry()
        registry.register(DatabaseMetrics(self._app.database, logger.warning))
        return make_wsgi_app(registry)
