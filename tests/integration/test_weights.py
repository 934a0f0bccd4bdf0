"""Queues with weights, and the limits that one worker has for its own part."""

import contextlib
import threading
from collections import Counter

import pytest
from support.loops import opened
from support.loops import running as at_work
from support.programs import command_line
from support.sql import rows

from fbtasks import FBTasks
from fbtasks import timing as clock
from fbtasks.queue import tasks
from fbtasks.queue.operations.workers import list_workers
from fbtasks.queue.shares import Share, parse_shares
from fbtasks.worker.claiming import Claiming
from fbtasks.worker.pools.solo import SoloExecutor

pytestmark = pytest.mark.emptied


def loop(app, text, executor=None, **more):
    shares = parse_shares(text, [])
    return opened(app, executor, name="weighted", queues=tuple(shares), shares=shares, **more)


def drain(app, text, executor=None):
    with loop(app, text, executor, burst=True) as working:
        working.run(listen=False)


def put(app, count, *queues):
    note = app.task(name="note")(app.order.append)
    for queue in queues:
        note.delay_many([(queue,)] * count, queue=queue)


@pytest.fixture
def app(app):
    app.order = []
    return app


def test_tasks_run_in_proportion_to_the_weights(app):
    put(app, 40, "a", "b", "c")
    drain(app, "a:4,b:2,c")
    assert Counter(app.order[:35]) == {"a": 20, "b": 10, "c": 5}
    assert Counter(app.order) == {"a": 40, "b": 40, "c": 40}


def claims(app, claiming, room, rooms=None):
    """One claim. Returns how many tasks of each queue it took, and what it tells of them."""
    with app.database.session() as session:
        taken = session.run(lambda t: claiming.claim(t, 1, room, rooms=rooms or {}))
    claiming.committed(taken)
    return Counter(claim.queue for claim in taken.claims), taken


def test_a_queue_that_has_nothing_costs_the_others_no_room(app):
    put(app, 60, "a")
    claiming = Claiming(["a", "b", "c"], {"b": Share(9)})
    had, taken = claims(app, claiming, 12)
    assert (had, taken.hungry) == ({"a": 1}, {"a"})  # which has the worker claim again at once
    for _ in range(3):
        assert claims(app, claiming, 12)[0] == {"a": 12}


def test_a_claim_keeps_to_the_worker_s_own_limit(app):
    put(app, 20, "a", "b")
    idle = app.task(name="idle", idle=True)(print)
    idle.delay_many([()] * 5, queue="a")
    claiming = Claiming(["a", "b"], {"a": Share(3, 2)})
    had, taken = claims(app, claiming, 12, {"a": 2})
    assert had == {"a": 2, "b": 10}
    assert taken.without_room == {"a"}
    assert claims(app, claiming, 12, {"a": 0})[0] == {"b": 10}
    assert claims(app, Claiming(["a"]), 12, {"a": 0})[0] == {}
    claims(app, Claiming(["a"]), 16, {"a": 16})  # two of its tasks are left, and the idle ones
    assert claims(app, Claiming(["a", "b"]), 12, {"a": 3})[0] == {"a": 3}


class Places:
    """An executor with places for as many tasks as it is told; they end when the test says so."""

    def __init__(self, app, places):
        self._app = app
        self._places = places
        self._solo = SoloExecutor(app)
        self._held = []
        self.most = Counter()
        self.let_go = threading.Event()
        self.turns = 0

    def __getattr__(self, name):
        return getattr(self._solo, name)

    def free(self):
        return self._places - len(self._held)

    idle = free

    def capacity(self):
        return self._places

    def busy(self):
        return list(self._held)

    def submit(self, claims):
        self._held += claims
        self.most |= Counter(claim.queue for claim in self._held)
        return []

    def deadline(self):
        return 0.0 if self._held and self.let_go.is_set() else self._solo.deadline()

    def collect(self):
        self.turns += 1
        if not self.let_go.is_set():
            return []
        ended, self._held = self._held, []
        for claim in ended:
            self._solo.submit([claim])
        return self._solo.collect()


def running(app):
    """How many tasks of each queue run."""
    found = rows(app, "SELECT TRIM(QUEUE), COUNT(*) FROM QUEUE_TASK WHERE STATE = 2 GROUP BY QUEUE")
    return dict(found)


def test_a_worker_leaves_what_is_above_its_own_limit_to_others(app, wait_for):
    put(app, 6, "mail", "reports")
    executor = Places(app, 6)
    with loop(app, "mail=2,reports", executor) as working, at_work(working):
        wait_for(lambda: running(app) == {"mail": 2, "reports": 4})
        drain(app, "mail=1")
        assert app.order == ["mail"] * 4
        executor.let_go.set()
        wait_for(lambda: len(app.order) == 12)
    assert executor.most["mail"] == 2


def test_a_worker_whose_queues_are_all_at_their_limits_waits(app, wait_for, monkeypatch):
    """It asks the database for nothing, whatever events tell, and goes on as soon as a task has ended."""
    put(app, 6, "mail")
    executor = Places(app, 6)
    with loop(app, "mail=2", executor) as working, at_work(working):
        wait_for(lambda: running(app) == {"mail": 2})
        looks = []
        monkeypatch.setattr(tasks, "any_ready", lambda *args: looks.append(args))
        monkeypatch.setattr(tasks, "claim", lambda *args, **options: looks.append(args))
        turn = executor.turns
        working.wake(["fbtasks:queue:mail"])
        wait_for(lambda: executor.turns > turn)
        wait_for(lambda: working._fetcher.deadline() > clock.monotonic() + 0.2)
        assert looks == []
        monkeypatch.undo()
        executor.let_go.set()
        working.wake(["fbtasks:queue:mail"])
        wait_for(lambda: len(app.order) == 6)
    assert executor.most["mail"] == 2


def test_parked_tasks_count_for_a_worker_s_own_limit(app, wait_for):
    calls = [app.send_task("later", (n,), queue="mail") for n in range(5)]
    drain(app, "mail")
    app.task(name="later")(app.order.append)
    executor = Places(app, 6)
    with loop(app, "mail=2,reports", executor) as working, at_work(working):
        wait_for(lambda: running(app) == {"mail": 2})
        executor.let_go.set()
        wait_for(lambda: all(call.ready() for call in calls))
    assert executor.most["mail"] == 2
    assert sorted(app.order) == list(range(5))


def test_workers_are_shown_with_their_shares(app, url, capsys):
    with loop(app, "mail:3=2,reports,tenant:12:1"):
        (worker,) = list_workers(app.database)
        assert worker.queues == ("mail", "reports", "tenant:12")
        assert worker.shares == ("mail:3=2", "reports", "tenant:12:1")
        assert command_line("inspect", "workers", "--url", url) == 0
        shown = capsys.readouterr().out
        assert all(share in shown for share in ("mail:3=2", "reports", "tenant:12:1"))
        assert command_line("inspect", "queues", "--url", url) == 0
        assert "mail " in capsys.readouterr().out


def test_short_tasks_that_wait_in_a_child_count_for_the_limit(project):
    project.write(
        """
        import threading, time
        lock, running = threading.Lock(), []
        @app.task(queue="mail")
        def send(n):
            with lock:
                running.append(n)
                now = len(running)
            time.sleep(0.002)
            with lock:
                running.remove(n)
            return now
        @app.task(queue="reports")
        def report(n):
            return n
        """
    )
    with contextlib.closing(FBTasks("calls", project.url)) as app:
        sent = [app.send_task("proj.send", (n,), queue="mail") for n in range(60)]
        made = [app.send_task("proj.report", (n,), queue="reports") for n in range(60)]
        done = project.run("worker", "-A", "proj", "-Q", "mail:2=2,reports", "--burst", "-c", "8", "-P", "threads")
        assert "  queues  mail:2=2, reports\n" in done.stderr
        assert {call.get(1) for call in sent} <= {1, 2}
        assert [call.get(1) for call in made] == list(range(60))
    refused = project.run("worker", "-A", "proj", "-Q", "mail:x", check=False, process=False)
    assert (refused.returncode, "'x' is no weight" in refused.stderr) == (2, True)
