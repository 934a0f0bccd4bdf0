"""The transport: one connection of kombu's, its event loop, its errors, its URL."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from kombu.exceptions import ChannelError
from kombu.transport import base, virtual

from fbtasks import clock
from fbtasks.errors import ConfigurationError, ConflictError, DatabaseUnavailable, ForkError
from fbtasks.kombu import scheduled
from fbtasks.kombu.broker import Broker, broker_for
from fbtasks.kombu.channel import Channel as _Channel
from fbtasks.kombu.wake import Waker
from fbtasks.store.messages import BUCKETS, DELIVERY_LIMIT
from fbtasks.url import DatabaseURL, show_refused
from fbtasks.version import VERSION

DEFAULT_PORT: Final = 3050
LEASE: Final = 30.0
"""Seconds without a sign of life after which a consumer that cannot be looked at is taken for dead."""


_MOST_LIMIT: Final = 30_000
"""The database counts somewhat further."""


class _NoWaker(Waker):
    """What a connection has that is not open: nobody waits."""

    def __init__(self) -> None:
        self.woken = True

    def close(self) -> None:
        pass


_NO_WAKER: Final[Waker] = _NoWaker()


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
        keep_queries(client)
        hide_password(client)
        hide_alternates(client)
        welcome_celery()
        settings = client.transport_options
        self.withhold_eta = bool(settings.get("withhold_eta", True))
        self._lease = float(settings.get("lease", LEASE))
        self._auto_migrate = settings.get("auto_migrate")
        self._delivery_limit = _limit(settings.get("delivery_limit", DELIVERY_LIMIT))
        self._broker: Broker | None = None
        self._waker: Waker = _NO_WAKER
        self._pid = os.getpid()
        self._buckets: set[int] = set()
        self._lock = threading.Lock()
        self._turn = 0
        self._loop: Any = None
        self._lost_queue: str | None = None
        self.poll_at = float("inf")
        """The monotonic time of the next look at the database; never, while nothing is consumed."""

    # The connection.

    @property
    def broker(self) -> Broker:
        """What this process shares for the database. Raises :class:`DatabaseUnavailable` when not connected."""
        broker = self._broker
        if broker is None or self._pid != os.getpid():
            raise DatabaseUnavailable("This connection is closed, or was inherited by a fork: connect anew.")
        return broker

    def establish_connection(self) -> Transport:
        """Touches the database. Raises what keeps it from answering, and :class:`ConfigurationError`."""
        if self._pid != os.getpid():
            raise DatabaseUnavailable("This connection was inherited by a fork: connect anew.")
        broker = broker_for(
            url_of(self.client),
            lease=self._lease,
            auto_migrate=self._auto_migrate,
            delivery_limit=self._delivery_limit,
        )
        broker.verify()
        self._waker = Waker()
        broker.attach(self)
        self._broker = broker
        return self

    def close_connection(self, connection: Any) -> None:
        """Closes the channels, and gives the connection back."""
        broker = self._broker
        if broker is None:
            return
        if broker.shared.inherited:
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
            broker.flush()
        finally:
            self._detach(broker)

    def _collect(self, _connection: Any) -> None:
        """Lets go of a lost connection, or of one that a fork inherited, without asking the database anything."""
        broker = self._broker
        if broker is None:
            return
        inherited = broker.shared.inherited
        for channel in list(self.channels):
            channel.abandon(give_back=not inherited)
        self.channels.clear()
        if inherited:
            self._broker = None
            self._close_waker()
        else:
            self._detach(broker)

    def _detach(self, broker: Broker) -> None:
        self._broker = None
        self.poll_at = float("inf")
        if self._loop is not None:
            with suppress(Exception):
                self._loop.remove_reader(self._waker.fileno())
            self._loop = None
        broker.detach(self)
        self._close_waker()

    def _close_waker(self) -> None:
        waker, self._waker = self._waker, _NO_WAKER
        waker.close()

    def verify_connection(self, connection: Any) -> bool:
        """Whether it is open, here. A database that went away is noticed by what is asked of it next."""
        return self._broker is not None and self._pid == os.getpid()

    def create_channel(self, connection: Any) -> _Channel:
        """A channel on this connection."""
        channel = self.Channel(connection)
        self.channels.append(channel)
        return channel

    @property
    def default_connection_params(self) -> dict[str, Any]:
        """None: there is no default host; without one the engine is embedded."""
        return {}

    def driver_version(self) -> str:
        """The version of fbtasks."""
        return VERSION

    def as_uri(self, uri: str, include_password: bool = False, mask: str = "**") -> str:
        """The URL, with *mask* for the password."""
        url = url_of(self.client, uri)
        text = str(url)
        if url.password is None:
            return text
        return text.replace(":***@", f":{quote(url.password, safe='') if include_password else mask}@", 1)

    # Receiving.

    def look_soon(self) -> None:
        """Has the thread or loop that waits look at the database: a channel consumes, or the connection was lost."""
        self.poll_at = 0.0
        self._waker.wake()

    def wake(self, buckets: set[int]) -> None:
        """Events came for queues of these numbers, modulo 14; or none, and something else is to be looked at."""
        with self._lock:
            self._buckets |= buckets
        self._waker.wake()

    def wake_if_due(self, now: float) -> None:
        """Wakes whoever waits when it is time for a look."""
        if now >= self.poll_at:
            self._waker.wake()

    @property
    def next_wake(self) -> float:
        """The monotonic time at which it is to be woken; never, while it has been and did not look yet."""
        return float("inf") if self._waker.woken else self.poll_at

    def renumber(self, queue: str, number: int) -> bool:
        """Tells the channels a queue's number. Whether it was another one for some."""
        return bool(sum(channel.renumber(queue, number) for channel in list(self.channels)))

    def lose(self, queue: str) -> None:
        """A queue is gone that may be consumed from here: who consumes is told that the connection is lost.

        So it declares everything anew, as after a cut. From any thread.
        """
        if any(channel.consumes_from(queue) for channel in list(self.channels)):
            self._lost_queue = queue
            self._waker.wake()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Delivers what is there, or waits for it. Raises :class:`TimeoutError` after *timeout* seconds."""
        deadline = None if timeout is None else clock.monotonic() + timeout
        while not self.deliver():
            now = clock.monotonic()
            if deadline is not None and now >= deadline:
                raise socket.timeout("timed out")  # noqa: UP041  # the name that kombu's users know
            until = min(self.poll_at, now + 10 * self.polling_interval)
            self._waker.wait((until if deadline is None else min(until, deadline)) - now)

    def deliver(self) -> int:
        """Claims and delivers to one channel, each having its turn. Gives how many messages; 0: there was nothing."""
        broker = self.broker
        queue, self._lost_queue = self._lost_queue, None
        if queue is not None:
            raise DatabaseUnavailable(
                f"This process was taken for dead, and its queue {queue!r} deleted: connect anew."
            )
        with self._lock:
            buckets, self._buckets = self._buckets, set()
        channels = list(self.channels)
        for channel in channels:
            channel.heat(lambda number: number % BUCKETS in buckets)
        delivered = self._deliver_one(channels)
        if delivered:
            return delivered
        now = clock.monotonic()
        if buckets or now >= self.poll_at:
            queues = {number for channel in channels for number in channel.queue_ids}
            if not queues:
                self.poll_at = float("inf")
                return 0
            ready, due = broker.ready(queues)
            self.poll_at = now + min(self.polling_interval, self.polling_interval if due is None else due + 0.001)
            if ready:
                for channel in channels:
                    channel.heat(lambda number: number in ready)
                return self._deliver_one(channels)
        return 0

    def _deliver_one(self, channels: list[_Channel]) -> int:
        for step in range(len(channels)):
            index = (self._turn + step) % len(channels)
            delivered = channels[index].deliver()
            if delivered:
                self._turn = index + 1
                return delivered
        return 0

    # The event loop.

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Has *loop* deliver when the database has something."""
        self._loop = loop
        loop.add_reader(self._waker.fileno(), self.on_readable, connection, loop)
        self._waker.wake()

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        """Ends that."""
        loop.remove_reader(self._waker.fileno())
        self._loop = None

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Called by the loop. Raises :class:`DatabaseUnavailable` when the connection is lost."""
        self._waker.clear()
        if self._broker is None:
            return
        if self.deliver():
            self._waker.wake()  # there may be more, when the loop's other duties have had their turn


def url_of(client: Any, text: str | None = None) -> DatabaseURL:
    """The database of a ``kombu.Connection``, as it was made or as it is after a failover."""
    text = text or client.hostname
    if text and "://" in text:
        url = DatabaseURL.parse(text)
        if url.password is None and url.user is not None and client.password:
            return replace(url, password=_password(client))
        return url
    database, _, query = (client.virtual_host or "").partition("?")
    options = f"?{query}" if query else ""
    if not text:
        return DatabaseURL.parse(f"firebird:///{quote(database.lstrip('/'))}{options}")
    login = ""
    if client.userid:
        password = _password(client)
        login = quote(client.userid, safe="") + ("" if password is None else ":" + quote(password, safe="")) + "@"
    host = f"[{text}]" if ":" in text else text
    return DatabaseURL.parse(f"firebird://{login}{host}:{client.port or DEFAULT_PORT}/{quote(database)}{options}")


def _limit(value: Any) -> int | None:
    """The option ``delivery_limit``. Raises :class:`ConfigurationError` for what is no number."""
    try:
        limit = None if value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(
            f"delivery_limit is {value!r:.60}: give the number of times that a message may come back, or None."
        ) from None
    return None if limit is None or limit < 0 else min(limit, _MOST_LIMIT)


def _password(client: Any) -> Any:
    return client.password() if callable(client.password) else client.password


def hide_password(client: Any) -> None:
    """Keeps the password of a URL where kombu keeps passwords.

    What ``celery inspect stats`` and ``Connection.info()`` show has the URL as the name of the host.
    """
    if not client.hostname or "://" not in client.hostname:
        return
    with suppress(ConfigurationError):  # told when it connects
        url = DatabaseURL.parse(client.hostname)
        if url.password is not None:
            client.hostname = str(replace(url, password=None))
            client.password = url.password


def keep_queries(client: Any) -> None:
    """Lets the alternates of a failover list keep their query.

    kombu takes an alternate apart itself when it switches to it, and does not know our options; written as a part of
    the path they come through. And it shows the port of the first URL as those of the others.
    """
    if client.port is None and client.hostname and "://" in client.hostname:
        with suppress(ConfigurationError):
            url = DatabaseURL.parse(client.hostname)
            if not url.embedded:
                client.port = url.port
    if not client.hostname:
        client.port = None  # left over from the URL before, which was that of a server
    if client.cycle is not None and not isinstance(client.cycle, _Cycle):
        client.cycle = _Cycle(client.cycle)


class Alternate(str):
    """A URL of a failover list, as it is shown: without its password."""

    whole: str

    def __new__(cls, whole: str) -> Alternate:
        """The URL *whole* for ``Connection.info()``, which kombu also makes copies of connections from."""
        shown = show_refused(whole)
        with suppress(ConfigurationError):
            shown = str(DatabaseURL.parse(whole))
        made = super().__new__(cls, shown)
        made.whole = whole
        return made

    def __reduce__(self) -> tuple[type[Alternate], tuple[str]]:
        return Alternate, (self.whole,)


def hide_alternates(client: Any) -> None:
    """Has the URLs of a failover list shown without their passwords, also by ``celery inspect stats``."""
    if any(not isinstance(alternate, Alternate) for alternate in client.alt or ()):
        client.alt = [each if isinstance(each, Alternate) else Alternate(each) for each in client.alt]


class _Cycle:
    """The URLs that a failover switches to, in the order of kombu's strategy, each as :func:`keep_queries` says."""

    def __init__(self, urls: Iterator[str]) -> None:
        self._urls = urls

    def __iter__(self) -> _Cycle:
        return self

    def __next__(self) -> str:
        url = next(self._urls)
        return (url.whole if isinstance(url, Alternate) else url).replace("?", "%3F")


def welcome_celery() -> None:
    """Has Celery's workers talk to each other here as on RabbitMQ, and list what is scheduled where it is."""
    for module, step in (("mingle", "Mingle"), ("gossip", "Gossip")):
        loaded = sys.modules.get(f"celery.worker.consumer.{module}")
        if loaded is not None:
            getattr(loaded, step).compatible_transports.add(Transport.driver_type)
    scheduled.welcome()
