"""A worker deploys the sources of its app's tasks, and says what of them is not deployed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from fbtasks.errors import AuthenticationError
from fbtasks.feature import Every, Worker
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.deploy.applying import undeployed
from fbtasks.firebird.session import Session
from fbtasks.system.showing import sentence

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")


class Deployment(Every):
    """The subscriptions of a worker's app."""

    def __init__(self, app: FBTasks, worker: Worker) -> None:
        super().__init__("looking whether subscriptions are deployed", 60.0, self.look)
        self._app = app
        self._feeds = app.features["sources"].feeds()
        self._polled = {feed.name for feed in self._feeds if feed.source.kind == "poll" and feed.queue in worker.queues}
        """The polls of this worker, which log their own problems."""
        self._command = f"fbtasks subscriptions apply -A {app.path}"
        self._refused: dict[str, str] = {}
        """What was wrong with definitions when they were deployed, by the names of tasks, until that is said."""

    def begin(self, session: Session) -> None:
        """Brings the database in line with the code where the app migrates by itself; else handlers and polls alone.

        Raises :class:`ConfigurationError` when a task is another app's.
        """
        app, done = self._app, None
        if app.settings.migrates:
            try:
                done = subscriptions.apply(app.database, app.name, self._feeds)
            except AuthenticationError as error:
                logger.error("%s", error)
        if done is None:
            self._refused = subscriptions.register(session, app.name, self._feeds)
            return
        self._refused = done.problems
        for step in done.changes:
            logger.info(
                "Subscription %s (%s of %s): %s.", step.name, step.kind, step.source, step.reason or step.action
            )
        others = [each for each in done.unsettled if each.pid != os.getpid()]  # its own have written nothing yet
        if done.changes and others:
            logger.warning("%s. Listed by: %s", subscriptions.describe_unsettled(others), self._command)

    def look(self, session: Session) -> bool:
        """Says what the database does not have as the code has it."""
        problems = undeployed(session, self._app.name, self._feeds) | self._refused
        self._refused = {}
        for name, problem in problems.items():
            if name not in self._polled:
                logger.warning("Subscription %s: %s Run: %s", name, sentence(problem), self._command)
        return False
