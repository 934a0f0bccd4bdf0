"""What a worker does for the sources of its app's tasks: it deploys them, or looks whether they are deployed."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fbtasks.app import FBTasks
from fbtasks.errors import AuthenticationError
from fbtasks.firebird.session import Session
from fbtasks.services import subscriptions

logger = logging.getLogger("fbtasks.worker")


class Sources:
    """The subscriptions of a worker's app."""

    def __init__(self, app: FBTasks) -> None:
        self._app = app
        self._feeds = app.feeds()
        self._watches = any(feed.subscription.kind == "change" for feed in self._feeds)

    def deploy(self) -> None:
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
        with app.database.session() as session:
            _say_problems(subscriptions.register(session, app.name, self._feeds))
            self.look(session)

    def _apply(self) -> None:
        app = self._app
        done = subscriptions.apply(app.database, app.name, self._feeds)
        for step in done.changes:
            logger.info(
                "Subscription %s (%s of %s): %s.", step.name, step.kind, step.source, step.reason or step.action
            )
        _say_problems(done.problems)
        if done.changes and done.unsettled:
            logger.warning(
                "%d connections are older than the triggers, and may go on with statements whose changes are not noted."
                " They are listed by: fbtasks subscriptions apply",
                len(done.unsettled),
            )

    def look(self, session: Session) -> None:
        """Says which triggers are not as the code wants them."""
        if not self._watches:
            return
        for each in subscriptions.find_stale(session, self._app.name, self._feeds):
            logger.warning("Subscription %s: %s. Run: fbtasks subscriptions apply -A APP", each.name, each.problem)


def _say_problems(problems: Mapping[str, str]) -> None:
    for name, said in problems.items():
        logger.error("Subscription %s could not be deployed, and is left as it was: %s", name, said)
