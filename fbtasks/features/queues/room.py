"""A producer's side of queues with a limit: the limit is there before the first call, and a call may wait for room."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.errors import AuthenticationError, EnqueueError, QueueFull
from fbtasks.features.queues.definition import QueueDefinition
from fbtasks.features.queues.duty import bring_in
from fbtasks.firebird.session import READ
from fbtasks.queue.notify.results import ResultListener
from fbtasks.system.showing import count
from fbtasks.tasks.call import Call

logger = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST: Final = 0.05
_LAST: Final = 1.0
"""Seconds between two attempts of a call that waits; an event makes the next one earlier."""
_SLOWER: Final = 1.5
_MOST_EVENTS: Final = 15
"""Names of events that one listener hears; for other queues the attempts have to do."""


class QueueRoom:
    """What an app's process does about the limits of its queues before it enqueues, and when one is full."""

    def __init__(self, app: str, database: Database, queues: Mapping[str, QueueDefinition]) -> None:
        self._app = app
        self._database = database
        self.queues = queues
        self._known: set[str] = set()
        """Queues of which the database knows what is said of them, as this process has seen."""
        self._listener: ResultListener | None = None

    def check_known(self, queues: Iterable[str]) -> None:
        """Brings in what the app says of *queues*, where the database knows nothing of them yet. Once for each.

        Another definition that is there stays: that of a newer program, or one that workers have not brought in yet.
        Raises :class:`EnqueueError` when the database's user may not bring it in.
        """
        for queue in [queue for queue in queues if queue in self.queues and queue not in self._known]:
            self._check(self.queues[queue])
            self._known.add(queue)

    def _check(self, definition: QueueDefinition) -> None:
        self._database.make_ready()
        found = self._database.use(
            lambda session: session.call("FBTASKS_PRODUCER.POLICY_HASH", definition.queue, kind=READ)
        )
        if found is None:
            self._bring_in(definition)
        elif found != definition.hash:
            logger.warning(
                "The database has another limit or window of the queue %s than this program, and goes by that until a "
                "worker with this program's starts, or 'fbtasks migrate -A' brings it in.",
                definition.queue,
            )

    def _bring_in(self, definition: QueueDefinition) -> None:
        try:
            self._database.use(lambda session: bring_in(session, self._app, definition, only_new=True))
        except AuthenticationError as error:
            raise EnqueueError(
                f"the limit of the queue {definition.queue!r} is not in the database yet, and this user may not bring "
                f"it in. Run 'fbtasks migrate -A' as the owner of the database, or start a worker: {error}"
            ) from error

    def wait_for(self, enqueue: Callable[[], T], calls: Iterable[Call]) -> T:
        """What *enqueue* returns, which writes *calls*; tried again while a queue of theirs is full, if it waits."""
        try:
            return enqueue()
        except QueueFull:
            patience = max((self._patience(call.queue) for call in calls), default=0.0)
            if patience <= 0:
                raise
        return self._wait(enqueue, patience)

    def _patience(self, queue: str) -> float:
        definition = self.queues.get(queue)
        return definition.wait_for if definition is not None and definition.when_full == "wait" else 0.0

    def _wait(self, enqueue: Callable[[], T], patience: float) -> T:
        deadline = clock.monotonic() + patience
        pause = _FIRST
        with self._listening().waiter() as waiter:
            while True:
                left = deadline - clock.monotonic()
                waiter.wait(min(pause * random.uniform(0.5, 1.0), max(left, 0.0)))  # noqa: S311  # not all at once
                try:
                    return enqueue()
                except QueueFull as error:
                    if left <= 0 or waiter.closed:
                        raise QueueFull(f"{error} It was still full after {count(patience, 'second')}.") from error
                pause = min(pause * _SLOWER, _LAST)

    def _listening(self) -> ResultListener:
        if self._listener is None:
            waits = [queue for queue, each in self.queues.items() if each.when_full == "wait"]
            self._listener = ResultListener(self._database, [f"fbtasks:room:{queue}" for queue in waits[:_MOST_EVENTS]])
        return self._listener

    def close(self) -> None:
        """Stops listening; calls that wait make a last attempt."""
        if self._listener is not None:
            self._listener.close()
