"""Limits with several real workers, of which some are killed while they have places: never exceeded, and none is lost.

Tasks write down when each run began and ended, by the clock that all processes of the machine share, and a trigger of
the test notes when each task was claimed first. What is asserted follows from these notes alone.
"""

import importlib
import os
import sys
import time
from collections import Counter, defaultdict
from contextlib import closing, contextmanager
from itertools import chain, pairwise

import pytest
from support.held import nothing_left
from support.sql import execute, one, rows

from fbtasks.queue import tasks

pytestmark = pytest.mark.acceptance
AT_ONCE = {"one": 1, "three": 3, "eight": 8, "line": 1}
RATE, BURST = 200, 4
SLACK = 0.1
"""Seconds from the time of a token to the moment that the trigger notes, at most."""
SOURCE = """
    import os, time

    worker = os.getppid()  # tasks run in a child of it, which ends soon after it
    ledger = os.open("ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def run(*places, seconds=0.0):
        id = current_request().id
        os.write(ledger, f"b {id} {time.monotonic_ns()} {worker} {' '.join(places)}\\n".encode())
        time.sleep(seconds or 0.003 + int(id) % 20 / 1000)
        os.write(ledger, f"e {id} {time.monotonic_ns()} {worker}\\n".encode())

    for name, at_once in (("one", 1), ("three", 3), ("eight", 8)):
        app.limit(name, at_once=at_once)
    app.limit("fast", rate="200/s", burst=4)

    @app.task(name="one", limits={"one": "key"}, ignore_result=True)
    def one(key): run(f"one/{key}")

    @app.task(name="three", limits={"three": "key"}, ignore_result=True)
    def three(key): run(f"three/{key}")

    @app.task(name="eight", limits="eight", ignore_result=True)
    def eight(key): run("eight/all", seconds=0.1)

    @app.task(name="several", limits={"one": "key", "three": "key", "eight": None}, ignore_result=True)
    def several(key): run(f"one/{key}", f"three/{key}", "eight/all")

    @app.task(name="line", ordered="key", ignore_result=True)
    def line(key): run(f"line/{key}")

    @app.task(name="fast", limits="fast", ignore_result=True)
    def fast(key): pass
"""
KINDS = ("one", "three", "eight", "several", "line")
TABLES = (
    "CREATE TABLE FIRST_CLAIM (TASK_ID BIGINT NOT NULL, NAME VARCHAR(20), MOMENT TIMESTAMP)",
    "CREATE TRIGGER NOTE_CLAIM FOR QUEUE_TASK AFTER UPDATE AS BEGIN "
    "IF (OLD.STATE <> 2 AND NEW.STATE = 2 AND NEW.CRASH_COUNT = 0 AND NEW.SUSPECT = 0) THEN "
    "INSERT INTO FIRST_CLAIM VALUES (NEW.ID, NEW.NAME, QUEUE_UTC(CAST('NOW' AS TIMESTAMP WITH TIME ZONE))); END",
)


class Ledger:
    """What tasks wrote down, and when workers were killed."""

    def __init__(self, path):
        self._path = path
        self.killed = {}
        """When, by the worker's process."""

    def read(self):
        """The runs of each task: (begin, end, worker, places), in their order.

        One whose worker is killed counts up to then: from then on the task may run elsewhere, which is in its place.
        """
        runs, opened = defaultdict(list), {}
        for what, id, at, pid, *places in map(str.split, self._path.read_text().splitlines()):
            if what == "b":
                opened[id, pid] = (int(at), places)
            else:
                begin, places = opened.pop((id, pid))
                end = max(begin, min(int(at), self.killed.get(int(pid), int(at))))
                runs[int(id)].append((begin, end, int(pid), places))
        for (id, pid), (begin, places) in opened.items():
            killed = self.killed.get(int(pid))
            runs[int(id)].append((begin, killed and max(begin, killed), int(pid), places))
        return {id: sorted(found, key=lambda run: run[0]) for id, found in runs.items()}

    def holders(self):
        """Workers that run something."""
        return {pid for found in self.read().values() for _, end, pid, _ in found if end is None}


def at_most(runs):
    """How many had a place of each gate at once."""
    moments = defaultdict(list)
    for begin, end, _, places in chain.from_iterable(runs.values()):
        for place in places:
            moments[place] += [(begin, 1), (end, -1)]
    most = Counter()
    for place, found in moments.items():
        inside = 0
        for _, change in sorted(found, key=lambda each: each[0]):
            inside += change
            most[place.split("/")[0]] = max(most[place.split("/")[0]], inside)
    return most


def inversions(runs):
    """Tasks of one line that began before the last run of one with a smaller id."""
    lines = defaultdict(list)
    for id, found in sorted(runs.items()):
        for begin, _, _, (place, *_) in found:
            if place.startswith("line/"):
                lines[place].append((id, begin))
    return [pair for found in lines.values() for pair in pairwise(found) if pair[0][1] > pair[1][1]]


def ahead(app):
    """By how many seconds claims were ahead of the rate."""
    found = "SELECT MIN(MOMENT) FROM FIRST_CLAIM WHERE NAME = 'fast' GROUP BY TASK_ID ORDER BY 1"
    moments = [moment.timestamp() for (moment,) in rows(app, found)]
    early, latest = 0.0, float("-inf")
    for number, at in enumerate(moments):
        latest = max(latest, at - number / RATE)
        early = max(early, latest - (at - number / RATE) - (BURST - 1) / RATE)
    return early, len(moments), moments[-1] - moments[0]


@contextmanager
def imported(project, monkeypatch):
    """The module of the project."""
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    monkeypatch.setenv("FBTASKS_URL", project.url)
    proj = importlib.import_module("proj")
    try:
        with closing(proj.app):
            yield proj
    finally:
        sys.modules.pop("proj", None)  # another run of the command line in this process may have forgotten it


@pytest.mark.parametrize(
    ("workers", "each", "kills"),
    [(2, 10, 1), pytest.param(4, 300, 12, marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def test_limits_hold_and_no_place_is_lost(project, monkeypatch, wait_for, workers, each, kills):
    arguments = ("--pool", "threads", "--concurrency", "5", "--lease", "5")
    counts = dict.fromkeys(KINDS, each) | {"eight": max(each, 25)}  # which takes so many to be reached
    fast = max(each, 40)
    with project.producer(SOURCE) as app, imported(project, monkeypatch) as proj:
        project.run("migrate", "-A", "proj")
        for statement in TABLES:
            execute(app, statement)
        ledger = Ledger(project.folder / "ledger")
        (project.folder / "ledger").touch()
        for name in KINDS:
            getattr(proj, name).delay_many([(n % 3,) for n in range(counts[name])])
        running = {process.pid: process for process in (project.worker(*arguments) for _ in range(workers))}
        wanted = sum(counts.values())
        for kill in range(kills):
            wait_for(lambda kill=kill: len(ledger.read()) >= wanted * (kill + 0.5) / (kills + 1), 120)
            pid = wait_for(lambda: next(iter(ledger.holders() & running.keys()), None))
            ledger.killed[pid] = time.monotonic_ns()
            os.kill(pid, 9)
            running.pop(pid).wait()
            again = project.worker(*arguments)
            running[again.pid] = again
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0, 120)
        proj.fast.delay_many([(n,) for n in range(fast)])
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0, 120)
        for process in running.values():
            process.terminate()
        for process in running.values():
            assert process.wait() == 0

        runs = ledger.read()
        assert len(runs) == wanted
        assert all(end is not None for found in runs.values() for _, end, _, _ in found)
        most = at_most(runs)
        early, claims, seconds = ahead(app)
        print(f"most at once {dict(most)}, {claims} of a rate in {seconds:.3f} s, ahead {early:.3f} s")
        assert {name: count for name, count in most.items() if count > AT_ONCE[name]} == {}
        assert inversions(runs) == []
        assert claims == fast
        assert early <= SLACK
        assert seconds >= (fast - BURST) / RATE - SLACK
        ran_twice = {id for id, found in runs.items() if len(found) > 1}
        killed = {id for id, found in runs.items() if any(run[2] in ledger.killed for run in found)}
        assert ran_twice <= killed
        with app.database.session() as session:
            for _ in range(2):
                assert session.run(lambda t: tasks.claim(t, 1, "default", 10)) == []
        assert rows(app, "SELECT * FROM QUEUE_GATE WHERE USED <> 0 OR WAITS <> 0") == []
        assert nothing_left(app)
        assert "conflict" not in project.logs()
        assert "Traceback" not in project.logs()
