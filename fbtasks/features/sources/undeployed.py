"""A worker deploys the sources of its app's tasks, and looks whether they are deployed."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from fbtasks.errors import AuthenticationError, ConflictError, StatementRefused
from fbtasks.feature import Every, Worker
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.subscription import Kind
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
        self._changes = [feed for feed in self._feeds.values() if feed.subscription.kind == "change"]
        polled = (feed for feed in self._feeds.values() if feed.subscription.kind == "poll")
        self._polled = {feed.name for feed in polled if feed.queue in worker.queues}
        """Polls of this worker, which say themselves why they fail."""
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
        app = self._app
        if app.settings.migrates:
            try:
                self._apply()
                return
            except AuthenticationError as error:
                logger.error("%s", error)
        self._take_refused(subscriptions.register(session, app.name, self._feeds.values()))

    def _apply(self) -> None:
        app = self._app
        done = subscriptions.apply(app.database, app.name, self._feeds.values())
        self._take_refused(done.problems)
        for step in done.changes:
            logger.info(
                "Subscription %s (%s of %s): %s.", step.name, step.kind, step.source, step.reason or step.action
            )
        if done.changes and done.unsettled:
            logger.warning("%s. Listed by: %s", subscriptions.describe_unsettled(done.unsettled), self._command)

    def _take_refused(self, problems: Mapping[str, str]) -> None:
        self._refused = dict(problems)
        self._just_said = set(self._refused)
        for name, problem in self._refused.items():
            if name not in self._polled:
                logger.error(
                    "Subscription %s could not be deployed: %s Run: %s", name, sentence(problem), self._command
                )

    def look(self, session: Session) -> bool:
        """Says what of the app is not in the database as its code has it, and notes it there for this worker.

        A statement writes only when that is not what was noted before.
        """
        if not (self._changes or self._refused or self._noted[1]):
            return False
        undeployed = self._of_kind("event") | self._refused_polls(session)
        if self._changes:
            undeployed |= self._undeployed_changes(session)
        self._just_said.clear()
        self._note(session, self._worker.id, undeployed)
        return False

    def _undeployed_changes(self, session: Session) -> dict[str, str]:
        found = subscriptions.find_stale(session, self._app.name, self._changes)
        undeployed = {name: self._refused.get(name, problem) for name, problem in found.undeployed.items()}
        for name, problem in [*undeployed.items(), *found.spoiled]:
            if name not in self._just_said:
                logger.warning("Subscription %s: %s Run: %s", name, sentence(problem), self._command)
        return {name: f"{problem.rstrip('.')} ({self._command})" for name, problem in undeployed.items()}

    def _refused_polls(self, session: Session) -> dict[str, str]:
        """Returns what is still wrong with polls that were refused; one that is right by now the worker registers."""
        refused = self._of_kind("poll")
        if not refused:
            return {}
        found = subscriptions.refusals(session, self._app.name, [self._feeds[name] for name in refused])
        for name in refused.keys() - found.keys():
            del self._refused[name]
        return found

    def _of_kind(self, kind: Kind) -> dict[str, str]:
        return {name: problem for name, problem in self._refused.items() if self._feeds[name].subscription.kind == kind}

    def _note(self, session: Session, worker_id: int, undeployed: dict[str, str]) -> None:
        if self._noted == (worker_id, undeployed) or not (self._noted[1] or undeployed):
            return
        try:
            subscriptions.note_undeployed(session, worker_id, self._app.name, self._feeds.values(), undeployed)
            self._noted = worker_id, undeployed
        except (ConflictError, StatementRefused) as error:
            logger.warning("That cannot be noted in the database: %s", error)
