"""Sources of work in the database: changes of tables, events, and polled tables."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.feature import Duty, Every, Feature, Worker


class Sources(Feature):
    """Sources of work in the database: changes of tables, events, and polled tables."""

    name = "sources"

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Polls tables, hands on events, and looks whether all is deployed."""
        from fbtasks.features.sources.duty import Polling, forget_events
        from fbtasks.features.sources.undeployed import Undeployed

        if polling := Polling(self.app, worker):
            yield polling
        yield Every("forgetting events, or handing them on", 600.0, forget_events, feeds=True)
        yield Undeployed(self.app, worker)
