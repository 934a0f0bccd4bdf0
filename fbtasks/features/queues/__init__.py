"""Queues: how much they may hold, when their tasks may run, and how those age."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fbtasks.errors import ConfigurationError, QueueFull
from fbtasks.feature import Deployed, Duty, Every, Feature, Worker
from fbtasks.features.queues.definition import QueueDefinition, QueueOptions, define_queue
from fbtasks.features.queues.room import QueueRoom
from fbtasks.system import checks
from fbtasks.tasks.call import Batch

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session
    from fbtasks.queue.results import QueueRow


class Queues(Feature):
    """Queues: how much they may hold, when their tasks may run, and how those age."""

    name = "queues"
    schema = Path(__file__).with_name("schema")

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        super().bind(app)
        self.definitions: dict[str, QueueDefinition] = {}
        """The app's queues by their names."""
        self._room = QueueRoom(app, self.definitions)

    def define(self, name: str, options: Mapping[str, Any]) -> QueueDefinition:
        """Defines a queue of the app. Raises :class:`ConfigurationError` for options that cannot be."""
        checks.queue_name("name", name)
        self.app.enqueuer.check_queue(name)
        definition = define_queue(name, QueueOptions(**options), self.app.settings.zone_name)
        if self.definitions.setdefault(name, definition) != definition:
            raise ConfigurationError(
                f"the queue {name!r} is defined twice in the app {self.app.name!r}: keep one of them."
            )
        return definition

    def ready(self, batch: Batch | None) -> None:
        """Brings in what the app says of the queues of *batch*, where the database knows nothing of them yet."""
        if self.definitions:
            self._room.check_known(self.definitions if batch is None else {call.queue for call in batch})

    def refused(self, error: Exception, batch: Batch) -> bool:
        """Waits for room where a queue of *batch* is full, and the app says that its calls wait."""
        return isinstance(error, QueueFull) and self._room.wait(error, batch)

    def close(self) -> None:
        """Stops listening for room; calls that wait make a last attempt."""
        self._room.close()

    def forget(self) -> None:
        """Forgets which queues the former database knew."""
        self._room.forget()

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Keeps places and hours right."""
        from fbtasks.features.queues.duty import audit

        yield Every("looking after the places and the hours of queues", 60.0, audit, at_start=False)

    def deploy(self, session: Session) -> Deployed:
        """Brings in what the app says of its queues."""
        from fbtasks.features.queues.duty import sync_queues

        changed = sync_queues(session, self.app.name, self.definitions.values())
        lines = [f"The limit and the window of the queue {queue} are those of this app now." for queue in changed]
        summary = f"The limits and windows of {', '.join(changed)} are those of the app." if changed else ""
        return Deployed(changed, lines, summary)

    def describe_queues(self, session: Session, rows: dict[str, QueueRow]) -> None:
        """Puts their bounds, windows and ages into *rows*."""
        from fbtasks.features.queues.store import describe

        describe(session, rows)
