"""Changes of a table with four real workers, two of which are killed in the middle: their order, and what runs again.

Programs change rows of one table at once. Handlers write down when each call began and ended, by the clock that all
processes of the machine share, and a trigger of the test notes which tasks were taken back from the dead. What is
asserted follows from these notes and from the table alone.
"""

import math
import random
import threading
from collections import defaultdict
from contextlib import closing
from itertools import pairwise
from typing import NamedTuple

import pytest
from support.recorded import waiting
from support.shop import deployed
from support.sql import one, rows

from fbtasks.errors import ConflictError
from fbtasks.firebird.driver.translate import translate

pytestmark = pytest.mark.acceptance

WRITERS = 2
SECONDS = 300
"""How long a step of the largest variant may take on a busy machine."""
POOLS = (("processes", 1), ("solo", 1), ("solo", 1), ("solo", 1))
"""Of the four workers, of which the small variant has three. The first two are killed."""
TABLES = (
    "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER DEFAULT 0 NOT NULL, WRITER INTEGER, STEP INTEGER)",
    "CREATE TABLE EFFECT (ID INTEGER, N INTEGER)",
    "CREATE TABLE TAKEN_BACK (TASK_ID BIGINT)",
    "CREATE TRIGGER NOTE_TAKEN_BACK FOR QUEUE_TASK AFTER UPDATE AS BEGIN "
    "IF (old.STATE = 2 AND new.STATE = 0 AND new.SUSPECT > 0) THEN INSERT INTO TAKEN_BACK VALUES (new.ID); END",
    "INSERT INTO T (ID) SELECT ROW_NUMBER() OVER () FROM RDB$TYPES ROWS {keys}",
)
SOURCE = """
    import os, time

    ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(*words):
        # One call of write: the lines of several processes are not mixed, and stay when the process is killed.
        os.write(ledger, " ".join(map(str, words)).encode() + b"\\n")

    def kill(handler):
        # Ends the worker that runs this call, when it is one of those that the file "kill" names for this handler.
        try:
            with open("kill") as file: wanted, *workers = file.read().split()
        except FileNotFoundError:
            return
        worker = next((pid for pid in (os.getpid(), os.getppid()) if str(pid) in workers), None)
        if wanted == handler and worker is not None:
            try: os.rename("kill", f"killed-{worker}")
            except FileNotFoundError: return
            note("kill", worker, time.monotonic_ns())
            os.kill(worker, 9)

    def handle(self, change):
        call = self.name, self.request.id, change.id, *(change.new[each] for each in ("ID", "N", "WRITER", "STEP"))
        note("begin", os.getpid(), os.getppid(), time.monotonic_ns(), *call)
        time.sleep(change.id % 4 / 500)
        kill(self.name)
        note("end", os.getpid(), time.monotonic_ns(), self.name, change.id)

    def effect(self, change):
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO EFFECT VALUES (?, ?)", (change.key["ID"], change.new["N"]))
        handle(self, change)

    def changed(name, function=handle, **options):
        app.on_change("T", update=("N",), columns=("N", "WRITER", "STEP"), name=name, bind=True, **options)(function)
"""
HANDLERS = {
    "key": "changed('key')",
    "total": "changed('total', order='total')",
    "none": "changed('none', order=None)",
    "effect": "changed('effect', effect, transactional=True)",
}


class Call(NamedTuple):
    """A call of a handler, as it was written down."""

    begun: int
    ended: float
    """When it ended, or its worker was killed."""
    died: float
    """When its worker was killed, then or later; infinite: it was not."""
    complete: bool
    task: int
    change: int
    key: int
    value: int
    writer: int
    step: int


class Ledger:
    """What the handlers have written down so far."""

    def __init__(self, project):
        self._file = (project.folder / "ledger").open("a+b")
        self._file.seek(0)
        self._begun = b""
        """A line of which the end has not been read."""
        self._lines = []
        self.ends = 0
        """How many calls have ended."""
        self.killed = {}
        """When workers were killed, by their process ids."""

    def read(self):
        """Reads on."""
        *lines, self._begun = (self._begun + self._file.read()).split(b"\n")
        for what, *words in (line.decode().split() for line in lines):
            self._lines.append((what, *words))
            self.ends += what == "end"
            if what == "kill":
                self.killed[int(words[0])] = int(words[1])
        return self

    def calls(self, handler):
        """The calls of *handler*, by the time at which they began."""
        begun, found = {}, []

        def close(pid, change, ended):
            parent, moment, numbers = begun.pop((pid, change))
            died = self.killed.get(pid, self.killed.get(parent, math.inf))
            found.append(Call(moment, ended or died, died, ended is not None, *numbers))

        for what, *words in self._lines:
            if what == "begin" and words[3] == handler:
                pid, parent, moment = map(int, words[:3])
                numbers = tuple(map(int, words[4:]))
                assert (pid, numbers[1]) not in begun
                begun[pid, numbers[1]] = parent, moment, numbers
            elif what == "end" and words[2] == handler:
                close(int(words[0]), int(words[3]), int(words[1]))
        for pid, change in list(begun):
            close(pid, change, None)
        return sorted(found)

    def close(self):
        self._file.close()


class Writers:
    """Threads that change random rows, with connections of their own. They pause until they are let on."""

    def __init__(self, app, changes, keys):
        self.gates = [threading.Event() for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._write, args=(app, number, changes // WRITERS, keys))
            for number in range(WRITERS)
        ]
        for thread in self._threads:
            thread.start()

    def _write(self, app, number, changes, keys):
        chosen = random.Random(number)
        done = 0
        with app.connect() as connection, connection.cursor() as cursor:
            statement = cursor.prepare("UPDATE T SET N = N + 1, WRITER = ?, STEP = ? WHERE ID = ?")
            while done < changes:
                for third, gate in enumerate(self.gates, 1):
                    if done >= third * changes // 3:
                        gate.wait(SECONDS)
                count = min(chosen.randint(1, 8), changes - done)
                try:
                    for step, key in enumerate(sorted(chosen.sample(range(1, keys + 1), count)), done + 1):
                        cursor.execute(statement, (number, step, key))
                    if chosen.random() < 0.1:
                        connection.rollback()
                        continue
                    connection.commit()
                except Exception as error:
                    connection.rollback()
                    if not isinstance(translate(error), ConflictError):
                        raise
                else:
                    done += count
            statement.free()

    def join(self):
        for gate in self.gates:
            gate.set()
        for thread in self._threads:
            thread.join()


def overlaps(calls):
    """The pairs of calls of which one began before the other had ended, or its worker was killed."""
    return [(one, other) for one, other in pairwise(calls) if other.begun < one.ended]


def repeats(calls, taken_back):
    """How many calls were made again. Asserts that each had not ended, or been recorded, when its worker was killed."""
    by_change = by(calls, "change")
    for made in by_change.values():
        *before, last = made
        assert last.complete
        assert not overlaps(made)
        assert all(call.task in taken_back for call in before), made
        assert all(call.died <= after.begun for call, after in pairwise(made)), made
    return len(calls) - len(by_change)


def check_lane(calls, order):
    """Asserts this *order* of changes. The task that a dead worker had may have begun anew since its first one."""
    place = {change: number for number, change in enumerate(order)}
    due, first, before = 0, 0, None
    for call in calls:
        at = place[call.change]
        if before is None or call.task != before.task:
            first = min(at, due)
        if at != due:
            assert before.died <= call.begun, (before, call)
            assert before.task == call.task, (before, call)
            assert first <= at < due, (before, call)
        due, before = at + 1, call
    assert due == len(order)


def by(calls, column):
    found = defaultdict(list)
    for call in calls:
        found[getattr(call, column)].append(call)
    return found


def check_order(calls, lanes):
    for lane in lanes:
        assert not overlaps(lane)
        first = {call.change: call for call in reversed(lane)}
        order = sorted(first, key=lambda change: first[change].begun)
        check_lane(lane, order)
        handled = [first[change] for change in order]
        for same in by(handled, "key").values():
            assert [call.value for call in same] == list(range(1, len(same) + 1))
        for same in by(handled, "writer").values():  # of what one program has changed: it sees what it did before
            assert [call.step for call in same] == sorted(call.step for call in same)


def variant(count, keys, *handlers, slow=True):
    marks = [pytest.mark.slow] if slow else []
    return pytest.param(count, keys, handlers, marks=marks, id=f"{'-'.join(handlers)}-{count}")


@pytest.mark.parametrize(
    ("count", "keys", "handlers"),
    [variant(300, 30, "key", "effect", slow=False), *(variant(20_000, 200, handler) for handler in HANDLERS)],
)
def test_order_and_what_runs_again(project, wait_for, count, keys, handlers):
    source = "".join(f"\n    {HANDLERS[each]}" for each in handlers)
    tables = (each.format(keys=keys) for each in TABLES)
    with project.producer(SOURCE + source + "\n", *tables) as app, closing(Ledger(project)) as ledger:
        app.close()
        deployed(project, "apply")
        pools = POOLS if count > 1000 else POOLS[:3]
        workers = [project.worker("-P", pool, "-c", str(places)) for pool, places in pools]
        wait_for(lambda: project.logs().count("is ready") == len(pools))
        writers = Writers(app, count, keys)
        try:
            for number, handler in enumerate((handlers[0], handlers[-1])):
                wait_for(lambda n=number: ledger.read().ends >= (1 + n) * count * len(handlers) // 6, SECONDS)
                living = [worker.pid for worker in workers if worker.poll() is None]
                # In total order one worker is at it, whichever.
                kill(project, handler, living if handler == "total" else [workers[number].pid])
                writers.gates[number].set()
                wait_for(lambda n=number: len(ledger.read().killed) == n + 1, SECONDS)
        finally:
            writers.join()
        assert one(app, "SELECT SUM(N) FROM T") == count
        wait_for(lambda: ledger.read().ends >= count * len(handlers) and waiting(app) == (0, 0, 0, 0), SECONDS)
        ledger.read()  # What ended since: calls that were made again have counted too.
        assert [worker.poll() for worker in workers].count(-9) == 2
        taken_back = {number for (number,) in rows(app, "SELECT TASK_ID FROM TAKEN_BACK")}
        written = dict(rows(app, "SELECT ID, N FROM T"))
        again = {}
        for handler in handlers:
            calls = ledger.calls(handler)
            again[handler] = repeats(calls, taken_back)
            handled = {(call.key, call.value) for call in calls}
            assert handled == {(key, value) for key, values in written.items() for value in range(1, values + 1)}
            assert len({call.change for call in calls}) == count
            if handler != "none":
                check_order(calls, [calls] if handler == "total" else by(calls, "key").values())
        assert sum(again.values()) >= 2  # the calls in which workers were killed
        print("handled again:", again)
        if "effect" in handlers:
            effects = rows(app, "SELECT ID, N FROM EFFECT")
            assert sorted(effects) == [(key, value) for key in sorted(written) for value in range(1, written[key] + 1)]
        assert rows(app, "SELECT ID FROM QUEUE_HISTORY") == []


def kill(project, handler, workers):
    """Has *handler* kill the first of *workers* in which it is called next, in the middle of that call."""
    path = project.folder / "kill.new"
    path.write_text(" ".join(map(str, (handler, *workers))))
    path.rename(project.folder / "kill")
