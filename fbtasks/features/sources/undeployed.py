"""A worker deploys the sources of its app's tasks, and looks whether they are deployed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from fbtasks.errors import AuthenticationError, ConflictError, StatementRefused
from fbtasks.feature import Every, Worker
from fbtasks.features.sources import managing as subscriptions
from fbtasks.firebird.session import Session
from fbtasks.system.showing import sentence

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")


class Undeployed(Every):
    """The subscriptions of a worker's app."""

    def __init__(self, app: FBTasks, worker: Worker) -> None:
        super().__init__("looking whether subscriptions are deployed", 60.0, self.look)
        self._app = app
        self._worker = worker
        self._feeds = {feed.name: feed for feed in app.features["sources"].feeds()}
        self._kinds = {feed.name: feed.kind for feed in self._feeds.values()}
        self._command = f"fbtasks subscriptions apply -A {app.path}"
        self._refused: dict[str, str] = {}
        """What was wrong with definitions when they were deployed, by the names of tasks."""
        self._just_said: set[str] = set()
        """Those of which that was said a moment ago."""
        self._noted: tuple[int, dict[str, str]] = (0, {})
        """What the database has of this worker, and under which id."""

    def begin(self, session: Session) -> None:
        """Brings the database in line with the code where the app migrates by itself; else handlers and polls alone.

        Raises :class:`ConfigurationError` when a task is another app's.
        """
        app, done = self._app, None
        if app.settings.migrates:
            try:
                done = subscriptions.apply(app.database, app.name, self._feeds.values())
            except AuthenticationError as error:
                logger.error("%s", error)
        if done is None:
            self._refused = subscriptions.register(session, app.name, self._feeds.values())
        else:
            self._refused = dict(done.problems)
        self._just_said = set(self._refused)
        for name, problem in self._refused.items():
            # Of a poll of this worker that is said where it polls.
            if self._kinds[name] != "poll" or self._feeds[name].queue not in self._worker.queues:
                logger.error(
                    "Subscription %s could not be deployed: %s Run: %s", name, sentence(problem), self._command
                )
        for step in done.changes if done is not None else ():
            logger.info(
                "Subscription %s (%s of %s): %s.", step.name, step.kind, step.source, step.reason or step.action
            )
        if done is not None and done.changes and done.unsettled:
            logger.warning("%s. Listed by: %s", subscriptions.describe_unsettled(done.unsettled), self._command)

    def look(self, session: Session) -> bool:
        """Says what of the app is not in the database as its code has it, and notes it there for this worker.

        A statement writes only when that is not what was noted before.
        """
        app, feeds = self._app, self._feeds
        polls = [feeds[name] for name in self._refused if self._kinds[name] == "poll"]
        if polls:  # one that is right by now the worker registers
            found = subscriptions.refusals(session, app.name, polls)
            self._refused = {name: each for name, each in self._refused.items() if self._kinds[name] != "poll"} | found
        undeployed = {name: problem for name, problem in self._refused.items() if self._kinds[name] != "change"}
        changes = [feed for feed in feeds.values() if self._kinds[feed.name] == "change"]
        if changes:
            stale, spoiled = subscriptions.find_stale(session, app.name, changes)
            stale = {name: self._refused.get(name, problem) for name, problem in stale.items()}
            for name, problem in [*stale.items(), *spoiled]:
                if name not in self._just_said:
                    logger.warning("Subscription %s: %s Run: %s", name, sentence(problem), self._command)
            undeployed |= {name: f"{problem.rstrip('.')} ({self._command})" for name, problem in stale.items()}
        self._just_said.clear()
        told = self._worker.id, undeployed
        if told != self._noted and (undeployed or self._noted[1]):
            try:
                subscriptions.note_undeployed(session, self._worker.id, feeds.values(), undeployed)
                self._noted = told
            except (ConflictError, StatementRefused) as error:
                logger.warning("That cannot be noted in the database: %s", error)
        return False
