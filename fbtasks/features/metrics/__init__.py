"""Metrics for Prometheus: of the database by a command, and of each worker that is told to serve them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fbtasks.errors import ConfigurationError
from fbtasks.feature import Duty, Feature, Worker

if TYPE_CHECKING:
    from fbtasks.sheet import Sheet


class Metrics(Feature):
    """Metrics: nothing in the database, and nothing in a worker without ``--metrics-port``."""

    name = "metrics"

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Serves the metrics of a worker that is told to. Raises :class:`ConfigurationError` where that cannot be."""
        given = worker.options.of_features
        if "metrics_port" not in given:
            if "metrics_host" in given:
                raise ConfigurationError("--metrics-host has no effect without --metrics-port.")
            return ()
        with needs_extra():
            from fbtasks.features.metrics.duty import WorkerMetrics
        return (WorkerMetrics(self.app, worker, given.get("metrics_host", "127.0.0.1"), given["metrics_port"]),)

    def sheets(self) -> Sequence[Sheet]:
        """Returns those of the database, for Prometheus."""
        from fbtasks.features.metrics.sheets import MetricsSheet

        return [MetricsSheet(self.app)]


@contextmanager
def needs_extra() -> Iterator[None]:
    """For the block, which imports what the extra ``metrics`` brings. Raises :class:`ConfigurationError` without it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise ConfigurationError(
            "metrics need prometheus_client, which is not installed: pip install prometheus_client"
        ) from error
