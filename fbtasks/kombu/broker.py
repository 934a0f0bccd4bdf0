"""What the transports of one process share for one database: connections, the consumer's registration, settlements.

A process is one consumer in the database, whatever connections and channels it has. It renews one lease, and dies as a
whole; what a channel leaves behind is given back by name.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from fbtasks import clock
from fbtasks.config import Settings
from fbtasks.errors import ConflictError, DatabaseError, StatementRefused
from fbtasks.firebird.session import READ, Transaction
from fbtasks.kombu.keeper import BEAT, LINGER, Keeper
from fbtasks.kombu.publisher import Publisher
from fbtasks.kombu.settlements import Settlements
from fbtasks.maintenance import hosts
from fbtasks.maintenance.rescue import rescue
from fbtasks.maintenance.watch import SHARE, Rhythm, Suspect, Watch
from fbtasks.store import messages
from fbtasks.store.messages import Claimed, Publication, QueueFacts, QueueSpec, Taken
from fbtasks.store.migrate import refuse_copy
from fbtasks.store.shared import SharedDatabase
from fbtasks.url import DatabaseURL

if TYPE_CHECKING:
    from fbtasks.kombu.qos import QoS
    from fbtasks.kombu.transport import Transport

logger = logging.getLogger("fbtasks.kombu")
_UNCLAIM: Final = 1.0
"""Seconds after which a claim whose answer was lost is given back once more."""
_UNCLAIM_FOR: Final = 60.0
_PIGGYBACK: Final = 800
"""Settlements that travel with a claim, at most."""
_POOL: Final = 10

_brokers: dict[tuple[str, str | None, bool | None], Broker] = {}
_lock = threading.Lock()


@dataclass(slots=True, eq=False)
class _Uncertain:
    """A claim whose answer was lost."""

    consumer_id: int
    claim_id: int
    queue_id: int
    again_at: float = 0.0
    until: float = 0.0
    """The monotonic time from which on it cannot take effect any more; 0 until it was given back once."""


class Broker:
    """One database as the transports of this process use it. Every method may be called from any thread."""

    def __init__(
        self,
        url: DatabaseURL,
        *,
        lease: float,
        auto_migrate: bool | None,
        delivery_limit: int | None = messages.DELIVERY_LIMIT,
    ) -> None:
        self.url = url
        self.shared = SharedDatabase(Settings(url=url, pool_size=_POOL, auto_migrate=auto_migrate))
        self.shared.keep()  # what was claimed in one database is not settled in another
        self._publisher = Publisher(self.shared)
        self.transports: WeakSet[Transport] = WeakSet()
        self._attaching = threading.Lock()
        self._lock = threading.RLock()
        self._claims = count(1)
        self._consumer_id: int | None = None
        self.rhythm = Rhythm(lease, longest=BEAT)
        self._delivery_limit = delivery_limit
        self._watch = Watch(self.rhythm)
        self._uses: Counter[str] = Counter()
        self._settlements = Settlements(self.shared)
        self._flushing = threading.Lock()
        self._uncertain: list[_Uncertain] = []
        self._qualities: WeakSet[QoS] = WeakSet()
        self._timer: threading.Timer | None = None
        self._forgotten: set[str] = set()
        self._keeper: Keeper | None = None
        self._users = 0
        self.shared.around_fork(self._before_fork, self._after_fork)

    # What transports are to it.

    def attach(self, transport: Transport) -> None:
        """Another transport begins."""
        with self._attaching:
            self.transports.add(transport)
            self._users += 1

    def detach(self, transport: Transport) -> None:
        """A transport ends; with the last one the connections are closed after a while."""
        with self._attaching:
            self.transports.discard(transport)
            self._users -= 1
            idle = self._users == 0
        if idle:
            if self._keeper is not None:
                self._keeper.linger()
            else:
                self._close_later()

    def _close_later(self) -> None:
        timer = threading.Timer(LINGER, self._close_if_idle)
        timer.daemon = True
        with self._attaching:
            former, self._timer = self._timer, timer
        if former is not None:
            former.cancel()
        timer.start()

    def _close_if_idle(self) -> None:
        if self.idle and not self.shared.inherited and self._keeper is None:
            self.shared.close()

    def attached(self) -> list[Transport]:
        """The transports at this moment."""
        with self._attaching:
            return list(self.transports)

    def watch(self, quality: QoS) -> None:
        """What a channel has unsettled is this process's, also when its connection is lost."""
        with self._attaching:
            self._qualities.add(quality)

    @property
    def idle(self) -> bool:
        """Whether no transport is attached, and nothing is worked on that came over one."""
        with self._attaching:
            return self._is_idle()

    def _is_idle(self) -> bool:
        return self._users == 0 and not any(quality.busy for quality in self._qualities)

    def verify(self) -> None:
        """Raises what keeps the database from answering."""
        self.shared.verify()
        # Only now: the driver's own exit function, which shuts the library down, must run after this one.
        atexit.unregister(close_all)
        atexit.register(close_all)
        self.shared.at_pool_exit(close_all)

    def wake(self, names: Iterable[str]) -> None:
        """Tells the transports that events came."""
        buckets = {int(name.rpartition(":")[2]) for name in names if not name.startswith(messages.OWN_EVENT)}
        if buckets:
            for transport in self.attached():
                transport.wake(buckets)

    # What is declared.

    def declare_exchange(self, name: str, kind: str | None, *, durable: bool, auto_delete: bool) -> str | None:
        """See :func:`messages.declare_exchange`."""
        return self.shared.use(
            lambda t: messages.declare_exchange(t, name, kind, durable=durable, auto_delete=auto_delete)
        )

    def drop_exchange(self, name: str, *, if_unused: bool) -> bool:
        """See :func:`messages.drop_exchange`."""
        return self.shared.use(lambda t: messages.drop_exchange(t, name, if_unused=if_unused))

    def declare_queue(self, spec: QueueSpec, *, passive: bool) -> QueueFacts | None:
        """See :func:`messages.declare_queue`."""
        kind = {"kind": READ} if passive else {}
        return self.shared.use(lambda t: messages.declare_queue(t, spec, self._consumer_id, passive=passive), **kind)

    def drop_queue(self, name: str, *, if_unused: bool, if_empty: bool) -> bool:
        """See :func:`messages.drop_queue`. Settlements on their way come first."""
        self.flush()
        return self.shared.use(
            lambda t: messages.drop_queue(t, name, self._consumer_id, if_unused=if_unused, if_empty=if_empty)
        )

    def bind(self, queue: str, exchange: str, routing_key: str) -> int:
        """See :func:`messages.bind`."""
        return self.shared.use(lambda t: messages.bind(t, queue, exchange, routing_key))

    def unbind(self, queue: str, exchange: str, routing_key: str) -> bool:
        """See :func:`messages.unbind`."""
        return self.shared.use(lambda t: messages.unbind(t, queue, exchange, routing_key))

    def bindings(self) -> list[tuple[str, str, str]]:
        """See :func:`messages.bindings`."""
        return self.shared.use(messages.bindings, READ)

    def exchanges(self) -> list[str]:
        """See :func:`messages.exchanges`."""
        return self.shared.use(messages.exchanges, READ)

    def purge(self, queue: str) -> int | None:
        """Deletes what waits in a queue. Gives how many messages; None when there is no such queue."""
        total = 0
        while True:
            gone = self.shared.use_in_turn(lambda t: messages.purge(t, queue))
            if gone is None:
                return None
            total += gone
            if gone < messages.BATCH:
                return total

    # Messages.

    def publish(self, items: list[Publication]) -> list[int]:
        """See :meth:`Publisher.publish`."""
        return self._publisher.publish(items)

    def claim(self, queue_id: int, most: int) -> Taken:
        """Claims up to *most* messages; settlements that wait go with it."""
        while True:
            consumer_id = self.register()
            claim_id = next(self._claims)
            with self._flushing:
                records = self._settlements.take(_PIGGYBACK)
                try:
                    found = self.shared.use_in_turn(
                        lambda t: messages.claim(t, consumer_id, claim_id, queue_id, most, b"".join(records))  # noqa: B023
                    )
                except BaseException as error:
                    self._settlements.put_back(records)
                    known = isinstance(error, ConflictError | StatementRefused)
                    if not known:
                        with self._lock:
                            self._uncertain.append(_Uncertain(consumer_id, claim_id, queue_id))
                    if not known or not records:
                        raise
                    self._settlements.write(consumer_id)  # one of them was in the way
                    continue
            if found is not None:
                return found
            self._struck(consumer_id)

    def ask(self, queue: str) -> int | None:
        """The number of a queue that is asked for a message; None: there is none."""
        return self.shared.use(lambda t: messages.ask(t, queue))

    def ready(self, queues: Iterable[int]) -> tuple[set[int], float | None]:
        """See :func:`messages.ready`."""
        numbers = list(queues)
        return self.shared.use(lambda t: messages.ready(t, numbers), READ)

    def withheld(self, queues: Sequence[int], most: int) -> list[Claimed]:
        """See :func:`messages.withheld`; the next ones of all *queues*."""
        found = self.shared.use(lambda t: [messages.withheld(t, queue, most) for queue in queues], READ)
        return [message for _, message in sorted(chain(*found), key=lambda pair: pair[0])[:most]]

    def body(self, number: int) -> bytes | None:
        """See :func:`messages.body`."""
        return self.shared.use(lambda t: messages.body(t, number), READ)

    def settle(self, record: bytes) -> None:
        """Takes a settlement (see :meth:`Claimed.settle`); it is written within milliseconds, with others."""
        if self._settlements.add(record) and self._keeper is not None:
            self._keeper.flush_soon()

    def flush(self) -> None:
        """Writes the settlements that wait, and gives back claims whose answer was lost."""
        self._flush(self._consumer_id)

    def _flush(self, consumer_id: int | None) -> None:
        with self._flushing:
            self._settlements.write(consumer_id)
        for claim in list(self._uncertain):
            self._unclaim(claim)

    def _unclaim(self, claim: _Uncertain) -> None:
        """Gives back a claim whose answer was lost; for a while again and again, as its commit may come later."""
        now = clock.monotonic()
        if now < claim.again_at:
            return
        claim.again_at = now + _UNCLAIM
        try:
            self.shared.use_in_turn(lambda t: messages.unclaim(t, claim.consumer_id, claim.claim_id, claim.queue_id), 1)
        except ConflictError:  # it is being committed
            return
        claim.until = claim.until or now + _UNCLAIM_FOR
        if now >= claim.until:
            with self._lock:
                self._uncertain.remove(claim)

    # The consumer.

    def register(self) -> int:
        """The number of this process among the consumers; it is registered the first time."""
        if self._consumer_id is not None:
            return self._consumer_id
        with self._lock:
            if self._consumer_id is None:
                self._watch.begin()
                pid = os.getpid()
                self.shared.use(lambda t: refuse_copy(t, self.url), READ)
                host, begun = hosts.host_name(), hosts.start_ticks(pid)
                lease, limit = self.rhythm.lease, self._delivery_limit
                number = self.shared.use(lambda t: messages.register(t, host, pid, begun, lease, limit))
                for queue in list(self._uses):
                    there = self.shared.use(lambda t, q=queue: messages.use(t, number, q, begins=True))  # type: ignore[misc]
                    if there is None:
                        for transport in self.attached():
                            transport.lose(queue)
                self._consumer_id = number
                self._watch.registered()
                if self._keeper is None:
                    self._keeper = Keeper(self)
                    self._keeper.start()
                else:
                    self._keeper.renamed()
            return self._consumer_id

    @property
    def consumer_id(self) -> int | None:
        """The number of this process among the consumers, None when it is none."""
        return self._consumer_id

    def _struck(self, consumer_id: int) -> None:
        """This process was taken for dead: its claims are somebody else's now, and it begins anew."""
        with self._lock:
            if self._consumer_id == consumer_id:
                logger.warning("Consumer %d was taken for dead; its messages are delivered again.", consumer_id)
                self._consumer_id = None

    def begin(self, queue: str) -> int | None:
        """One more consumer of a queue begins here. Gives the queue's number; None: there is none."""
        consumer_id = self.register()
        number = self.shared.use(lambda t: messages.use(t, consumer_id, queue, begins=True))
        if number is not None:
            with self._lock:
                self._uses[queue] += 1
        return number

    def cease(self, queue: str) -> None:
        """One consumer of a queue ends here; an auto-delete queue goes with the last."""
        with self._lock:
            self._uses[queue] -= 1
            last = self._uses[queue] <= 0
            if last:
                del self._uses[queue]
        consumer_id = self._consumer_id
        if last and consumer_id is not None:
            with self._lock:
                self._forgotten.add(queue)
            self.flush()
            self._tell_forgotten(consumer_id)

    def forget_use(self, queue: str) -> None:
        """A consumer was lost with its connection; the database is told when it answers again, unless it came back."""
        with self._lock:
            self._uses[queue] -= 1
            if self._uses[queue] <= 0:
                del self._uses[queue]
                self._forgotten.add(queue)

    def _tell_forgotten(self, consumer_id: int) -> None:
        for queue in list(self._forgotten):
            if queue not in self._uses:
                self.shared.use(lambda t, q=queue: messages.use(t, consumer_id, q, begins=False))  # type: ignore[misc]
            with self._lock:
                self._forgotten.discard(queue)

    def beat(self) -> float:
        """Renews the lease, and takes back what dead neighbours held. Gives the seconds until it is to come again."""
        consumer_id = self._consumer_id
        if consumer_id is None:
            if self._uses:
                self.register()
            return self.rhythm.heartbeat
        self._watch.begin()
        times = {"lease": self.rhythm.lease, "beat": self.rhythm.heartbeat}
        registered, renewed, silence, self.sweeps, neighbours, transaction = self.shared.use(
            lambda t: messages.beat(t, consumer_id, share=SHARE, **times)
        )
        if not registered:
            self._struck(consumer_id)
            self.register()
            return self.rhythm.heartbeat
        self.shared.saw(transaction)
        if renewed:
            self._watch.beaten(silence)
        else:
            self._watch.held_up()
        suspects = self._watch.suspects(neighbours)
        rescue(suspects, self._take_back, self._cut, kind="Consumer", again="messages are delivered")
        return self._watch.pause(neighbours)

    def lost(self) -> None:
        """The connection was lost in the middle of something."""
        self._watch.lost()

    def _take_back(self, suspect: Suspect) -> tuple[int, str | None]:
        number, gone, credit = suspect.neighbour.worker_id, suspect.gone, suspect.credit
        return self.shared.use_in_turn(lambda t: messages.rescue(t, number, gone=gone, share=SHARE, credit=credit))

    def _cut(self, suspect: Suspect) -> bool:
        number, credit = suspect.neighbour.worker_id, suspect.credit
        return self.shared.use(lambda t: messages.cut_consumer(t, number, share=SHARE, credit=credit))

    sweeps = False
    """Whether this process is the one that sweeps, as the last heartbeat told."""
    _swept_up_to = 0
    """The number of the message up to which the last sweep looked for expired ones."""

    def sweep(self) -> bool:
        """Takes away some of what is over, where it is this process's turn. Gives whether there may be more."""
        if self._consumer_id is not None and self._forgotten:
            self._tell_forgotten(self._consumer_id)
        if not self.sweeps:
            return False
        swept = self.shared.use_in_turn(lambda t: messages.sweep(t, self._swept_up_to))
        self._swept_up_to = swept.last or 0
        return max(swept.queues, swept.released, swept.expired) >= messages.BATCH

    def renew_queues(self) -> dict[str, int]:
        """The numbers of the queues consumed here: one that was deleted and declared again has another one."""
        consumer_id = self._consumer_id
        if consumer_id is None:
            return {}
        with self._lock:
            names = list(self._uses)

        def look(transaction: Transaction) -> dict[str, int]:
            found = {}
            for name in names:
                number = messages.ask(transaction, name)
                if number is not None:
                    found[name] = number
            return found

        return self.shared.use(look) if names else {}

    def reuse(self, queue: str) -> None:
        """Notes anew that this process consumes from *queue*."""
        consumer_id = self._consumer_id
        if consumer_id is not None:
            self.shared.use(lambda t: messages.use(t, consumer_id, queue, begins=True))

    # Its end.

    def close(self) -> None:
        """Writes what waits, strikes this process off the consumers and closes the connections."""
        keeper = self._keeper
        if keeper is not None:  # first: without a number it would register anew
            keeper.stop()
        with self._lock:
            self._keeper = None
            consumer_id, self._consumer_id = self._consumer_id, None
        self._strike_off(consumer_id)
        self.shared.close()

    def retire(self) -> bool:
        """The same, when nobody has used it for a while; called by the keeper. False when somebody does again."""
        self.flush()
        with self._lock, self._attaching:
            if not self._is_idle():
                return False
            self._keeper = None
            consumer_id, self._consumer_id = self._consumer_id, None
        self._strike_off(consumer_id)
        if self.idle:
            self.shared.close()
        return True

    def _strike_off(self, consumer_id: int | None) -> None:
        if consumer_id is None:
            return
        try:
            self._flush(consumer_id)
            self.shared.use_in_turn(lambda t: messages.unregister(t, consumer_id))
        except DatabaseError as error:
            logger.info("Not struck off at the end: %s", error)

    def _before_fork(self) -> None:
        if self._keeper is not None:
            self._keeper.pause()

    def _after_fork(self) -> None:
        if self._keeper is not None:
            self._keeper.resume()


def broker_for(
    url: DatabaseURL, *, lease: float, auto_migrate: bool | None, delivery_limit: int | None = messages.DELIVERY_LIMIT
) -> Broker:
    """The broker of this process for *url*; the first caller's options count.

    It is another one when the database's file was replaced: the former lets go of its connections, and its transports
    have to be connected anew.
    """
    key = (str(url), url.password, auto_migrate)
    with _lock:
        former = _brokers.get(key)
        if former is not None and not former.shared.inherited and not former.shared.replaced:
            return former
        broker = _brokers[key] = Broker(url, lease=lease, auto_migrate=auto_migrate, delivery_limit=delivery_limit)
    if former is not None and not former.shared.inherited:  # its file was deleted or replaced
        former.close()
    return broker


def close_all() -> None:
    """Closes the connections of all transports of this process that are not in use any more."""
    with _lock:
        brokers = list(_brokers.values())
        _brokers.clear()
    for broker in brokers:
        if not broker.shared.inherited:
            broker.close()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _kept.extend(_brokers.values())  # the parent's, with its locks: neither used nor collected
    _brokers.clear()


_kept: list[Broker] = []
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
