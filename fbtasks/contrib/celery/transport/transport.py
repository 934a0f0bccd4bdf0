"""The transport: one connection of kombu's, its event loop and its errors."""

from __future__ import annotations

import math
import os
import socket
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, Final
from urllib.parse import quote

from kombu.exceptions import ChannelError
from kombu.transport import base, virtual

from fbtasks import timing as clock
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import DELIVERY_LIMIT
from fbtasks.contrib.celery.transport.address import DEFAULT_PORT, adapt, url_of
from fbtasks.contrib.celery.transport.channel import Channel as _Channel
from fbtasks.contrib.celery.transport.inbox import Inbox
from fbtasks.contrib.celery.transport.process import ConsumerProcess, process_for
from fbtasks.contrib.celery.transport.scheduled import Scheduled
from fbtasks.errors import ConfigurationError, ConflictError, DatabaseUnavailable, ForkError
from fbtasks.firebird.session import READ
from fbtasks.version import VERSION

LEASE: Final = 30.0
"""Seconds without a sign of life after which a consumer that cannot be looked at is taken for dead."""
_MOST_LIMIT: Final = 30_000
"""The database counts somewhat further."""


class Transport(virtual.Transport):  # type: ignore[misc]  # kombu has no types
    """Messages in tables of a Firebird database.

    Options (``transport_options``):

    * ``polling_interval``: seconds between two looks when no event comes (1.0);
    * ``lease``: seconds after which a silent process that cannot be looked at is taken for dead (30);
    * ``withhold_eta``: whether a task with an ETA waits in the database (True);
    * ``auto_migrate``: whether the schema is made or brought up to date at the first connection (None: for the embedded
      engine alone);
    * ``deadletter_queue``: the queue of messages that go nowhere;
    * ``delivery_limit``: how often a message may come back after it was delivered (20); None or below 0: any
      number of times.
    """

    Channel = _Channel
    can_parse_url = True
    default_port = DEFAULT_PORT
    driver_type = "firebird"
    driver_name = "firebird-driver"
    polling_interval = 1.0
    connection_errors = (DatabaseUnavailable, ConflictError, ForkError, ConnectionError)
    recoverable_connection_errors = connection_errors
    channel_errors = (ChannelError, *virtual.Transport.channel_errors)
    recoverable_channel_errors = ()
    implements = base.Transport.implements.extend(
        asynchronous=sys.platform != "win32",
        exchange_type=frozenset(["direct", "topic", "fanout"]),
        heartbeats=False,
        batch_publish=True,
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        adapt(client)
        welcome_celery()
        settings = client.transport_options
        self.withhold_eta = bool(settings.get("withhold_eta", True))
        self._lease = float(settings.get("lease", LEASE))
        self._auto_migrate = settings.get("auto_migrate")
        self._delivery_limit = _limit(settings.get("delivery_limit", DELIVERY_LIMIT))
        self._process: ConsumerProcess | None = None
        self._inbox: Inbox | None = None
        self._pid = os.getpid()
        self._turn = 0
        self._loop: Any = None

    # The connection.

    @property
    def process(self) -> ConsumerProcess:
        """What this process shares for the database. Raises :class:`DatabaseUnavailable` when not connected."""
        process = self._process
        if process is None or self._pid != os.getpid():
            raise DatabaseUnavailable("This connection is closed, or was inherited by a fork: connect anew.")
        return process

    @property
    def inbox(self) -> Inbox:
        """What other threads tell this connection. Raises :class:`DatabaseUnavailable` when not connected."""
        if self._inbox is None:
            raise DatabaseUnavailable("This connection is closed: connect anew.")
        return self._inbox

    def establish_connection(self) -> Transport:
        """Touches the database. Raises what keeps it from answering, and :class:`ConfigurationError`."""
        if self._pid != os.getpid():
            raise DatabaseUnavailable("This connection was inherited by a fork: connect anew.")
        process = process_for(
            url_of(self.client),
            lease=self._lease,
            auto_migrate=self._auto_migrate,
            delivery_limit=self._delivery_limit,
        )
        process.verify()
        self._inbox = process.attach()
        self._process = process
        return self

    def close_connection(self, connection: Any) -> None:
        """Closes the channels, and gives the connection back."""
        process = self._process
        if process is None:
            return
        if process.shared.inherited:
            self._collect(None)
            return
        lost: DatabaseUnavailable | None = None
        try:
            for channel in list(self.channels):
                try:
                    channel.close()
                except DatabaseUnavailable as error:
                    lost = error  # the others are closed all the same
            if lost is not None:
                raise lost
            process.flush()
        finally:
            self._detach(process)

    def _collect(self, _connection: Any) -> None:
        """Lets go of a lost connection, or of one that a fork inherited, without asking the database anything."""
        process = self._process
        if process is None:
            return
        inherited = process.shared.inherited
        for channel in list(self.channels):
            channel.abandon(give_back=not inherited)
        self.channels.clear()
        if inherited:
            inbox, self._process, self._inbox = self.inbox, None, None
            inbox.waker.close()
        else:
            self._detach(process)

    def _detach(self, process: ConsumerProcess) -> None:
        inbox, self._process, self._inbox = self.inbox, None, None
        if self._loop is not None:
            with suppress(Exception):
                self._loop.remove_reader(inbox.waker.fileno())
            self._loop = None
        process.detach(inbox)

    def verify_connection(self, connection: Any) -> bool:
        """Returns whether it is open here. The next question to the database shows whether that went away."""
        return self._process is not None and self._pid == os.getpid()

    def create_channel(self, connection: Any) -> _Channel:
        """Makes a channel on this connection."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """None: there is no default host; without one the engine is embedded."""
        return {}

    def driver_version(self) -> str:
        """Returns the version of fbtasks."""
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """Returns the URL, with *mask* for the password."""
        url = url_of(self.client, uri)
        text = str(url)
        if url.password is None:
            return text
        return text.replace(":***@", f":{quote(url.password, safe='') if include_password else mask}@", 1)

    # Receiving.

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers what is there, or waits for it. Raises :class:`TimeoutError` after *timeout* seconds."""
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not self.deliver():
            now = clock.monotonic()
            if deadline is not None and now >= deadline:
                raise socket.timeout("timed out")  # noqa: UP041  # the name that kombu's users know
            until = min(self.inbox.poll_at, now + 10 * self.polling_interval)
            self.inbox.waker.wait((until if deadline is None else min(until, deadline)) - now)

    def deliver(self) -> int:
        """Claims and delivers to one channel, each having its turn. Returns how many messages; 0: there was nothing."""
        process, inbox = self.process, self.inbox
        queue = inbox.take_lost()
        if queue is not None:
            raise DatabaseUnavailable(
                f"This process was taken for dead, and its queue {queue!r} deleted: connect anew."
            )
        buckets = inbox.take_buckets()
        channels = list(self.channels)
        if buckets:
            for channel in channels:
                channel.receiver.note_ready(lambda queue: queue.bucket in buckets)
        delivered = self._deliver_one(channels)
        if delivered:
            return delivered
        now = clock.monotonic()
        if buckets or now >= inbox.poll_at:
            if not any(channel.receiver.consumed for channel in channels):
                inbox.poll_at = math.inf
                return 0
            queues = {queue.number for channel in channels for queue in channel.receiver.unready}
            if not queues:
                inbox.poll_at = now + self.polling_interval
                return 0
            ready, due = process.shared.use(lambda t: messages.ready(t, queues), READ)
            inbox.poll_at = now + min(self.polling_interval, self.polling_interval if due is None else due + 0.001)
            if ready:
                for channel in channels:
                    channel.receiver.note_ready(lambda queue: queue.number in ready)
                return self._deliver_one(channels)
        return 0

    def _deliver_one(self, channels: list[_Channel]) -> int:
        for step in range(len(channels)):
            index = (self._turn + step) % len(channels)
            delivered = channels[index].receiver.deliver()
            if delivered:
                self._turn = index + 1
                return delivered
        return 0

    # The event loop.

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Makes *loop* deliver when the database has something."""
        self._loop = loop
        waker = self.inbox.waker
        loop.add_reader(waker.fileno(), self.on_readable, connection, loop)
        waker.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Ends that."""
        if self._inbox is not None:
            loop.remove_reader(self._inbox.waker.fileno())
        self._loop = None

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Called by the loop. Raises :class:`DatabaseUnavailable` when the connection is lost."""
        if self._inbox is None:
            return
        waker = self._inbox.waker
        waker.clear()
        if self.deliver():
            waker.wake()  # there may be more, when the loop's other duties have had their turn


def _limit(value: Any) -> int | None:
    """Checks the option ``delivery_limit``. Raises :class:`ConfigurationError` for what is no number."""
    try:
        limit = None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"delivery_limit is {value!r:.60}: give the number of times that a message may come back, or None."
        ) from None
    return None if limit is None or limit < 0 else min(limit, _MOST_LIMIT)


def welcome_celery() -> None:
    """Lets Celery's workers talk to each other here as on RabbitMQ, and list what is withheld in their queues.

    Flower, where it is loaded, shows the queues.
    """
    for module, step in (("mingle", "Mingle"), ("gossip", "Gossip")):
        loaded = sys.modules.get(f"celery.worker.consumer.{module}")
        if loaded is not None:
            getattr(loaded, step).compatible_transports.add(Transport.driver_type)
    if (control := sys.modules.get("celery.worker.control")) is not None:
        handlers = control.Panel.data
        for name in ("scheduled", "dump_schedule"):
            held = handlers.get(name)
            if held is not None and not isinstance(held, Scheduled):
                handlers[name] = Scheduled(held)
    if "flower.utils.broker" in sys.modules:
        import_module("fbtasks.contrib.celery.flower")
