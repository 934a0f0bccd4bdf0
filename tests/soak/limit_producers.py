"""A producer of unique calls, workflows and bursts: ``python -m soak.limit_producers NAME SEED``."""

import sys
from contextlib import suppress

from firebird.driver import Isolation, tpb

from fbtasks import GroupResult, chord, group
from fbtasks.errors import DatabaseUnavailable
from soak import limited_tasks, tasks
from soak.producers import Producer, connect, surely_refused, task_of

ISOLATIONS = (Isolation.SNAPSHOT, Isolation.READ_COMMITTED_READ_CONSISTENCY)
KEYS = 3
"""Keys of unique calls."""
LEAST = 11
"""Turns at least, also in a soak that is over soon."""


class LimitProducer(Producer):
    """Makes up what has an account of its own, until the time is over."""

    def name(self, kind):
        self.made += 1
        return f"{self.how}{kind}{self.made:05}"

    def once(self):
        """Calls of a unique task in a transaction of the caller's own, which is rolled back one time in three."""
        asked = []
        committing = False
        try:
            if self.connection is None:
                self.connection = connect()
            self.connection.begin(tpb(self.rng.choice(ISOLATIONS), lock_timeout=0))
            for _ in range(self.rng.randint(1, 3)):
                key = f"k{self.rng.randrange(KEYS)}"
                asked.append(f"{self.name('once')}-{key}-{self.made}")
                self.ledger.write("asked", ref=asked[-1], key=key)
                limited_tasks.once.using(self.connection).delay(asked[-1], key)
            if self.rng.random() < 0.33:
                self.connection.rollback()
                return
            committing = True
            self.connection.commit()
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:300]
            self.ledger.write("note", text=f"{self.how}: once, {'at' if committing else 'before'} the commit: {what}")
            self.disconnect()
        else:
            for ref in asked:
                self.ledger.write("granted", ref=ref)

    def flow(self):
        """A workflow, of which one in three has a step that fails."""
        kind = self.rng.choice(("chain", "group", "chord"))
        ref = self.name(kind)
        size = self.rng.randint(2, 12)
        fails = self.rng.randrange(size) if self.rng.random() < 0.33 else None
        self.ledger.write("flow", ref=ref, kind=kind, size=size, fails=fails)
        try:
            ids = sorted(each.id for each in _all(self.made_of(kind, ref, size, fails)))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"[:300]
            self.ledger.write("flow refused" if surely_refused(error) else "flow uncertain", ref=ref, error=what)
        else:
            self.ledger.write("flow made", ref=ref, ids=ids)

    def made_of(self, kind, ref, size, fails):
        parts = [(f"{ref}.{number}", number == fails) for number in range(size)]
        if kind == "chain":
            first, *rest = [limited_tasks.step.s(*part) for part in parts]
            for each in rest:
                first = first | each
            return first.delay()
        members = group(limited_tasks.member.s(*part) for part in parts)
        if kind == "group":
            return members.delay()
        return chord(members, limited_tasks.body.s(f"{ref}.body")).delay()

    def burst(self):
        """Calls at once that fill the places of a limit, or about as many as a rate lets through in a second."""
        kind = self.rng.choice(("rated", "few", "several", "ordered"))
        refs = [self.attempt(kind) for _ in range(self.rng.randint(*((150, 250) if kind == "rated" else (10, 25))))]
        try:
            results = task_of(kind).delay_many([self.arguments(kind, ref) for ref in refs])
        except Exception as error:
            self.report(refs, error, refused=surely_refused(error))
        else:
            self.acknowledge(refs, results)

    def work(self):
        turns = 0
        while self.run.going_on() or turns < LEAST:
            if turns % 5 == 0:
                self.burst()
            else:
                self.rng.choice((self.once, self.once, self.flow))()
            turns += 1
            self.rest(0.25)
        self.disconnect()
        with suppress(DatabaseUnavailable):
            tasks.app.close()


def _all(result):
    """The results of all tasks of a workflow."""
    while result is not None:
        if isinstance(result, GroupResult):
            yield from result.tasks
        else:
            yield result
        result = result.parent


if __name__ == "__main__":
    LimitProducer(sys.argv[1], sys.argv[2]).work()
