"""Claims messages for one channel, from its queues in turn, and delivers them."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, count
from typing import Any, Final, NamedTuple

from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Claimed, Taken
from fbtasks.contrib.celery.transport import wire
from fbtasks.contrib.celery.transport.inbox import Inbox
from fbtasks.contrib.celery.transport.process import ConsumerProcess
from fbtasks.contrib.celery.transport.qos import QoS
from fbtasks.contrib.celery.transport.queues import ConsumedQueue
from fbtasks.errors import DatabaseError
from fbtasks.firebird.session import READ

logger = logging.getLogger("fbtasks.kombu")
_UNLIMITED: Final = 100
"""Messages that a channel without prefetch limit claims at once."""


@dataclass(slots=True)
class Subscription:
    """One consumer of one queue on one channel."""

    tag: str
    queue: str
    no_ack: bool
    callback: Callable[[Any], object]


@dataclass(slots=True)
class Source:
    """A queue as a channel consumes from it."""

    queue: ConsumedQueue
    subscriptions: deque[Subscription] = field(default_factory=deque)
    ready: bool = True
    """Whether there may be something to claim."""


class Withheld(NamedTuple):
    """A message that waits for its time."""

    until: datetime
    number: int
    message: Any
    """The message as it would be delivered; None: it cannot be read."""


class Receiver:
    """The consumers of one channel, and what was claimed for them. For one thread: the one that drains events.

    *message* makes a message of kombu's of a payload.
    """

    def __init__(
        self, process: ConsumerProcess, inbox: Inbox, qos: QoS, message: Callable[[dict[str, Any]], Any]
    ) -> None:
        self._process = process
        self._inbox = inbox
        self._qos = qos
        self._make_message = message
        self._settle = process.settlements.add
        self._tags = count(1)
        self._sources: dict[str, Source] = {}
        self._queue_of: dict[str, str] = {}
        self._buffer: deque[tuple[Claimed, str]] = deque()

    def begin(self, new: Subscription) -> bool:
        """Adds a consumer. Returns False when there is no such queue."""
        consumed = self._process.queues.begin(self._process.register(), new.queue, self._inbox)
        if consumed is None:
            return False
        source = self._sources.setdefault(new.queue, Source(consumed))
        source.queue, source.ready = consumed, True
        source.subscriptions.append(new)
        self._queue_of[new.tag] = new.queue
        self._inbox.look_soon()
        return True

    def end(self, tag: str) -> None:
        """Removes a consumer. What was claimed for it and not delivered goes back, for others."""
        queue = self._queue_of.pop(tag, None)
        source = self._sources.get(queue) if queue is not None else None
        if queue is None or source is None:
            return
        source.subscriptions = deque(s for s in source.subscriptions if s.tag != tag)
        if not source.subscriptions:
            del self._sources[queue]
            self.return_claimed(queue)
        if self._process.queues.end(queue, self._inbox):
            self._process.flush()
            self._process.queues.tell_ended()

    def forget(self) -> None:
        """Removes the consumers that are left without asking the database anything: it is told when it answers."""
        for queue in self._queue_of.values():
            self._process.queues.end(queue, self._inbox)
        self.drop()

    def drop(self) -> None:
        """Forgets all: it is another process's."""
        self._queue_of.clear()
        self._sources.clear()
        self._buffer.clear()

    def return_claimed(self, queue: str | None = None) -> None:
        """Gives back what was claimed, of one queue or of all, and not delivered."""
        kept: deque[tuple[Claimed, str]] = deque()
        for claimed, name in self._buffer:
            if queue in (None, name):
                self._settle(claimed.settle(messages.UNSEEN))
            else:
                kept.append((claimed, name))
        self._buffer = kept

    @property
    def consumed(self) -> list[ConsumedQueue]:
        """The queues that it consumes from."""
        return [source.queue for source in self._sources.values()]

    @property
    def unready(self) -> list[ConsumedQueue]:
        """Those that may have nothing to claim. The others are claimed from as soon as there is room."""
        return [source.queue for source in self._sources.values() if not source.ready]

    def note_ready(self, is_ready: Callable[[ConsumedQueue], bool]) -> None:
        """Notes that there may be something in those of its queues for which *is_ready* says so."""
        for source in self._sources.values():
            source.ready = source.ready or is_ready(source.queue)

    def deliver(self) -> int:
        """Claims from the next queue that has something, and delivers. Returns how many messages.

        Those of a consumer without acknowledgements are gone when they are handed over, so they are handed over one at
        a time: a program that stops after one, as kombu's mailbox does, loses nothing.
        """
        if not self._buffer:
            self._receive()
        delivered = 0
        while self._buffer:
            claimed, queue = self._buffer.popleft()
            source = self._sources.get(queue)
            if source is None or not source.subscriptions:
                self._settle(claimed.settle(messages.UNSEEN))
                continue
            subscription = source.subscriptions[0]
            source.subscriptions.rotate(-1)
            try:
                message = self._message(claimed, subscription.tag)
            except DatabaseError:
                self._buffer.appendleft((claimed, queue))
                raise
            if message is None:
                continue
            delivered += 1
            if subscription.no_ack:
                self._settle(claimed.settle(messages.DONE))
                subscription.callback(message)
                break
            self._qos.hold(claimed, message)
            subscription.callback(message)
        return delivered

    def _receive(self) -> None:
        """Claims for the first queue in turn that has something, and room for it."""
        for queue in list(self._sources):
            source = self._sources[queue]
            if not source.ready:
                continue
            room = self._qos.room if any(not s.no_ack for s in source.subscriptions) else None
            if room == 0:
                room = self._qos.ask_for_room()
                if room == 0:
                    continue
            most = _UNLIMITED if room is None else min(room, _UNLIMITED)
            source.ready = False
            # The next time another queue comes first.
            self._sources[queue] = self._sources.pop(queue)
            try:
                found = self._process.claim(source.queue.number, most)
            except BaseException:
                source.ready = True
                raise
            self._buffer.extend((claimed, queue) for claimed in found)
            if found.unseen or len(found) >= most:
                source.ready = True
            self._tell(found, queue)
            if found:
                return
            if found.unseen:  # the next claim goes on behind what expired
                self._inbox.wake()

    def _tell(self, found: Taken, queue: str) -> None:
        """Logs which messages came back too often: in the log of the consumer that would have had the next try."""
        for ended in found.ended:
            went = (
                "It went to the dead-letter exchange."
                if ended.dead_lettered
                else f"It stays in QUEUE_MSG with ID {ended.id} and STATE 3."
            )
            logger.error(
                "A message of queue %r%s came back %d times after it was delivered, which is above delivery_limit. %s",
                queue,
                wire.title(ended.message),
                ended.times,
                went,
            )

    def _message(self, claimed: Claimed, consumer_tag: str | None) -> Any:
        """Returns the message to deliver; None: it was deleted meanwhile with its queue, or cannot be read."""
        data = claimed.message
        if data is None:
            data = self._process.shared.use(lambda t: messages.body(t, claimed.id), READ)
            if data is None:
                return None
        try:
            return self._make_message(wire.payload(claimed, data, next(self._tags), consumer_tag))
        except Exception as error:  # noqa: BLE001  # it was written by hand
            logger.error("Message %d cannot be read, and is rejected: %r", claimed.id, error)
            self._settle(claimed.settle(messages.REJECTED))
            return None

    def get(self, number: int, queue: str, *, no_ack: bool) -> Any:
        """Returns the next message of a queue; None: there is none."""
        while True:
            found = self._process.claim(number, 1)
            self._tell(found, queue)
            if found:
                break
            if not found.unseen:
                return None
        try:
            message = self._message(found[0], None)
        except DatabaseError:
            self._settle(found[0].settle(messages.UNSEEN))
            raise
        if message is None:
            return None
        if no_ack:
            self._settle(found[0].settle(messages.DONE))
        else:
            self._qos.hold(found[0], message)
        return message

    def withheld(self, most: int) -> Iterator[Withheld]:
        """Yields the messages whose time has not come in the queues that it consumes from, the next ones first."""
        numbers = [queue.number for queue in self.consumed]
        found = self._process.shared.use(lambda t: [messages.withheld(t, number, most) for number in numbers], READ)
        for until, claimed in sorted(chain(*found), key=lambda pair: pair[0])[:most]:
            message = None
            with suppress(Exception):  # what cannot be read is told of when it is delivered
                message = self._make_message(wire.payload(claimed, claimed.message or b"", 0, None))
            yield Withheld(until, claimed.id, message)
