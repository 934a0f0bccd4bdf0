"""What is done to workers, their children and their connections, at random moments; each of it is recorded first."""

import os
import signal
import time
from collections import Counter
from contextlib import suppress

from soak.processes import children_of

SIGNALS = {"kill": 4.0, "kill child": 4.0, "stop briefly": 3.0, "stop long": 1.0, "terminate": 3.0}
NETWORK = {"cut": 3.0, "cut after": 4.0, "freeze": 2.0, "refuse": 2.0, "throttle": 2.0}
LOCKS = {"row lock": 3.0, "host lock": 1.0}
KINDS = (*SIGNALS, *NETWORK, *LOCKS, "suicide", "descriptors", "copy")
"""All kinds of harm: what is done from here, what tasks do, and what is done at the end."""
TOO_YOUNG = 1.0
"""Seconds that a worker has after it is ready, so that some of them get to work."""


class Faults:
    """Injects faults, one at a time, from a random number generator of its own."""

    def __init__(
        self,
        fleet,
        ledger,
        rng,
        *,
        lease,
        longest,
        proxy=None,
        locks=None,
        kinds=KINDS,
    ):
        self.fleet = fleet
        self.ledger = ledger
        self.rng = rng
        self.lease = lease
        self.longest = longest
        self.proxy = proxy
        self.locks = locks
        self._signals, self._network, self._locks = (
            {kind: weight for kind, weight in weights.items() if kind in kinds} for weights in (SIGNALS, NETWORK, LOCKS)
        )
        self.done = Counter()
        self._stopped = None
        self._network_until = 0.0
        self._next_signal = self._next_network = self._next_lock = time.monotonic() + 3.0

    def step(self):
        """Does what is due."""
        now = time.monotonic()
        self._resume(now)
        if self.proxy is not None:
            self._mend(now)
            if self._network and now >= self._next_network:
                self._disturb(self.proxy)
                self._next_network = now + self.rng.uniform(1.0, 6.0)
        if self.locks is not None and self._locks and now >= self._next_lock:
            what = self.rng.choices(list(self._locks), list(self._locks.values()))[0]
            self.done[what] += self.locks.hold(what, self.rng.uniform(0.5, min(4.0, self.longest)))
            self._next_lock = now + self.rng.uniform(0.5, 4.0)
        if self._signals and now >= self._next_signal:
            self._strike()
            self._next_signal = now + self.rng.uniform(0.3, 2.5)

    def _strike(self):
        old = time.monotonic() - TOO_YOUNG
        found = [w for w in self.fleet.workers.values() if w.fate is None and w.started < old and w.ready()]
        if not found:
            return
        worker = self.rng.choice(found)
        weights = dict(self._signals)
        if self._stopped is not None:
            weights.pop("stop briefly", None)
        if self._stopped is not None or self.lease * 1.5 > self.longest:
            weights.pop("stop long", None)
        if not weights:
            return
        what = self.rng.choices(list(weights), list(weights.values()))[0]
        self.done[what] += 1
        match what:
            case "kill":
                worker.fate = "SIGKILL"
                self._signal("SIGKILL", worker.pid, worker)
                worker.process.wait()  # reaped at once
            case "kill child":
                children = children_of(worker.pid)
                if children:
                    self._signal("SIGKILL", self.rng.choice(children), worker)
                else:
                    self.done[what] -= 1
            case "terminate":
                worker.fate = "SIGTERM"
                self._signal("SIGTERM", worker.pid, worker, until=time.monotonic() + 40)
            case "stop briefly":
                self._stop(worker, self.rng.uniform(0.05, self.lease * 0.25))
            case "stop long":
                self._stop(worker, self.lease * self.rng.uniform(1.2, 1.5))

    def _signal(self, name, pid, worker, **fields):
        self.ledger.write("fault", what=name, target=pid, worker=worker.name, **fields)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[name])

    def _stop(self, worker, seconds):
        worker.stopped_until = time.monotonic() + seconds
        self._signal("SIGSTOP", worker.pid, worker, until=worker.stopped_until + 0.1)
        self._stopped = worker

    def _resume(self, now, *, at_once=False):
        worker = self._stopped
        if worker is None or worker.stopped_until is None:
            return
        if at_once or now >= worker.stopped_until or worker.process.poll() is not None:
            if worker.process.poll() is None:
                os.kill(worker.pid, signal.SIGCONT)
            self.ledger.write("continued", target=worker.pid, late=round(now - worker.stopped_until, 3))
            self._stopped, worker.stopped_until = None, None

    # The network

    def _disturb(self, proxy):
        now = time.monotonic()
        if now < self._network_until:
            return
        what = self.rng.choices(list(self._network), list(self._network.values()))[0]
        self.done[what] += 1
        match what:
            case "cut":
                proxy.cut()
            case "cut after":
                proxy.cut_after(self.rng.randint(1, 4000), self.rng.choice(("to_server", "to_client")))
            case "freeze":
                self._network_until = now + self.rng.uniform(0.2, min(2.0, self.lease / 2))
                self.ledger.write("fault", what="freeze", target=None, until=self._network_until + 0.2)
                proxy.freeze(True)
            case "throttle":
                self._network_until = now + self.rng.uniform(1.0, min(8.0, self.longest))
                self.ledger.write("fault", what="throttle", target=None, until=self._network_until + 1.0)
                proxy.throttle(self.rng.choice((3_000, 20_000, 100_000)))
            case "refuse":
                self._network_until = now + self.rng.uniform(0.2, 3.0)
                self.ledger.write("fault", what="refuse", target=None, until=self._network_until + 0.2)
                proxy.refuse(True)
                proxy.cut()

    def cut_happened(self):
        """Records a cut when it comes; for the proxy to call."""
        self.ledger.write("fault", what="cut", target=None, until=time.monotonic() + 1.0)

    def _mend(self, now, *, at_once=False):
        if self.proxy is not None and self._network_until and (at_once or now >= self._network_until):
            self.proxy.freeze(False)
            self.proxy.refuse(False)
            self.proxy.throttle(None)
            self._network_until = 0.0

    def stop(self):
        """Ends all faults: stopped processes go on, and the network is whole."""
        now = time.monotonic()
        self._resume(now, at_once=True)
        self._mend(now, at_once=True)
        if self.proxy is not None:
            self.proxy.disarm()
        if self.locks is not None:
            self.locks.wait()
