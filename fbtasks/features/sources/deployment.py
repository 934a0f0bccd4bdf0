"""A worker deploys the sources of its app's tasks, and says what of them is not deployed."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from fbtasks.errors import AuthenticationError
from fbtasks.feature import Every, Worker
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.deploy.applying import undeployed
from fbtasks.features.sources.feeds import Feed
from fbtasks.features.sources.store.subscriptions import live
from fbtasks.firebird.session import Session
from fbtasks.system.showing import command_line, sentence

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger("fbtasks.worker")
PERIOD: Final = 60.0
"""Seconds between two looks."""


class Deployment(Every):
    """The subscriptions of a worker's app."""

    def __init__(self, app: FBTasks, worker: Worker) -> None:
        super().__init__("looking whether subscriptions are deployed", PERIOD, self.look)
        self._app = app
        self._feeds = app.features["sources"].feeds()
        self._polled = {feed.name for feed in self._feeds if feed.source.kind == "poll" and feed.queue in worker.queues}
        """The polls of this worker, which log their own problems and register again by themselves."""
        self._makes_triggers = app.settings.migrates
        self._refused: dict[str, str] = {}
        """Why definitions were refused at the start, by the names of tasks, until they are deployed."""
        self._found: dict[str, str] = {}
        """The hashes of the definitions that the database had when some were refused, by the names of tasks."""

    def begin(self, session: Session) -> None:
        """Brings the database in line with the code where the app migrates by itself; else handlers and polls alone.

        Raises :class:`ConfigurationError` when a task is another app's.
        """
        self._refused = self._deploy(session, self._feeds)
        for name in self._polled:
            self._refused.pop(name, None)
        if self._refused:
            self._found = _hashes(session)

    def _deploy(self, session: Session, feeds: Collection[Feed], *, alone: bool = False) -> dict[str, str]:
        """Deploys *feeds*; with *alone* no others. Returns what is wrong with some, by the names of tasks."""
        app, done = self._app, None
        if self._makes_triggers:
            try:
                done = subscriptions.apply(app.database, app.name, feeds, alone=alone)
            except AuthenticationError as error:
                logger.error("%s", error)
                self._makes_triggers = False
        if done is None:
            return subscriptions.register(session, app.name, feeds, alone=alone)
        for step in done.changes:
            logger.info(
                "Subscription %s (%s of %s): %s.", step.name, step.kind, step.source, step.reason or step.action
            )
        others = [each for each in done.unsettled if each.pid != os.getpid()]  # its own have written nothing yet
        if done.changes and others:
            logger.warning("%s. Listed by: %s", subscriptions.describe_unsettled(others), self._command())
        return done.problems

    def look(self, session: Session) -> bool:
        """Deploys what was refused for a reason that is gone. Says what the database does not have as the code has it.

        A definition that another process has deployed meanwhile stays: its code may be newer.
        """
        problems = undeployed(session, self._app.name, self._feeds)
        again = {name for name, reason in self._refused.items() if problems.get(name, reason) != reason}
        if again:
            found = _hashes(session)
            again = {name for name in again if found.get(name) == self._found.get(name)}
            refused = self._deploy(session, [feed for feed in self._feeds if feed.name in again], alone=True)
            problems = {name: each for name, each in problems.items() if name not in again} | refused
        self._refused = {name: problems[name] for name in self._refused.keys() & problems.keys()}
        for name, problem in problems.items():
            if name not in self._polled:
                logger.warning("Subscription %s: %s Run: %s", name, sentence(problem), self._command())
        return False

    def _command(self) -> str:
        return command_line("fbtasks subscriptions apply -A {}", self._app.path)


def _hashes(session: Session) -> dict[str, str]:
    """Returns the hashes of the definitions that the database has, by the names of tasks."""
    return {row.name: row.hash for row in live(session)}
