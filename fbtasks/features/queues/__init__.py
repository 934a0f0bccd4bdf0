"""Queues: how much they may hold, when their tasks may run, and how those age."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Deployed, Feature

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.results import QueueRow


class Queues(Feature):
    """Queues: how much they may hold, when their tasks may run, and how those age."""

    name = "queues"
    schema = Path(__file__).with_name("schema")

    def deploy(self, session: Session) -> Deployed:
        """Brings in what the app says of its queues."""
        from fbtasks.features.queues.duty import sync_queues

        changed = sync_queues(session, self.app.name, self.app.queues.values())
        lines = [f"The limit and the window of the queue {queue} are those of this app now." for queue in changed]
        summary = f"The limits and windows of {', '.join(changed)} are those of the app." if changed else ""
        return Deployed(changed, lines, summary)

    def describe_queues(self, session: Session, rows: dict[str, QueueRow]) -> None:
        """Puts their bounds, windows and ages into *rows*."""
        from fbtasks.features.queues.store import describe

        describe(session, rows)
