"""The store against a plain model of its rules: a state machine with several workers and a clock that can be moved.

The database moves its own clock; to move it further, all times in its tables are set back by as much. Model times are
in hours, so that the real milliseconds that pass meanwhile never decide anything.
"""

import os
import time
from dataclasses import dataclass, field
from datetime import timedelta

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support import rules

from fbtasks import FBTasks
from fbtasks.firebird.session import INSERT
from fbtasks.queue import codec, results, tasks
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import (
    RELEASED,
    Call,
    Cancelled,
    Crashed,
    Failed,
    Finished,
    Reason,
    Requeue,
    Stale,
    Succeeded,
    reason_of,
)

LEASE = 3.0
LIMIT = 2
LONG = 1e6
"""Seconds for which the worker that looks was not held up."""
LARGE = b'[["' + b"x" * 40_000 + b'"],{}]'
SMALL = b"[[],{}]"
QUEUES = ("a", "b")
TABLES = ("TASK", "HISTORY", "PAYLOAD", "RESULT", "TASK_ID", "CANCEL", "PROCESS", "STAT")
TIMES = {
    "QUEUE_TASK": ("RAISE_TIME", "START_TIME", "EXPIRE_TIME", "CLAIM_TIME"),
    "QUEUE_HISTORY": ("RAISE_TIME", "START_TIME", "CLAIM_TIME", "FINISH_TIME"),
    "QUEUE_PROCESS": ("START_TIME", "HEARTBEAT_TIME", "LEASE_UNTIL"),
}


OUTCOMES = st.sampled_from(
    [
        Succeeded("application/json", b"1"), Succeeded("application/json", LARGE), Succeeded(keep=False),
        Failed("builtins.ValueError", "no", "trace"), Requeue(Reason.RETRY, 0.0, "again"),
        Requeue(Reason.RETRY, 7200.0, "later"), Cancelled("stopped"), RELEASED, Requeue(Reason.PARKED),
        Crashed("it died", True, LIMIT), Crashed("it died", False, LIMIT),
    ]
)  # fmt: skip


@dataclass
class Row:
    """A live task as the model knows it. Times are in hours of the model's clock."""

    id: int
    queue: str
    priority: int
    start: float
    expires: float | None
    large: bool
    task_id: str | None
    state: State = State.READY
    tries: int = 0
    crashes: int = 0
    suspect: int = 0
    worker: int | None = None
    claim: int | None = None
    claimed: float = 0.0


@dataclass
class Past:
    """A finished task."""

    row: Row
    state: State
    tries: int
    crashes: int
    result: bool
    ended: float


@dataclass
class Model:
    """The rules, in plain Python."""

    now: float = 0.0
    live: dict[int, Row] = field(default_factory=dict)
    past: dict[int, Past] = field(default_factory=dict)
    cancels: dict[int, bool] = field(default_factory=dict)
    workers: dict[int, float] = field(default_factory=dict)
    """When each last showed itself, on the model's clock."""

    def move(self, row, state):
        assert state is row.state or state in rules.TRANSITIONS[row.state], (row, state)
        row.state = state

    def archive(self, row, state, tries=0, result=False):
        self.move(row, state)
        del self.live[row.id]
        self.cancels.pop(row.id, None)
        if state is State.SUCCEEDED:
            row.large = False
        self.past[row.id] = Past(row, state, row.tries + tries, row.crashes, result, self.now)

    def back(self, row, state=State.READY):
        self.move(row, state)
        row.worker = row.claim = None

    def take_back(self, row, charge, limit):
        row.crashes += charge
        row.suspect = min(row.suspect + 1, 2)
        if row.id in self.cancels:
            self.back(row)
            self.archive(row, State.CANCELLED)
        elif charge and row.crashes >= limit:
            row.worker = row.claim = None
            self.move(row, State.FAILED)
            del self.live[row.id]
            self.past[row.id] = Past(row, State.FAILED, row.tries, row.crashes, False, self.now)
        else:
            self.back(row)

    def held(self, worker):
        return [row for row in self.live.values() if row.state is State.RUNNING and row.worker == worker]

    def rescue(self, worker, limit):
        held = self.held(worker)
        repeated = [row for row in held if row.suspect == 2]
        charged = [
            row.id for row in held if row.suspect and (len(held) == 1 or (row.suspect == 2 and len(repeated) == 1))
        ]
        for row in held:
            self.take_back(row, int(row.id in charged), limit)
        del self.workers[worker]
        failed = [row.id for row in held if row.id in self.past and self.past[row.id].state is State.FAILED]
        assert len(failed) <= 1
        return len(held)


class Store(RuleBasedStateMachine):
    """Does the same to the database and to the model, and compares them."""

    app: FBTasks

    def __init__(self):
        super().__init__()
        self.session = self.app.database.open()
        self.model = Model()
        self.old = []  # claims that a worker once held
        self.next_name = 0

    def teardown(self):
        self.session.close()

    def sql(self, statement):
        with self.session.transaction() as transaction:
            transaction.script(statement)

    def rows(self, statement):
        with self.session.connection.cursor() as cursor:
            found = cursor.execute(statement).fetchall()
        self.session.connection.rollback()
        return found

    def run(self, work):
        return self.session.run(work, INSERT)

    @initialize()
    def empty(self):
        for table in TABLES:
            self.sql(f"DELETE FROM QUEUE_{table}")
        self.register()
        self.register()
        for queue in QUEUES:  # so that there is something to do, whichever rules are drawn
            self.put(queue, 0, 0, None, False, False, 3)
            self.put(queue, 1, 0, None, True, True, 1)

    # What callers do

    @rule(
        queue=st.sampled_from(QUEUES), priority=st.integers(-1, 1), delay=st.sampled_from([0, 0, 0, 2, 5]),
        expires=st.sampled_from([None, None, 3]), large=st.booleans(), named=st.booleans(), count=st.integers(1, 3),
    )  # fmt: skip
    def enqueue(self, queue, priority, delay, expires, large, named, count):
        self.put(queue, priority, delay, expires, large, named, count)

    def put(self, queue, priority, delay, expires, large, named, count):
        for _ in range(count):
            task_id = None
            if named:
                self.next_name += 1
                task_id = f"id-{self.next_name}"
            call = Call(
                name="t", queue=queue, content_type="application/json", payload=LARGE if large else SMALL,
                priority=priority, start=timedelta(hours=delay) if delay else None,
                expires=timedelta(hours=delay + expires) if expires else None, task_id=task_id,
            )  # fmt: skip
            (enqueued,), _ = self.run(lambda t, c=call: tasks.enqueue(t, [c]))
            assert not enqueued.duplicate
            row = Row(
                enqueued.id, queue, priority, self.model.now + delay,
                self.model.now + delay + expires if expires else None, large, task_id,
                state=State.SCHEDULED if delay else State.READY,
            )  # fmt: skip
            self.model.live[row.id] = row

    @rule(data=st.data())
    def enqueue_again(self, data):
        known = [r for r in (*self.model.live.values(), *(p.row for p in self.model.past.values())) if r.task_id]
        if known:
            row = data.draw(st.sampled_from(known))
            call = Call(name="t", queue="a", content_type="application/json", payload=SMALL, task_id=row.task_id)
            (enqueued,), _ = self.run(lambda t: tasks.enqueue(t, [call]))
            past = self.model.past.get(row.id)
            if past is None or past.state is not State.CANCELLED:
                assert (enqueued.id, enqueued.duplicate) == (row.id, True)
                return
            assert not enqueued.duplicate
            new = Row(enqueued.id, "a", 0, self.model.now, None, False, row.task_id)
            self.model.live[new.id], row.task_id = new, None

    @rule()
    def look(self):
        found = results.outcomes(self.session, [*self.model.live, *self.model.past, 999_999_999])
        states = {task: stored and stored.state for task, stored in found.items()}
        assert states == {**{task: past.state for task, past in self.model.past.items()}, 999_999_999: None}

    # What workers do

    @precondition(lambda self: len(self.model.workers) < 3)
    @rule()
    def come(self):
        self.register()

    def register(self, former=0):
        worker = self.run(
            lambda t: processes.register(
                t, "worker", name="w", host="h;\nx", pid=1, pid_start=1, lease=LEASE, queues=QUEUES, pool="solo",
                concurrency=1, version="0", tasks=["t"], former=former,
            )
        )  # fmt: skip
        self.model.workers[worker] = self.model.now
        return worker

    def a_worker(self, data):
        return data.draw(st.sampled_from(sorted(self.model.workers)))

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data())
    def heartbeat(self, data):
        worker = self.a_worker(data)
        reply = self.run(lambda t: processes.heartbeat(t, "worker", worker, lease=LEASE))
        self.model.workers[worker] = self.model.now
        assert reply.alive
        assert reply.parked == any(row.state is State.PARKED for row in self.model.live.values())
        assert reply.stops == any(self.model.cancels.get(row.id) for row in self.model.held(worker))
        assert {n.process_id for n in reply.neighbours} == self.model.workers.keys() - {worker}

    @rule()
    def promote(self):
        promoted, *_ = self.run(tasks.promote)
        due = [r for r in self.model.live.values() if r.state is State.SCHEDULED and r.start <= self.model.now]
        assert promoted == len(due)
        for row in due:
            self.model.move(row, State.READY)

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data(), queue=st.sampled_from(QUEUES), most=st.integers(1, 4))
    def claim(self, data, queue, most):
        self.claim_for(self.a_worker(data), queue, most)

    def claim_for(self, worker, queue, most):
        model = self.model
        claims = self.run(lambda t: tasks.claim(t, worker, queue, most))
        ready = [row for row in model.live.values() if row.state is State.READY and row.queue == queue]
        has_repeated = any(row.suspect == 2 for row in model.held(worker))
        eligible = [row for row in ready if not has_repeated or row.suspect < 2]
        taken = [model.live[claim.id] for claim in claims]
        keys = [(-row.priority, row.start) for row in taken]
        assert keys == sorted(keys), "best first"
        assert all(row in eligible for row in taken)
        assert len(taken) == 1 or not any(row.suspect for row in taken), "a suspect comes alone"
        over = [row for row in ready if row.expires is not None and row.expires <= model.now]
        assert not any(row in over for row in taken)
        if not taken:
            assert all(row in over for row in eligible)
        elif len(taken) < most and not any(row.suspect for row in taken):
            left = [row for row in eligible if row not in taken and row not in over]
            assert not left or min(left, key=lambda r: (-r.priority, r.start)).suspect or any(r.suspect for r in left)
        else:
            better = [r for r in eligible if r not in taken and r not in over and (-r.priority, r.start) < keys[-1]]
            assert not better
        gone = {task for (task,) in self.rows("SELECT ID FROM QUEUE_HISTORY")} - model.past.keys()
        assert gone <= {row.id for row in over}
        for task in gone:
            model.archive(model.live[task], State.CANCELLED)
        for claim, row in zip(claims, taken, strict=True):
            assert (claim.try_count, claim.crash_count, claim.suspect) == (row.tries, row.crashes, row.suspect)
            assert (claim.payload is None) == row.large
            if row.large:
                with self.session.transaction() as transaction:
                    assert tasks.payload(transaction, row.id) == LARGE
            model.move(row, State.RUNNING)
            row.worker, row.claim, row.claimed = worker, claim.claim_id, model.now
            self.old.append(claim)

    @precondition(lambda self: self.old)
    @rule(
        data=st.data(),
        outcome=OUTCOMES,
    )
    def finish(self, data, outcome):
        self.end(data.draw(st.sampled_from(self.old)), outcome)

    @precondition(lambda self: any(row.state is State.RUNNING for row in self.model.live.values()))
    @rule(data=st.data(), outcome=OUTCOMES, terminate=st.booleans())
    def cancel_and_finish(self, data, outcome, terminate):
        """A running task is asked to stop, milder requests follow, and then it ends in whatever way."""
        running = [row for row in self.model.live.values() if row.state is State.RUNNING]
        row = data.draw(st.sampled_from(running))
        for wish in (terminate, False):
            assert self.run(lambda t, w=wish: tasks.revoke(t, row.id, terminate=w)) == "requested"
            self.model.cancels[row.id] = self.model.cancels.get(row.id, False) or wish
        self.end(next(c for c in reversed(self.old) if c.claim_id == row.claim and c.id == row.id), outcome)

    def end(self, claim, outcome):
        model = self.model
        stale = self.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, outcome, 0.5)]))
        row = model.live.get(claim.id)
        if row is None or row.claim != claim.claim_id:
            assert stale == [Stale(claim.id, (row.claim if row else None) or 0)]
            return
        assert stale == []
        wish = row.id in model.cancels
        tries = 1
        if wish and isinstance(outcome, Requeue | Crashed):
            tries = int(reason_of(outcome) is Reason.RETRY)
            row.crashes += isinstance(outcome, Crashed) and outcome.charged
            outcome = Cancelled("cancelled on request")
        model.cancels.pop(row.id, None)
        match outcome:
            case Succeeded(_, result, keep):
                model.archive(row, State.SUCCEEDED, 1, keep and len(result) > codec.INLINE)
                if not keep:
                    del model.past[row.id]
            case Failed():
                model.archive(row, State.FAILED, 1)
            case Cancelled():
                model.archive(row, State.CANCELLED, tries)
            case Requeue(Reason.RETRY, delay):
                row.tries += 1
                row.suspect = 0
                row.start = model.now + delay / 3600
                model.back(row, State.SCHEDULED if delay else State.READY)
            case Requeue(Reason.RELEASE):
                model.back(row)
            case Requeue(Reason.PARKED):
                model.back(row, State.PARKED)
            case Crashed(_, charged, limit):
                row.crashes += charged
                row.suspect = max(row.suspect, 1)
                model.back(row) if not (charged and row.crashes >= limit) else model.archive(row, State.FAILED)

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data())
    def claim_parked(self, data):
        worker = self.a_worker(data)
        claims = self.run(lambda t: tasks.claim(t, worker, "a", 1, "t"))
        parked = [r for r in self.model.live.values() if r.state is State.PARKED and r.queue == "a"]
        for claim in claims:
            row = self.model.live[claim.id]
            assert row in parked
            self.model.move(row, State.RUNNING)
            row.worker, row.claim, row.claimed = worker, claim.claim_id, self.model.now
            self.old.append(claim)
        over = {task for (task,) in self.rows("SELECT ID FROM QUEUE_HISTORY")} - self.model.past.keys()
        for task in over:
            assert self.model.live[task].expires <= self.model.now
            self.model.archive(self.model.live[task], State.CANCELLED)

    # Death

    @rule(hours=st.sampled_from([1, 2, 4]))
    def time_passes(self, hours):
        self.model.now += hours
        for table, columns in TIMES.items():
            changes = ", ".join(f"{column} = DATEADD(-{hours} HOUR TO {column})" for column in columns)
            self.sql(f"UPDATE {table} SET {changes}")

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data())
    def its_process_is_gone(self, data):
        self.declare_dead(self.a_worker(data))

    @precondition(lambda self: any(row.state is State.RUNNING for row in self.model.live.values()))
    @rule(data=st.data())
    def another_takes_over(self, data):
        """The worker of a running task dies, and another one claims it: what the first says then comes too late."""
        running = [row for row in self.model.live.values() if row.state is State.RUNNING]
        row = data.draw(st.sampled_from(running))
        if row.worker in self.model.workers:
            self.declare_dead(row.worker)
        else:
            self.orphans()
        self.register()
        self.claim_for(max(self.model.workers), row.queue, 2)

    def declare_dead(self, worker):
        rescued = self.run(lambda t: processes.rescue(t, worker, gone=True, awake=LONG, crash_limit=LIMIT))
        assert rescued == (self.model.rescue(worker, LIMIT), "its process is gone")

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data())
    def its_lease_is_looked_at(self, data):
        worker = self.a_worker(data)
        silent = self.model.now > self.model.workers[worker]
        if not silent:  # renewed at this moment, so that real time cannot decide
            self.run(lambda t: processes.heartbeat(t, "worker", worker, lease=LEASE))
        if silent:  # a rescuer that was itself held up all the time does not judge by it
            look = lambda t: processes.rescue(t, worker, gone=False, awake=0.0, share=1, crash_limit=LIMIT)
            assert self.run(look) == (0, None)
        rescued = self.run(lambda t: processes.rescue(t, worker, gone=False, awake=LONG, share=1, crash_limit=LIMIT))
        assert rescued == ((self.model.rescue(worker, LIMIT), "its lease ran out") if silent else (0, None))

    @precondition(lambda self: self.model.live)
    @rule(data=st.data())
    def who_was_buried_comes_back(self, data):
        """A worker that was declared dead registers again, with what it still holds."""
        former = data.draw(st.sampled_from(sorted({row.worker or 0 for row in self.model.live.values()})))
        worker = self.register(former)
        if former not in self.model.workers:
            for row in self.model.live.values():
                if row.state is State.RUNNING and row.worker == former:
                    row.worker = worker

    @precondition(lambda self: self.model.workers)
    @rule(data=st.data())
    def leave(self, data):
        worker = self.a_worker(data)
        self.run(lambda t: t.call("FBTASKS_WORKER.UNREGISTER", worker))
        del self.model.workers[worker]

    @rule()
    def orphans(self):
        lost = [r for r in self.model.live.values() if r.state is State.RUNNING and r.worker not in self.model.workers]
        assert self.run(lambda t: t.call("FBTASKS_WORKER.ORPHANS", 0, 200)) == len(lost)
        for row in lost:
            self.model.take_back(row, 0, LIMIT)

    # What operators do

    @rule(data=st.data(), terminate=st.booleans())
    def cancel(self, data, terminate):
        ids = [*self.model.live, *self.model.past] or [5]
        task = data.draw(st.sampled_from(ids))
        answer = self.run(lambda t: tasks.revoke(t, task, terminate=terminate))
        row = self.model.live.get(task)
        if row is None:
            assert answer is None
        elif row.state is State.RUNNING:
            assert answer == "requested"
            self.model.cancels[task] = self.model.cancels.get(task, False) or terminate
        else:
            assert answer == "cancelled"
            self.model.archive(row, State.CANCELLED)

    @precondition(lambda self: self.model.past)
    @rule(data=st.data())
    def retry(self, data):
        past = data.draw(st.sampled_from(list(self.model.past.values())))
        may = past.state is not State.SUCCEEDED
        assert self.run(lambda t: t.call("FBTASKS_OPERATOR.RETRY", past.row.id)) == may
        if may:
            old = past.row
            del self.model.past[old.id]
            assert State.READY in rules.TRANSITIONS[past.state]
            self.model.live[old.id] = Row(old.id, old.queue, old.priority, self.model.now, None, old.large, old.task_id)

    @precondition(lambda self: self.model.past)
    @rule(data=st.data())
    def forget(self, data):
        task = data.draw(st.sampled_from(list(self.model.past)))
        assert self.run(lambda t: t.call("FBTASKS_READER.DISMISS", task))
        del self.model.past[task]

    @rule(state=st.sampled_from([State.SUCCEEDED, State.FAILED, State.CANCELLED]))
    def prune(self, state):
        old = [t for t, p in self.model.past.items() if p.state is state and p.ended + 1.5 < self.model.now]
        assert self.run(lambda t: tasks.prune(t, state, timedelta(hours=1.5))) == len(old)
        for task in old:
            del self.model.past[task]

    @rule()
    def fail_parked(self):
        old = [r for r in self.model.live.values() if r.state is State.PARKED and r.claimed + 1.5 < self.model.now]
        found = self.run(lambda t: tasks.fail_parked(t, timedelta(hours=1.5)))
        assert sorted(found) == sorted(row.id for row in old)
        for row in old:
            self.model.archive(row, State.FAILED)

    @precondition(lambda self: len(self.model.live) > 6)
    @rule(queue=st.sampled_from(QUEUES))
    def purge(self, queue):
        waiting = [r.id for r in self.model.live.values() if r.queue == queue and r.state is not State.RUNNING]
        assert self.run(lambda t: t.call("FBTASKS_OPERATOR.PURGE", queue, 200)) == len(waiting)
        for task in waiting:
            del self.model.live[task]

    # What must hold after each step

    @invariant()
    def the_tables_say_what_the_model_says(self):
        model = self.model
        found = self.rows(
            "SELECT ID, QUEUE, PRIORITY, STATE, TRY_COUNT, CRASH_COUNT, SUSPECT, WORKER_ID, CLAIM_ID "
            "FROM QUEUE_TASK ORDER BY ID"
        )
        assert found == [
            (r.id, r.queue, r.priority, r.state, r.tries, r.crashes, r.suspect, r.worker, r.claim)
            for r in sorted(model.live.values(), key=lambda r: r.id)
        ]
        stored = rules.read(self.rows)
        found = sorted((row.id, row.state, row.tries, row.crashes) for row in stored.history)
        assert found == [(t, p.state, p.tries, p.crashes) for t, p in sorted(model.past.items())]
        rows = [*model.live.values(), *(p.row for p in model.past.values())]
        assert stored.payloads == {r.id for r in rows if r.large}
        assert stored.results == {t for t, p in model.past.items() if p.result}
        assert stored.task_ids == {r.id for r in rows if r.task_id}
        assert stored.workers == set(model.workers)
        assert dict(self.rows("SELECT ID, TERMINATE FROM QUEUE_CANCEL")) == model.cancels
        assert rules.broken(stored, crash_limit=LIMIT, at_rest=False, orphans=True) == []


def test_the_store_keeps_the_rules(url):
    app = FBTasks("model", url)
    watcher = app.connect()  # the database has been up for a lease, as far as a lease is concerned
    limit = time.monotonic() + LEASE + 0.1
    while time.monotonic() < limit:
        time.sleep(0.1)
    Store.app = app
    examples = int(os.environ.get("FBTASKS_TEST_EXAMPLES", "10"))
    try:
        run_state_machine_as_test(
            Store,
            settings=settings(
                max_examples=examples, stateful_step_count=40, deadline=None, derandomize=examples == 10,
                suppress_health_check=list(HealthCheck), database=None, print_blob=False,
            ),
        )  # fmt: skip
    finally:
        watcher.close()
        app.close()
