"""A producer for sources: ``python -m soak.source_producers NAME SEED``.

Changes rows, raises events and inserts rows for a poll, a few of each in one transaction; parts of it go back to a
savepoint, and some of it is rolled back. What it does is in SOAK_SAID as well, and in the ledger when it is known what
came of it.
"""

import json
import random
import sys
import time
from contextlib import suppress

from firebird.driver import Isolation, tpb

from fbtasks.errors import DatabaseUnavailable
from soak import tasks
from soak.ledger import Ledger
from soak.producers import connect
from soak.settings import Run
from soak.sources import HANDLERS, KEYS

READY = (
    "SELECT COUNT(*) FROM QUEUE_SUBSCRIPTION WHERE STATE = 'active' AND (KIND <> 'change' OR ACTIVE_TIME IS NOT NULL)"
)
ISOLATIONS = (Isolation.SNAPSHOT, Isolation.READ_COMMITTED_RECORD_VERSION, Isolation.READ_COMMITTED_READ_CONSISTENCY)
CHANGE = "UPDATE SOAK_ROW SET N = N + 1, REF = ? WHERE ID = ? RETURNING N"
RAISE = "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('soak.said', ?, NULL, ?)"
INSERT = "INSERT INTO SOAK_INBOX (REF) VALUES (?)"
SAY = "INSERT INTO SOAK_SAID (REF, WHAT, LANE, N) VALUES (?, ?, ?, ?)"
PATIENCE = 60.0
"""Seconds that workers may take to begin to listen."""
LEAST = 30
"""What is said at least, also in a soak that is over when workers have begun."""


class SourceProducer:
    """Makes up transactions, until the time is over."""

    def __init__(self, name, seed):
        self.name = name
        self.rng = random.Random(f"{seed}/{name}")
        self.run = Run.here()
        self.ledger = Ledger(self.run.ledger, name)
        self.connection = None
        self.made = 0
        self.raised = 0

    def transaction(self):
        """One transaction, which is rolled back one time in five."""
        said = []
        gone = []
        try:
            self.connect().begin(tpb(self.rng.choice(ISOLATIONS), lock_timeout=5))
            with self.connection.cursor() as cursor:
                for _ in range(self.rng.choice((1, 1, 2, 3))):
                    self.part(cursor, said, gone)
        except Exception as error:
            self.ledger.write("note", text=f"{self.name}: {type(error).__name__}: {error}"[:300])
            self.undo(said + gone)
            return
        if gone:
            self.ledger.write("undone", refs=gone)
        if self.rng.random() < 0.2:
            self.undo(said)
        else:
            self.commit(said)

    def part(self, cursor, said, gone):
        """Says a few things behind a savepoint, and goes back to it one time in four."""
        cursor.execute("SAVEPOINT PART")
        refs = said if self.rng.random() < 0.75 else gone
        for number in range(self.rng.randint(1, 4)):
            self.made += 1
            refs.append(f"{self.name}-{self.made:06}")
            self.rng.choices((self.change, self.event, self.row), (5, 2, 2 - min(number, 1)))[0](cursor, refs[-1])
        cursor.execute("ROLLBACK TO SAVEPOINT PART" if refs is gone else "RELEASE SAVEPOINT PART")

    def change(self, cursor, ref):
        key = self.rng.randint(1, KEYS)
        (n,) = cursor.execute(CHANGE, (ref, key)).fetchone()
        cursor.execute(SAY, (ref, "change", str(key), n))

    def event(self, cursor, ref):
        """Raises an event, half of the time with one of the producer's own order keys."""
        self.raised += 1
        lane = self.rng.choice((None, f"{self.name} {self.rng.randint(1, 3)}"))
        cursor.execute(RAISE, (json.dumps({"ref": ref, "n": self.raised}), lane))
        cursor.execute(SAY, (ref, "event", lane, self.raised))

    def row(self, cursor, ref):
        cursor.execute(INSERT, (ref,))
        cursor.execute(SAY, (ref, "row", None, 0))

    def commit(self, refs):
        self.ledger.write("said", refs=refs)
        try:
            self.connection.commit()
        except Exception as error:  # it may have been committed: SOAK_SAID knows
            self.ledger.write("note", text=f"{self.name}: commit: {type(error).__name__}: {error}"[:300])
            self.disconnect()
        else:
            self.ledger.write("committed", refs=refs)

    def undo(self, refs):
        """What is not committed is undone by the database when the connection ends."""
        self.ledger.write("undone", refs=refs)
        try:
            self.connection.rollback()
        except Exception:
            self.disconnect()

    def connect(self):
        if self.connection is None:
            self.connection = connect()
        return self.connection

    def disconnect(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def is_heard(self):
        """Whether all handlers are known to the database."""
        try:
            with self.connect().cursor() as cursor:
                (count,) = cursor.execute(READY).fetchone()
            self.connection.rollback()
        except Exception:
            self.disconnect()
            return False
        return bool(count == len(HANDLERS))

    def work(self):
        limit = time.monotonic() + PATIENCE
        while time.monotonic() < limit and not self.is_heard():
            time.sleep(0.1)
        self.disconnect()  # a connection of before the triggers may have prepared statements without them
        while self.run.going_on() or self.made < LEAST:
            self.transaction()
            time.sleep(self.rng.uniform(0, 0.5))
            while self.run.pause.exists() and self.run.going_on():
                time.sleep(0.05)
        self.disconnect()
        with suppress(DatabaseUnavailable):
            tasks.app.close()


if __name__ == "__main__":
    SourceProducer(sys.argv[1], sys.argv[2]).work()
