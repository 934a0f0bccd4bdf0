"""Unique tasks, exactly: each change that was committed with a call is seen by a run of its key."""

import random
import threading
from collections import defaultdict

from firebird.driver import Isolation, tpb
from firebird.driver.types import DatabaseError
from support.sql import again, execute, one, rows

from fbtasks import Unique
from fbtasks.errors import ConflictError
from fbtasks.firebird.driver.translate import translate
from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded

WRITERS = 3
KEYS = 30
DONE = Succeeded(keep=False)


class Ledger:
    """Writers that change rows and enqueue the task of the key, and workers that look at the rows when it runs.

    A change that no run has seen is found when its key is not changed again: of each key, that is its last four turns.
    """

    def __init__(self, app, rounds, keys=KEYS):
        self.app, self.rounds, self.keys = app, rounds, keys
        execute(app, "CREATE TABLE ACCOUNT (KEY_ INTEGER, WRITER INTEGER, CHANGES INTEGER, PRIMARY KEY (KEY_, WRITER))")
        with app.connect() as connection, connection.cursor() as cursor:
            accounts = [(key, writer) for key in range(keys) for writer in range(WRITERS)]
            cursor.executemany("INSERT INTO ACCOUNT VALUES (?, ?, 0)", accounts)
            connection.commit()
        self.task = app.task(name="index", unique=Unique(by="key"), ignore_result=True)(lambda key: None)
        self.committed = 0
        self.found = 0
        """Calls that enqueued nothing, since another one waited."""
        self.runs = 0
        self.seen = defaultdict(dict)
        """For each key what its last run has seen of each writer's changes."""
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.errors = []

    def go(self):
        writers = [threading.Thread(target=self.guarded, args=(self.write, number)) for number in range(WRITERS)]
        workers = [threading.Thread(target=self.guarded, args=(self.work, number)) for number in (1, 2)]
        for thread in writers + workers:
            thread.start()
        for thread in writers:
            thread.join()
        self.over.set()
        for thread in workers:
            thread.join()
        assert not self.errors, self.errors
        return self

    def guarded(self, work, number):
        try:
            work(number)
        except Exception as error:  # told by the test
            self.errors.append(error)
            self.over.set()

    def write(self, writer):
        chosen = random.Random(writer)
        with self.app.connect() as connection:
            for turn in range(self.rounds):
                # All writers change the same few keys at the same time, and then leave them.
                key = (turn // 4) % self.keys
                if self.change(connection, chosen, key, writer):
                    with self.lock:
                        self.committed += 1

    def change(self, connection, chosen, key, writer):
        """One transaction, which is rolled back at random, and when another one is in its way."""
        connection.begin(tpb(Isolation.SNAPSHOT, lock_timeout=0))
        cursor = connection.cursor()
        cursor.execute("SELECT COUNT(*) FROM ACCOUNT WHERE KEY_ = ?", (key,)).fetchall()  # the snapshot is of here
        threading.Event().wait(chosen.choice([0, 0.001, 0.004]))
        in_it = chosen.random() < 0.7
        try:
            cursor.execute("UPDATE ACCOUNT SET CHANGES = CHANGES + 1 WHERE KEY_ = ? AND WRITER = ?", (key, writer))
            if in_it:
                self.task.using(connection).delay(key)
            threading.Event().wait(chosen.choice([0, 0.001, 0.004]))
            if chosen.random() < 0.3:
                connection.rollback()
                return False
            connection.commit()
        except (ConflictError, DatabaseError) as error:
            connection.rollback()
            if not isinstance(error, ConflictError) and not isinstance(translate(error), ConflictError):
                raise
            return False
        if not in_it and self.task.delay(key).duplicate:
            with self.lock:
                self.found += 1
        return True

    def work(self, worker):
        chosen = random.Random(100 + worker)
        quiet = 0
        with self.app.database.session() as session:
            while quiet < 3:
                claims = again(lambda: session.run(lambda t: tasks.claim(t, worker, "default", chosen.choice([1, 5]))))
                for each in claims:
                    self.run(int(each.payload[2:].partition(b"]")[0]))
                finished = [Finished(each, DONE) for each in claims]
                again(lambda: session.run(lambda t: tasks.finish(t, worker, 0, finished)))  # noqa: B023
                idle = self.over.is_set() and not claims and not rows(self.app, "SELECT FIRST 1 ID FROM QUEUE_TASK")
                quiet = quiet + 1 if idle else 0

    def run(self, key):
        found = rows(self.app, "SELECT WRITER, CHANGES FROM ACCOUNT WHERE KEY_ = ?", key)
        threading.Event().wait(0.002)
        with self.lock:
            self.runs += 1
            seen = self.seen[key]
            for writer, changes in found:
                seen[writer] = max(seen.get(writer, 0), changes)

    def missed(self):
        """The changes that no run of their key has seen."""
        found = rows(self.app, "SELECT KEY_, WRITER, CHANGES FROM ACCOUNT")
        return sum(changes - self.seen[key].get(writer, 0) for key, writer, changes in found)

    @property
    def merged(self):
        return one(self.app, "SELECT COUNT(*) FROM QUEUE_REDIRECT")


def test_each_committed_change_is_covered_by_a_run_that_began_after_it(app):
    ledger = Ledger(app, rounds=4 * KEYS).go()
    assert ledger.missed() == 0
    assert ledger.merged > 20
    assert ledger.found > 0
    assert ledger.runs + ledger.merged + ledger.found == ledger.committed > 100
    assert rows(app, "SELECT * FROM QUEUE_TASK") == []
