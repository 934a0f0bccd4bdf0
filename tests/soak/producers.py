"""A producer: ``python -m soak.producers single|bulk|transaction SEED``.

Every enqueue is recorded before it is tried, and again when it is known what came of it.
"""

import random
import sys
import time
from contextlib import suppress

from fbtasks.errors import DatabaseUnavailable, EnqueueUncertain, FBTasksError
from soak import limited_tasks, tasks
from soak.ledger import Ledger
from soak.limited import COUNTED
from soak.settings import Run

WEIGHTS = {
    "quick": 30, "ignored": 12, "sleeping": 15, "coroutine": 12, "failing": 6, "retrying": 9, "transactional": 15,
    "rejected": 6, "awaited": 6, "suicidal": 0.25, "closing": 1.0,
    "alone": 8, "few": 8, "several": 10, "gated": 6, "ordered": 12,
}  # fmt: skip
HARMFUL = {"suicidal": "suicide", "closing": "descriptors"}
"""Tasks that do harm, and of which kind."""
BULK = (
    "quick", "ignored", "sleeping", "coroutine", "transactional", "rejected", "awaited", "few", "several", "gated",
    "ordered",
)  # fmt: skip
LARGE = "x" * 6000
"""A payload and a result too large for their rows."""
ZONE = "Pacific/Kiritimati"
"""Of the sessions of producers' own connections."""


def surely_refused(error):
    """Whether *error* says that nothing was written: every error of ours but the one for the uncertain case."""
    return isinstance(error, FBTasksError) and not isinstance(error, EnqueueUncertain)


def connect():
    """A connection of a producer's own."""
    connection = tasks.app.connect()
    try:
        connection.execute_immediate(f"SET TIME ZONE '{ZONE}'")
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def task_of(kind):
    """The task of a kind."""
    return getattr(limited_tasks if kind in COUNTED else tasks, kind)


class Producer:
    """Makes up calls and enqueues them, until the time is over."""

    def __init__(self, how, seed):
        self.how = how
        self.rng = random.Random(f"{seed}/{how}")
        self.run = Run.here()
        self.ledger = Ledger(self.run.ledger, f"producer-{how}")
        self.made = 0
        self.weights = {kind: w for kind, w in WEIGHTS.items() if HARMFUL.get(kind, "") in ("", *self.run.kinds)}
        self.connection = None

    def attempt(self, kind):
        self.made += 1
        ref = f"{self.how}-{self.made:06}"
        self.ledger.write("attempt", ref=ref, kind=kind, how=self.how)
        return ref

    def kind(self):
        return self.rng.choices(list(self.weights), list(self.weights.values()))[0]

    def arguments(self, kind, ref):
        rng = self.rng
        match kind:
            case "quick":
                return (ref, LARGE) if rng.random() < 0.05 else (ref,)
            case "sleeping" | "coroutine":
                return (ref, round(rng.uniform(0.005, 0.3), 3))
            case "transactional":
                return (ref, round(rng.choice((0.0, rng.uniform(0.005, 0.2))), 3))
            case "retrying":
                return (ref, rng.randint(0, 3))
            case "closing":
                return (ref, rng.choice((1, 1, 2, 5)))
            case "suicidal":
                return (ref, rng.choice((1, 1, 2, 5)), rng.choice(("exit", "kill")))
            case "few" | "several":
                return (ref, "key", round(rng.uniform(0.05, 0.25), 3))
            case "alone" | "gated" | "ordered":
                return (ref, f"key {rng.randrange(3)}", round(rng.uniform(0.01, 0.06), 3))
            case _:
                return (ref,)

    def options(self, kind, ref):
        rng = self.rng
        if kind == "ordered":  # in the order of enqueueing, whatever the priority
            return {"priority": rng.randint(-5, 5)} if rng.random() < 0.2 else {}
        options = {}
        if rng.random() < 0.3:
            options["task_id"] = f"soak-{ref}"
        if rng.random() < 0.2:
            options["countdown"] = round(rng.uniform(0.1, 2.0), 2)
            self.ledger.write("delayed", ref=ref, seconds=options["countdown"])
        if rng.random() < 0.2:
            options["priority"] = rng.randint(-5, 5)
        return options

    def acknowledge(self, refs, results):
        for ref, result in zip(refs, results, strict=True):
            self.ledger.write("ack", ref=ref, id=result.id)

    def report(self, refs, error, *, refused):
        what = f"{type(error).__name__}: {error}"[:300]
        for ref in refs:
            self.ledger.write("refused" if refused else "uncertain", ref=ref, error=what)

    def single(self):
        kind = self.kind()
        ref = self.attempt(kind)
        task = task_of(kind)
        options = self.options(kind, ref)
        try:
            if options:
                result = task.apply_async(self.arguments(kind, ref), **options)
            else:
                result = task.delay(*self.arguments(kind, ref))
        except Exception as error:
            self.report([ref], error, refused=surely_refused(error))
        else:
            self.acknowledge([ref], [result])
        self.rest(0.04)

    def bulk(self):
        kind = self.rng.choice(BULK)
        refs = [self.attempt(kind) for _ in range(self.rng.randint(2, 30))]
        try:
            results = task_of(kind).delay_many([self.arguments(kind, ref) for ref in refs])
        except Exception as error:
            self.report(refs, error, refused=surely_refused(error))
        else:
            self.acknowledge(refs, results)
        self.rest(0.8)

    def transaction(self):
        """A few calls in a transaction of the producer's own, which is rolled back one time in four."""
        refs = []
        results = []
        committing = False
        try:
            if self.connection is None:
                self.connection = connect()
            self.connection.begin()
            for _ in range(self.rng.randint(1, 3)):
                kind = self.kind()
                refs.append(self.attempt(kind))
                task = task_of(kind).using(self.connection)
                results.append(task.apply_async(self.arguments(kind, refs[-1]), **self.options(kind, refs[-1])))
            if self.rng.random() < 0.25:
                self.connection.rollback()
                for ref in refs:
                    self.ledger.write("rolledback", ref=ref)
            else:
                committing = True
                self.connection.commit()
                self.acknowledge(refs, results)
        except Exception as error:
            self.report(refs, error, refused=not committing)
            self.disconnect()
        self.rest(0.1)

    def disconnect(self):
        """A transaction whose connection is closed without a commit is rolled back by the database."""
        if self.connection is not None:
            with suppress(Exception):
                self.connection.rollback()
            with suppress(Exception):
                self.connection.close()
            self.connection = None

    def rest(self, seconds):
        time.sleep(self.rng.uniform(0, 2 * seconds))
        while self.run.pause.exists() and self.run.going_on():
            time.sleep(0.05)

    def work(self):
        step = {"single": self.single, "bulk": self.bulk, "transaction": self.transaction}[self.how]
        while self.run.going_on():
            step()
        self.disconnect()
        with suppress(DatabaseUnavailable):
            tasks.app.close()


if __name__ == "__main__":
    Producer(sys.argv[1], sys.argv[2]).work()
