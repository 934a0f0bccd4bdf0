"""The account must be able to fail: each of its rules finds its violation in a ledger that is written by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from support import rules as tables
from support.rules import broken

from fbtasks.states import State
from soak.accounting import Row, Rows, Rules, account, mistaken_outages, tracebacks
from soak.ledger import Ledger, parse, read_ledger
from soak.limit_accounting import account_limits
from soak.limited import LIMITS, RATE, LimitRows, lanes_of
from soak.report import verdict
from soak.source_accounting import account_sources, too_long
from soak.sources import HANDLERS, MAX_LENGTH, Said, SourceRows, read, refs

CHANGES = [handler for handler, what in HANDLERS.items() if what == "change"]
FIRST, SECOND = Said("sources-1-000001", "change", "7", 1), Said("sources-1-000002", "change", "7", 2)
POLLED = Said("sources-1-000001", "row", None, 0)


class Story:
    """A ledger; times are those that the steps give."""

    def __init__(self):
        self.records = []

    def add(self, t, event, **fields):
        self.records.append({"t": t, "pid": 1, "event": event, **fields})
        return self

    def attempted(self, event, **fields):
        return self.add(0, "attempt", ref="a", kind="quick", how="single").add(0.5, event, ref="a", **fields)

    def enqueued(self, ref="a", id="1", kind="quick", t=0.0):
        return self.add(t, "attempt", ref=ref, kind=kind, how="single").add(t + 0.1, "ack", ref=ref, id=id)

    def ran(self, start, end=None, ref="a", id="1", kind="quick", pid=11, tries=0, outcome="returned", **more):
        run = f"{pid}.{len(self.records)}"
        self.add(start, "start", ref=ref, run=run, kind=kind, worker=pid - 1, id=id, tries=tries, **more)
        self.records[-1]["pid"] = pid
        return self if end is None else self.add(end, "end", ref=ref, run=run, outcome=outcome)

    def fault(self, t, what="SIGKILL", target=10, until=None):
        return self.add(t, "fault", what=what, target=target, until=until)

    def operator(self, t, what, answer, id="1", number=1):
        self.add(t, "operator", number=number, what=what, id=id)
        return self.add(t + 0.1, "answer", number=number, what=what, id=id, answer=answer)

    def handled(self, *said, handlers=HANDLERS):
        """Each is handled once, one after the other."""
        for n, each in enumerate(said):
            for handler in handlers:
                if HANDLERS[handler] == each.what:
                    self.ran(n + 1, n + 1.5, ref=each.ref, kind=handler)
        return self

    def has(self, kind, ref, start, end=None, key="k", t=0.0, **given):
        """A task with limits."""
        return self.enqueued(ref, ref, kind, t).ran(start, end, ref, ref, kind, lanes=lanes_of(kind, key), **given)

    def flow(self, what="flow made", **given):
        """A workflow of three steps."""
        self.add(0, "flow", ref="f", **{"kind": "chain", "size": 3, "fails": None, **given})
        return self.add(0.1, what, ref="f")

    def step(self, number, start, kind="step", **given):
        got = [f"f.{number - 1}"] if number and kind == "step" else []
        return self.ran(start, start + 0.5, f"f.{number}", str(number), kind, **{"got": got, **given})

    def chain(self):
        return self.flow().step(0, 1).step(1, 2).step(2, 3)


def row(ref="a", id=1, **fields):
    return Row(id=id, ref=ref, **fields)


def ended(*states, kind="step"):
    """The steps of the workflow."""
    return [row(f"f.{number}", number, state=state, kind=kind) for number, state in enumerate(states)]


def database(*said, history=(), live=(), claims=(), ticks=(10.0, 11.0, 12.0), effects=(), of_changes=None, **given):
    """A database in which *said* was committed, with one effect of each change."""
    changes = [each.ref for each in said if each.what == "change"]
    given = {"counted": {"7": len(changes)}, "effects": of_changes if of_changes is not None else changes, **given}
    given.setdefault("inbox", {each.ref: "D" for each in said})
    sources, limits = SourceRows(said=said, **given), LimitRows(claims=claims, ticks=ticks)
    return Rows(history=history, live=live, effects=effects, sources=sources, limits=limits)


def rules(story, rows, left=None, **given):
    """The rules that the three accounts find broken."""
    found, _ = account(story.records, rows, Rules(**given))
    found += account_sources(story.records, rows, Rules(**given))[0]
    return {v.rule for v in [*found, *account_limits(story.records, rows, Rules(**given), left or {})]}


def all_in_order():
    """A ledger of everything, and its database: nothing is wrong with it."""
    story = Story().enqueued().ran(1, 2).handled(FIRST, SECOND).chain().has("alone", "b", 1, 2).has("alone", "c", 2, 3)
    story.add(0, "asked", ref="x-k-1", key="k").add(0.1, "granted", ref="x-k-1").ran(2, 3, "x-k-1", "9", "once")
    history = [row(), row("b", 20, task_id="b", kind="alone"), row("c", 21, task_id="c", kind="alone")]
    rows = database(FIRST, SECOND, history=history + ended(10, 10, 10), claims=[n / RATE for n in range(50)])
    return story, rows


def test_nothing_is_wrong_with_what_is_in_order():
    assert rules(*all_in_order(), left={"QUEUE_GATE": 0}) == set()


DONE = database(history=[row()])
NOTHING = database()
BOTH = database(FIRST, SECOND)
LOST_WORKER = "fbtasks.errors.WorkerLost"


def one(**fields):
    """A database with one task that has ended."""
    return database(history=[row(**fields)])


def fed(**fields):
    """A database with a change, and a task for it that has ended."""
    given = {"kind": "by_key", **fields}
    effects = [FIRST.ref] if given["kind"] != "effect" else []
    return database(FIRST, history=[row(ref="", refs=(FIRST.ref,), **given)], of_changes=effects)


def ran():
    return Story().enqueued().ran(1, 2)


def several(kind, many):
    story = Story()
    for number in range(many):
        story.has(kind, f"t{number}", 1 + number / 100, 5)
    return story


def but(handler):
    """All handlers of changes have handled both but this one."""
    return Story().handled(FIRST, SECOND, handlers={*CHANGES} - {handler})


FOUND = {
    "a second run has no explanation": [
        (ran().ran(3, 4), DONE),
        (Story().enqueued().ran(1).fault(2, target=30).ran(3, 4), DONE),
        (ran().fault(9).ran(10, 11), DONE),
        (Story().enqueued().ran(1, 9).ran(3, 4, pid=21).fault(8), DONE),
        (Story().enqueued().ran(1).fault(2).ran(3, 4, pid=21).ran(5, 6, pid=21), DONE),
        (Story().enqueued().ran(1, 8).fault(2, "SIGSTOP", until=7).ran(6, 6.5, pid=21), DONE),
        (ran().fault(1.5, "row lock", None, until=6).ran(7, 8), DONE),
        (ran().operator(3, "retry", "refused").ran(4, 5), DONE),
        (
            Story().enqueued(kind="failing").ran(1, 2, kind="failing", outcome="raised").ran(3, 4, kind="failing"),
            one(kind="failing", state=11),
        ),
        *((Story().handled(FIRST).ran(3, 4, FIRST.ref, kind=handler), database(FIRST)) for handler in CHANGES),
        (Story().handled(FIRST).ran(6, 7, FIRST.ref, kind="by_key").fault(5.2), database(FIRST)),
    ],
    "an acknowledged task is lost": [
        (ran(), NOTHING),
        (Story().enqueued(kind="ignored").ran(1, kind="ignored"), NOTHING),
    ],
    "a task is stuck in QUEUE_TASK": [
        (Story().enqueued(), database(live=[row(state=0)])),
        (Story().attempted("uncertain"), database(live=[row(state=0)])),
        (Story().handled(FIRST), database(FIRST, live=[row(state=0, kind="unordered", refs=(FIRST.ref,))])),
        (Story(), database(live=[row("a-k-1", state=0, kind="once")])),
    ],
    "a task ran before its time": [
        (Story().add(0, "delayed", ref="a", seconds=2.0).enqueued().ran(1.5, 1.6), DONE),
    ],
    "a task ran that was not enqueued": [
        (Story().ran(1, 2), NOTHING),
        (Story().ran(1, 2, "x-k-1", kind="once"), NOTHING),
    ],
    "the database holds a task that was not enqueued": [(Story(), DONE)],
    "one enqueue made several tasks": [
        (ran().ran(1, 2, id="2"), DONE),
        (ran(), database(history=[row(), row(id=2)])),
    ],
    "a task ran whose enqueue was rolled back": [(Story().attempted("rolledback").ran(1, 2), NOTHING)],
    "a task ran whose enqueue was refused": [(Story().attempted("refused").ran(1, 2), NOTHING)],
    "the database holds a task whose enqueue was rolled back": [(Story().attempted("rolledback"), DONE)],
    "the database holds a task whose enqueue was refused": [(Story().attempted("refused"), DONE)],
    "TRY_COUNT is above its limit": [(ran(), one(tries=5)), (ran(), database(live=[row(state=0, tries=5)]))],
    "a task succeeded that did not return": [(Story().enqueued().ran(1), DONE)],
    "a task failed that should not": [
        (ran(), one(state=11, error_type="ValueError")),
        (Story().handled(FIRST), fed(state=11, error_type="fbtasks.errors.CaptureError")),
        (Story(), one(state=11, error_type="ValueError", kind="tick")),
    ],
    "a task was cancelled without a request": [
        (Story().enqueued(), one(state=12)),
        (Story().enqueued().operator(1, "cancel", "refused"), one(state=12)),
        (but("effect"), fed(state=12, kind="effect")),
    ],
    "a task ran after it had been cancelled": [
        (Story().enqueued().operator(1, "cancel", "cancelled").ran(2, 3), one(state=12)),
    ],
    "a transactional effect is not there exactly once": [
        (ran(), database(history=[row(kind="transactional")], effects=[("a", run) for run in runs]))
        for runs in ([], ["11.2", "11.3"])
    ],
    "a transactional effect of a task that did not succeed": [
        (ran(), database(history=[row(kind="transactional", state=12)], effects=[("a", "11.2")])),
    ],
    "a transactional effect of a task that has not ended": [(Story(), database(effects=[("a", "11.2")]))],
    "a task is charged with crashes it had no part in": [
        (ran(), one(crashes=1)),
        (Story().enqueued().fault(1, target=77).ran(2, 3), one(crashes=2)),
        (ran().fault(1.5, "host lock", None, until=6), one(crashes=1)),
    ],
    "a worker ended by itself": [(Story().add(1, "worker", what="ended", name="w", expected=False), NOTHING)],
    "a process outlived its worker": [(Story().add(1, "worker", what="orphan", target=10), NOTHING)],
    "a process did not end when asked": [(Story().add(1, "worker", what="hung", name="w"), NOTHING)],
    "seen while everything ran": [(Story().add(1, "sample", violations=["x"]), NOTHING)],
    # What sources feed.
    "a committed change is lost": [(Story().add(9, "committed", refs=[FIRST.ref]), NOTHING)],
    "a change is there that was rolled back": [
        (Story().handled(FIRST).add(9, "undone", refs=[FIRST.ref]), database(FIRST)),
    ],
    "a row was not changed as often as was committed": [(Story().handled(FIRST), database(FIRST, counted={"7": 2}))],
    "changes or polled rows are stuck": [(Story(), database(waiting=2))],
    **{
        f"a committed {what} was not handled": [
            (
                Story().handled(said := replace(FIRST, what=what), handlers=HANDLERS.keys() - {handler}),
                database(said),
            )
            for handler in HANDLERS
            if HANDLERS[handler] == what
        ]
        for what in ("change", "event", "row")
    },
    "a handler was called for what was not committed": [(Story().handled(FIRST), NOTHING)],
    "the database holds a task for what was not committed": [
        (Story(), database(history=[row(ref="", state=12, kind="by_key", refs=(FIRST.ref,))])),
    ],
    "a success is kept that no program wants": [(Story().handled(FIRST), fed())],
    "a call was made before its turn": [
        (but("by_key").ran(1, 2, SECOND.ref, kind="by_key").ran(3, 4, FIRST.ref, kind="by_key"), BOTH),
        (  # not even before another try
            but("by_key")
            .ran(1, 2, FIRST.ref, kind="by_key", outcome="raised")
            .ran(3, 4, SECOND.ref, kind="by_key")
            .ran(5, 6, FIRST.ref, kind="by_key"),
            BOTH,
        ),
        (  # in total order also of two keys, in the order of the program
            but("in_total").ran(1, 2, SECOND.ref, kind="in_total").ran(3, 4, FIRST.ref, kind="in_total"),
            database(FIRST, replace(SECOND, lane="8", n=1), counted={"7": 1, "8": 1}),
        ),
    ],
    "two calls of one lane at once": [
        (but("by_key").ran(1, 3, FIRST.ref, kind="by_key").ran(2, 4, SECOND.ref, kind="by_key", pid=21), BOTH),
    ],
    "a change's effect is not there exactly once": [
        (Story().handled(FIRST, SECOND), database(FIRST, SECOND, of_changes=[FIRST.ref, *more]))
        for more in ([], [SECOND.ref, SECOND.ref])
    ],
    "an effect of what was not committed": [(Story(), database(of_changes=[FIRST.ref]))],
    "a polled row does not have its status": [(Story().handled(POLLED), database(POLLED, inbox={POLLED.ref: "T"}))],
    "a task was given up to which nothing had happened": [
        (Story().handled(FIRST), fed(state=11, error_type=LOST_WORKER, crashes=3)),
    ],
    "a bounded queue has not all of its places": [(Story(), database(places={"waiting": 9}))],
    # Limits, unique calls, workflows, schedules.
    "more tasks at once than the limit says": [
        *((several(kind, LIMITS.get(kind, 1) + 1), NOTHING) for kind in (*LIMITS, "gated")),
        (
            Story()
            .has("alone", "a", 1)
            .fault(2)
            .ran(4, 5, "a", "a", "alone", pid=21, lanes=lanes_of("alone", "k"))
            .has("alone", "b", 4.5, 4.6, pid=31),
            NOTHING,
        ),
    ],
    "a task overtook one that it had to follow": [
        (Story().has("ordered", "a", 3, 4).has("ordered", "b", 1, 2, t=0.5), NOTHING),
        (
            Story()
            .has("ordered", "a", 1, 2, outcome="raised")
            .has("ordered", "b", 2.1, 2.2, t=0.5, pid=14)
            .ran(3, 4, "a", "a", "ordered", pid=15, tries=1, lanes=lanes_of("ordered", "k")),
            NOTHING,
        ),
    ],
    "more tasks began in a time than the rate lets": [(Story(), database(claims=[n / RATE / 3 for n in range(200)]))],
    "a call that was merged is not covered by a run": [
        (Story().add(1, "asked", ref="x-k-1", key="k").add(1.1, "granted", ref="x-k-1"), NOTHING),
        (
            Story()
            .add(1, "asked", ref="x-k-1", key="k")
            .add(1.1, "granted", ref="x-k-1")
            .ran(0.5, 3, "x-k-1", kind="once"),
            NOTHING,
        ),
    ],
    "a step of a workflow is lost": [
        (Story().flow(), database(history=ended(10, 10))),
        (Story().flow("flow uncertain"), database(history=ended(10, 10))),
    ],
    "a step of a workflow is stuck": [
        (Story().flow(), database(history=ended(10, 10), live=[row("f.2", 2, state=State.AWAITING, kind="step")])),
    ],
    "a step of a workflow ended otherwise than it says": [
        (Story().flow(fails=1), database(history=ended(10, 11, 10))),
        (Story().flow(), database(history=ended(10, 10, 12))),
    ],
    "the database holds steps of a workflow that was refused": [
        (Story().flow("flow refused"), database(history=ended(10, 10, 10))),
    ],
    "a step ran of a workflow that was not enqueued": [(Story().step(0, 1), NOTHING)],
    "a step ran before what it follows": [
        (Story().flow().step(0, 1).step(1, 1.2).step(2, 3), database(history=ended(10, 10, 10))),
        (
            Story().flow(kind="chord", size=1).step(0, 1, "member").ran(1.2, 2, "f.body", "9", "body", got=["f.0"]),
            NOTHING,
        ),
    ],
    "a step was not given what it follows": [
        (Story().flow().step(0, 1).step(1, 2).step(2, 3, got=["f.0"]), database(history=ended(10, 10, 10))),
    ],
    "a schedule ticked twice for one moment": [(Story(), database(ticks=(1.0, 2.0, 2.0)))],
    "a schedule missed a tick": [(Story(), database(ticks=ticks)) for ticks in ((), (1.0, 3.0))],
}


@pytest.mark.parametrize("rule", FOUND)
def test_each_rule_finds_its_violation(rule):
    for story, rows in FOUND[rule]:
        assert rule in rules(story, rows), story.records


def test_a_killed_worker_runs_tasks_until_it_has_ended():
    story = Story().enqueued().ran(2.5).fault(2).ran(3, 4, pid=21)
    assert rules(story, DONE) == {"a second run has no explanation"}
    story.add(2.6, "worker", what="ended", target=10, expected=True)
    assert rules(story, DONE) == set()


@pytest.mark.parametrize(("start", "has_place"), [(1.05, False), (1.15, True)])
def test_a_run_that_begins_while_its_task_is_cancelled_may_have_no_place(start, has_place):
    """The cancel is asked for at 1 and answered at 1.1; nothing but the worker's later end tells when the run ended."""
    story = Story().has("alone", "a", start).operator(1, "cancel", "done", id="a").fault(2)
    story.has("alone", "b", 1.2, 1.3, pid=21)
    assert ("more tasks at once than the limit says" in rules(story, NOTHING)) == has_place


def test_what_is_left_is_found():
    assert rules(Story(), NOTHING, left={"QUEUE_GATE": 1}) == {"something is left of tasks that have ended"}


def test_no_rule_is_without_its_violation():
    folder = Path(__file__).parent
    text = "".join((folder / f"{name}accounting.py").read_text() for name in ("", "source_", "limit_"))
    elsewhere = {  # by the tests below, and the one above
        "something is left of tasks that have ended", "a conflict was taken for an outage", "a log holds a traceback",
        "a bounded queue holds too many",
    }  # fmt: skip
    patterns = {re.sub(r"\{.*?\}", "(.*)", rule) for rule in re.findall(r'Violation\(\s*f?"([^"]+)"', text)}
    assert [each for each in patterns - elsewhere if not any(re.fullmatch(each, rule) for rule in FOUND)] == []


TABLES = [
    (Rows(live=[row(state=2, worker_id=7)]), "a running task's worker is not registered"),
    (Rows(live=[row(state=2)]), "a task has a worker and does not run, or runs without"),
    (Rows(live=[row(state=0, worker_id=7)]), "a task has a worker and does not run, or runs without"),
    (Rows(live=[row(state=10)]), "a task in QUEUE_TASK has ended"),
    (Rows(live=[row(state=0, crashes=3)]), "a task goes on whose crashes have reached the limit"),
    (Rows(history=[row(state=0)]), "a task in QUEUE_HISTORY has not ended"),
    (Rows(history=[row(tries=0)]), "a task succeeded without a try"),
    (Rows(history=[row(crashes=3)]), "a task went on whose crashes had reached the limit"),
    (Rows(history=[row(state=12, crashes=4)]), "a task went on whose crashes had reached the limit"),
    (
        Rows(history=[row(state=11, error_type=LOST_WORKER, crashes=1)]),
        "a task failed before its crashes reached the limit",
    ),
    (Rows(live=[row(state=0)], history=[row()]), "an id is both in QUEUE_TASK and in QUEUE_HISTORY"),
    (Rows(payloads=frozenset({1})), "a row of QUEUE_PAYLOAD has no task"),
    (Rows(history=[row()], payloads=frozenset({1})), "a row of QUEUE_PAYLOAD is that of a success"),
    (Rows(live=[row(state=0)], results=frozenset({1})), "a row of QUEUE_RESULT has no finished task"),
    (Rows(task_ids=frozenset({1})), "a row of QUEUE_TASK_ID has no task"),
    (Rows(history=[row()], cancels=frozenset({1})), "a row of QUEUE_CANCEL has no live task"),
    (Rows(workers=frozenset({7})), "a worker is registered that is gone"),
]


def test_each_rule_of_the_tables_finds_its_violation():
    for rows, rule in TABLES:
        assert [v.rule for v in broken(rows)] == [rule]
    said = set(re.findall(r'"(a[n]? [^"{]{20,})"', Path(tables.__file__).read_text()))
    assert said - {rule for _, rule in TABLES} == set()


def test_bounded_queues():
    live = [row(id=number, state=0, queue="waiting") for number in range(MAX_LENGTH + 1)]
    assert list(too_long(Rows(live=live[1:]))) == []
    assert [v.rule for v in too_long(Rows(live=live))] == ["a bounded queue holds too many"]
    found = read(lambda sql: [(0, 0)] if "COUNT(*) FROM QUEUE_CHANGE" in sql else [], whole=True)
    assert set(found.places.values()) == {0}  # one without any place is read as such


def test_tracebacks_and_mistaken_outages_are_found_in_logs():
    trace = "Traceback (most recent call last):\n  File ...\n"
    (found,) = tracebacks("w", f"fine\n{trace}ValueError: x\n")
    assert found.evidence[-1] == "ValueError: x"
    own = "2027-01-01 00:00:00,000 ERROR Task 1 (soak.tasks.refuse) failed in 0.1 s: soak.tasks.Refusal: x\n"
    assert tracebacks("w", own + trace) == []
    child = "fbtasks: child process 7 can run no more tasks and ends: an error outside of the tasks.\n"
    assert tracebacks("w", f"{child}{trace}OSError: [Errno 9] Bad file descriptor\n") == []
    assert len(tracebacks("w", f"{child}{trace}RuntimeError: x\n")) == 1
    line = "2026-11-22 09:47:50,434 ERROR The database is away: {} Trying again in 0.1 s."
    text = "\n".join(map(line.format, ("deadlock -update conflicts", "db.example cannot be reached.")))
    assert [v.rule for v in mistaken_outages("w", text)] == ["a conflict was taken for an outage"]


def test_a_violation_is_shown_with_the_ledgers_lines():
    violations, explained = account(ran().ran(3, 4).records, DONE, Rules())
    text = verdict(violations)
    assert "a second run has no explanation: a" in text
    assert "'event': 'start'" in text
    assert explained == {"unexplained": 1}
    assert verdict([]) == "Every task is accounted for."


def test_the_ledger_is_read_back_in_order(tmp_path):
    ledgers = [Ledger(tmp_path, role) for role in ("one", "two")]
    for n in range(10):
        ledgers[n % 2].write("note", text=f"{n}")
    for ledger in ledgers:
        ledger.close()
    assert [record["text"] for record in read_ledger(tmp_path)] == [str(n) for n in range(10)]
    with pytest.raises(ValueError, match="Expecting"):
        parse(['{"t": 1, "event": '])


def test_what_payloads_belong_to():
    assert refs("by_key", [{"n": {"REF": "a"}}, {"n": {"REF": "b"}}]) == ("a", "b")
    assert refs("heard", [{"d": '{"ref": "a", "n": 1}'}]) == ("a",)
    assert refs("polled", [{"v": {"REF": "a"}}]) == ("a",)
