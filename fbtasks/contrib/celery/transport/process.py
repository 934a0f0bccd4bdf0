"""One database as the transports of this process share it: connections, and the consumer that this process is."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from typing import Final
from weakref import WeakSet

from fbtasks.config import Settings
from fbtasks.contrib.celery import Celery
from fbtasks.contrib.celery.one_per_database import OnePerDatabase
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store.messages import DELIVERY_LIMIT, Taken
from fbtasks.contrib.celery.transport.claims import Claims, Settlements
from fbtasks.contrib.celery.transport.consumer import Consumer, ConsumerThread
from fbtasks.contrib.celery.transport.inbox import Inbox, Inboxes
from fbtasks.contrib.celery.transport.publisher import Publisher
from fbtasks.contrib.celery.transport.qos import QoS
from fbtasks.contrib.celery.transport.queues import ConsumedQueues
from fbtasks.errors import DatabaseError, DatabaseReplaced
from fbtasks.firebird import fork
from fbtasks.firebird.session import READ
from fbtasks.system.threads import deferred
from fbtasks.url import DatabaseURL

logger = logging.getLogger("fbtasks.kombu")
LINGER: Final = 5.0
"""Seconds after which the connections of a process without transports are closed."""
_POOL: Final = 10


class ConsumerProcess:
    """One database as the transports of this process use it. Every method may be called from any thread.

    The process is registered as a consumer, and has a thread that keeps it one, from its first claim on until no
    transport has been attached for a while.
    """

    def __init__(self, settings: Settings, *, lease: float, delivery_limit: int | None) -> None:
        self.shared = SharedDatabase(settings, (Celery(),))
        self.shared.database.known.keep()  # what was claimed in one database is not settled in another
        self.publisher = Publisher(self.shared)
        self.consumer = Consumer(self.shared, lease, delivery_limit)
        self.queues = ConsumedQueues(self.shared, self.consumer)
        self.settlements = Settlements(self.shared)
        self.claims = Claims(self.shared, self.settlements)
        self.inboxes = Inboxes()
        self._unsettled: WeakSet[QoS] = WeakSet()
        self._lock = threading.RLock()
        """Held while this process becomes a consumer or stops to be one, which may take long."""
        self._thread: ConsumerThread | None = None
        self._noting = threading.Lock()
        self._timer: threading.Timer | None = None
        fork.register(before=self._before_fork, in_parent=self._after_fork)

    # Transports.

    def attach(self) -> Inbox:
        """Begins to serve another transport. Returns its inbox."""
        return self.inboxes.add()

    def detach(self, inbox: Inbox) -> None:
        """Ends that; after the last transport the connections are closed in a while."""
        self.inboxes.discard(inbox)
        inbox.waker.close()
        if not self.inboxes.all():
            self._close_later()

    def watch(self, unsettled: QoS) -> None:
        """Counts a channel's unsettled messages as being worked on here, also when its connection is lost."""
        with self._noting:
            self._unsettled.add(unsettled)

    def verify(self) -> None:
        """Raises what keeps the database from answering."""
        self.shared.use(lambda transaction: transaction.value("schema_version"), READ)
        _processes.close_at_exit()

    # Consuming.

    def register(self) -> int:
        """Registers this process as a consumer with a thread, unless it is one. Returns its number."""
        number = self.consumer.number
        if number is not None and self._thread is not None:
            return number
        with self._lock:
            number = self.queues.register()
            if self._thread is None:
                self._thread = ConsumerThread(self)
                self._thread.start()
            return number

    def claim(self, queue_id: int, most: int) -> Taken:
        """Claims up to *most* messages."""
        while True:
            number = self.register()
            taken = self.claims.claim(number, queue_id, most)
            if taken is not None:
                return taken
            self.consumer.forget(number)

    def flush(self) -> None:
        """Writes the settlements that wait, and gives back claims whose answer was lost."""
        self._flush(self.consumer.number)

    def _flush(self, number: int | None) -> None:
        self.settlements.write(number)
        self.claims.give_back_lost()

    # Its end.

    @property
    def idle(self) -> bool:
        """Whether no transport is attached, and nothing is worked on that came over one."""
        with self._noting:
            return not self.inboxes.all() and not any(unsettled.busy for unsettled in self._unsettled)

    def close(self) -> None:
        """Writes what waits, ends this process's registration and closes the connections."""
        with self._noting:
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        with self._lock:
            thread, self._thread = self._thread, None
            self._withdraw(thread)
        self.shared.close()
        if self.shared.replaced:  # the thread that tells them has ended
            self.inboxes.look_soon()

    def _withdraw(self, thread: ConsumerThread | None) -> None:
        if thread is not None:  # first: without a number it would register anew
            thread.stop()
        number = self.consumer.withdraw()
        if number is None:
            return
        try:
            self._flush(number)
            self.consumer.registration.unregister(self.shared.use_in_turn, number)
        except DatabaseError as error:
            logger.info("The consumer is not unregistered at its end: %s", error)

    def _close_later(self) -> None:
        timer = threading.Timer(LINGER, self._close_if_idle)
        timer.daemon = True
        with self._noting:
            former, self._timer = self._timer, timer
        if former is not None:
            former.cancel()
        # It takes no signal that is the program's. While the interpreter ends no thread begins: close_all() comes then.
        with deferred(), suppress(RuntimeError):
            timer.start()

    def _close_if_idle(self) -> None:
        """Closes all when no transport was attached for a while."""
        if self.shared.inherited or self.inboxes.all():
            return
        try:
            self.flush()
            with self._lock:
                thread, self._thread = self._thread, None  # register() waits for this lock from now on
                idle = self.idle
                if not idle:
                    self._thread = thread
                elif thread is not None:
                    self._withdraw(thread)
        except DatabaseReplaced:
            self.close()
            return
        except DatabaseError as error:
            logger.debug("The connections are closed later: %s", error)
            idle = False
        if not idle:
            self._close_later()
        elif self.idle:
            self.shared.close()

    # A fork.

    def _before_fork(self) -> None:
        thread = self._thread
        if self.shared.detached and thread is not None:
            thread.pause()

    def _after_fork(self) -> None:
        thread = self._thread
        if not self.shared.inherited and thread is not None:
            thread.resume()


_processes: OnePerDatabase[ConsumerProcess] = OnePerDatabase()


def process_for(
    url: DatabaseURL, *, lease: float, auto_migrate: bool | None, delivery_limit: int | None = DELIVERY_LIMIT
) -> ConsumerProcess:
    """Returns what this process shares for *url*; the first caller's options count.

    It is another one when the database's file was replaced: the former lets go of its connections, and its transports
    have to be connected anew.
    """
    settings = Settings("kombu", url=url, pool_size=_POOL, auto_migrate=auto_migrate)
    return _processes.get(
        settings,
        lambda: ConsumerProcess(settings, lease=lease, delivery_limit=delivery_limit),
        lambda former: not former.shared.replaced,
    )


def close_all() -> None:
    """Closes the connections of all transports of this process that are not in use any more."""
    _processes.close_all()
