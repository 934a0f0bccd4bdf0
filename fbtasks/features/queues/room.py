"""Bounded queues for producers: brings in the limit before the first call, and waits for room."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.errors import QueueFull
from fbtasks.features.queues.definition import QueueDefinition
from fbtasks.features.queues.duty import bring_in
from fbtasks.firebird.session import READ
from fbtasks.queue.firsts import check_known
from fbtasks.queue.notify.results import ResultListener, Waiter
from fbtasks.system.showing import count
from fbtasks.tasks.call import Batch, Call
from fbtasks.timing import Backoff

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

_FIRST: Final = 0.05
_LAST: Final = 1.0
"""Seconds between two attempts of a call that waits; an event makes the next one earlier."""
_MOST_EVENTS: Final = 15
"""Names of events that one listener hears; for other queues the attempts have to do."""


class QueueRoom:
    """Brings in the limits of an app's queues before it enqueues, and waits when one is full."""

    def __init__(self, app: FBTasks, queues: Mapping[str, QueueDefinition]) -> None:
        """*queues*: what the app says of its queues, which may grow."""
        self._app = app
        self._queues = queues
        self._known: set[str] = set()
        """Queues whose definitions the database has, as this process has seen."""
        self._listener: ResultListener | None = None

    def check_known(self, queues: Iterable[str]) -> None:
        """Brings in what the app says of *queues*, where the database knows nothing of them yet. Once for each.

        Raises as :func:`fbtasks.queue.firsts.check_known`.
        """
        known = self._known
        for queue in [queue for queue in queues if queue in self._queues and queue not in known]:
            self._check(self._queues[queue])
            known.add(queue)

    def _check(self, definition: QueueDefinition) -> None:
        database = self._app.database
        database.make_ready()
        found = database.use(lambda session: session.call("FBTASKS_PRODUCER.POLICY_HASH", definition.queue, kind=READ))
        bring = partial(database.use, partial(bring_in, app=self._app.name, definition=definition, only_new=True))
        check_known(f"definition of the queue {definition.queue!r}", found, definition.hash, bring)

    def wait(self, full: QueueFull, batch: Batch) -> bool:
        """Waits for room in the queues of *batch*, as long as they say. Returns whether to try it again.

        Raises :class:`QueueFull` when they were still full after that time.
        """
        wait = batch.kept.get("queues")
        if wait is None:
            patience = max((self._patience(call) for call in batch), default=0.0)
            if patience <= 0 or batch.until_written is None:
                return False
            waiter = batch.until_written.enter_context(self._listening().waiter())
            wait = batch.kept["queues"] = _Wait(patience, waiter)
        wait.go_on(full)
        return True

    def _patience(self, call: Call) -> float:
        definition = self._queues.get(call.queue)
        return definition.wait_for if definition is not None and definition.when_full == "wait" else 0.0

    def _listening(self) -> ResultListener:
        if self._listener is None:
            waits = [queue for queue, each in self._queues.items() if each.when_full == "wait"]
            events = [f"fbtasks:room:{queue}" for queue in waits[:_MOST_EVENTS]]
            self._listener = ResultListener(self._app.database, events)
        return self._listener

    def forget(self) -> None:
        """Forgets what the database has: the next connection may be to another one."""
        self._known = set()

    def close(self) -> None:
        """Stops listening, and forgets what the database has; calls that wait make a last attempt."""
        self.forget()
        if self._listener is not None:
            self._listener.close()


class _Wait:
    """The wait of one batch for room."""

    def __init__(self, patience: float, waiter: Waiter) -> None:
        self._patience = patience
        self._waiter = waiter
        self._deadline = clock.monotonic() + patience
        self._pauses = Backoff(_FIRST, _LAST)
        self._is_last = False

    def go_on(self, full: QueueFull) -> None:
        """Waits until the next attempt. Raises :class:`QueueFull` when the last one was made."""
        if self._is_last:
            raise QueueFull(f"{full} It was still full after {count(self._patience, 'second')}.") from full
        left = self._deadline - clock.monotonic()
        pause = self._pauses.next() * random.uniform(0.5, 1.0)  # noqa: S311  # not all at once
        self._waiter.wait(min(pause, max(left, 0.0)))
        self._is_last = left <= 0 or self._waiter.closed
