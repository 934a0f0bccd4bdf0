"""Tells the database which queues this process consumes from."""

from __future__ import annotations

import threading
from weakref import WeakKeyDictionary

from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store.messages import BUCKETS
from fbtasks.contrib.celery.store.names import kept
from fbtasks.contrib.celery.transport.consumer import Consumer
from fbtasks.contrib.celery.transport.inbox import Inbox
from fbtasks.firebird.session import Transaction


class ConsumedQueue:
    """A queue with at least one consumer on a channel of this process."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        """Its number in the database. A queue that was deleted and declared again has another one."""
        self.consumers: WeakKeyDictionary[Inbox, int] = WeakKeyDictionary()
        """How many there are on each connection."""

    @property
    def bucket(self) -> int:
        """The number of its event."""
        return self.number % BUCKETS


class ConsumedQueues:
    """All of them, of one database. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, consumer: Consumer) -> None:
        self._shared = shared
        self._consumer = consumer
        self._lock = threading.Lock()
        self._queues: dict[str, ConsumedQueue] = {}
        self._ended: set[str] = set()
        """Names of queues that were consumed from, which the database is to be told."""

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._queues)

    def register(self) -> int:
        """Registers this process with its queues, unless it is registered. Returns its number."""
        return self._consumer.register(self._announce)

    def _announce(self, consumer_id: int) -> None:
        for queue in self._all():
            if self._tell(consumer_id, queue.name, begins=True) is None:
                for inbox in self._inboxes(queue):
                    inbox.tell_lost(queue.name)

    def _inboxes(self, queue: ConsumedQueue) -> list[Inbox]:
        with self._lock:
            return list(queue.consumers)

    def _all(self) -> list[ConsumedQueue]:
        with self._lock:
            return list(self._queues.values())

    def _tell(self, consumer_id: int, name: str, *, begins: bool) -> int | None:
        number: int | None = self._shared.use(
            lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", consumer_id, kept(name), int(begins))
        )
        return number

    def begin(self, consumer_id: int, name: str, inbox: Inbox) -> ConsumedQueue | None:
        """Adds a consumer of a queue on the connection of *inbox*. Returns None when there is no such queue."""
        number = self._tell(consumer_id, name, begins=True)
        if number is None:
            return None
        with self._lock:
            queue = self._queues.setdefault(name, ConsumedQueue(name, number))
            queue.number = number
            queue.consumers[inbox] = queue.consumers.get(inbox, 0) + 1
        return queue

    def end(self, name: str, inbox: Inbox) -> bool:
        """Removes a consumer of a queue. Returns whether it was the last; :meth:`tell_ended` tells the database."""
        with self._lock:
            queue = self._queues.get(name)
            if queue is None:
                return False
            queue.consumers[inbox] = queue.consumers.get(inbox, 0) - 1
            if queue.consumers[inbox] <= 0:
                del queue.consumers[inbox]
            if queue.consumers:
                return False
            del self._queues[name]
            if self._consumer.number is not None:  # else it is counted as a user of none
                self._ended.add(name)
            return True

    def tell_ended(self) -> None:
        """Tells the database of queues without a consumer, unless one came back; an auto-delete queue goes then."""
        consumer_id = self._consumer.number
        if consumer_id is None:
            return
        for name in list(self._ended):
            if name not in self._queues:
                self._tell(consumer_id, name, begins=False)
            with self._lock:
                self._ended.discard(name)

    def renew(self) -> None:
        """Counts the queues as used, and follows those that were deleted and declared again."""
        consumer_id = self._consumer.number
        queues = self._all()
        if consumer_id is None or not queues:
            return

        def look(transaction: Transaction) -> list[tuple[ConsumedQueue, int | None]]:
            names = [kept(queue.name) for queue in queues]
            numbers = [transaction.call("FBTASKS_CELERY.USE_QUEUE", None, name, None) for name in names]
            return list(zip(queues, numbers, strict=True))

        for queue, number in self._shared.use(look):
            if number is not None and number != queue.number:
                queue.number = number
                for inbox in self._inboxes(queue):
                    inbox.wake({queue.bucket})
                self._tell(consumer_id, queue.name, begins=True)
