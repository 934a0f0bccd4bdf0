"""The account at the end of a soak: what the ledger says, held against what the database says.

Everything here is a pure function of records (see ledger.py) and of rows (see :class:`Rows`), so that the check itself
can be tested with made-up ledgers that hold each kind of violation.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from support.rules import WORKER_LOST, Violation, broken
from support.rules import Row as AnyRow
from support.rules import Rows as AnyRows

from fbtasks.states import State
from soak.ledger import Record
from soak.limited import APART, LimitRows
from soak.sources import HANDLERS, SourceRows

OTHERS = frozenset(HANDLERS) | APART
"""Kinds that have an account of their own."""
RETRIED = frozenset({"retrying", "by_key", "effect", "ordered"})
"""Kinds that are tried again when they raise."""
TRANSACTIONAL = frozenset({"transactional", "effect"})
TRIES = {"failing": 1}
"""Most tries of a kind, where they are not the default's."""
MOST_TRIES = 4
CONNECTION = frozenset({"cut", "freeze", "refuse", "throttle"})
"""Faults of all connections, by which a worker's lease may run out. A lock that others hold is a reason for nothing."""

SLACK = 0.3
"""Seconds by which a signal may take effect later than it was recorded."""
WINDOW = 2.0
"""Seconds that the end of a function may lie before the commit of its outcome, while nothing is held up."""
CLOCKS = 0.1
"""Seconds by which the clock of the database may get ahead of that of the ledger in the time of a countdown."""
TURN = 1.5
"""Seconds that the same run may go on with other calls, where a source feeds the task."""


_FAILED = re.compile(r" ERROR Task \d+ \(.*\) failed in ")
"""The line of a worker's log that a task's own traceback follows."""
_BROKEN = re.compile(r"fbtasks: child process \d+ can run no more tasks and ends: |Exception ignored in: ")
_CLOSED = re.compile(r"^OSError: \[Errno (9|88)\]|^ValueError: Invalid file descriptor|^_pickle.UnpicklingError")
"""What a child says, with a traceback between, that finds its descriptors closed or reused: some tasks close them.

Two threads may write at once, and a line of one may then begin in the middle of a line of the other.
"""
_MISTAKEN = re.compile(r" ERROR The database is away: (deadlock|lock conflict|update conflict)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(AnyRow):
    """A row of QUEUE_TASK or of QUEUE_HISTORY, with what leads to the ledger."""

    task_id: str | None = None
    ref: str = ""
    kind: str = "quick"
    queue: str = "default"
    error: str | None = None
    refs: Sequence[str] = ()
    """What its changes, its event or its row belong to, where a source feeds the task."""

    @property
    def key(self):
        """The id as callers know it."""
        return self.task_id or str(self.id)

    @property
    def subject(self):
        return f"{self.ref}, id {self.key}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(AnyRows):
    """The database in one snapshot."""

    live: Sequence[Row] = ()
    history: Sequence[Row] = ()
    effects: Sequence[tuple[str, str]] = ()
    """(ref, run) of each row that a transactional task inserted."""
    sources: SourceRows = field(default_factory=SourceRows)
    limits: LimitRows = field(default_factory=LimitRows)

    @property
    def both(self):
        """All of them."""
        return [*self.live, *self.history]

    def of(self, kinds):
        """The same with only the tasks of *kinds*."""
        live, history = ([row for row in found if row.kind in kinds] for found in (self.live, self.history))
        return replace(self, live=live, history=history)

    def of_producers(self):
        """The same with only the tasks that are enqueued one by one."""
        return self.of({row.kind for row in self.both} - OTHERS)


@dataclass(slots=True)
class TaskRun:
    """One run of a task's function."""

    ref: str
    name: str
    kind: str
    pid: int
    worker: int
    id: str | None
    tries: int
    start: float
    end: float | None = None
    outcome: str | None = None
    records: list[Record] = field(default_factory=list)

    @property
    def place(self):
        """The processes whose death ends it."""
        return frozenset({self.pid, self.worker})

    @property
    def window(self):
        """Seconds from its end to the commit of its outcome, while nothing is held up."""
        return WINDOW + (TURN if self.kind in HANDLERS else 0.0)


@dataclass(frozen=True, slots=True)
class Fault:
    """Something done to a process, or to all connections (``target`` None), from ``start`` to ``until``."""

    what: str
    target: int | None
    start: float
    until: float


@dataclass(slots=True)
class Ledgers:
    """The records, sorted by what they are about."""

    records: list[Record]
    attempts: dict[str, Record] = field(default_factory=dict)
    acks: dict[str, Record] = field(default_factory=dict)
    rolledback: dict[str, Record] = field(default_factory=dict)
    refused: dict[str, Record] = field(default_factory=dict)
    uncertain: dict[str, Record] = field(default_factory=dict)
    delayed: dict[str, Record] = field(default_factory=dict)
    runs: dict[str, list[TaskRun]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[TaskRun]] = field(default_factory=lambda: defaultdict(list))
    """The calls for what sources have, and the runs of what else has an account of its own, by kind and ref."""
    faults: list[Fault] = field(default_factory=list)
    actions: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """What operators did to an id; ``until`` and ``answer`` come from the answer."""

    @property
    def stalls(self):
        """When something was held up that others may have had to wait for."""
        return merged((f.start, f.until) for f in self.faults if f.until > f.start)


def merged(intervals):
    """The same times as intervals that do not overlap."""
    found = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def call_of(handler, ref):
    """What the runs of *handler* for *ref* are found by."""
    return f"{handler}/{ref}"


def sort_out(records):
    """The records by subject."""
    books = Ledgers(sorted(records, key=lambda r: r["t"]))
    by_ref = {
        "attempt": books.attempts, "ack": books.acks, "rolledback": books.rolledback, "refused": books.refused,
        "uncertain": books.uncertain, "delayed": books.delayed,
    }  # fmt: skip
    open_runs = {}
    numbers = {}
    for record in books.records:
        event = record["event"]
        if event in by_ref:
            by_ref[event][record["ref"]] = record
        elif event == "start":
            handler = record["kind"] if record["kind"] in OTHERS else None
            ref = call_of(handler, record["ref"]) if handler else record["ref"]
            run = TaskRun(
                ref, record["run"], record["kind"], record["pid"], record["worker"], record.get("id"),
                record.get("tries") or 0, record["t"], records=[record],
            )  # fmt: skip
            (books.calls if handler else books.runs)[run.ref].append(run)
            open_runs[run.name] = run
        elif event == "end":
            run = open_runs.pop(record["run"])
            run.end, run.outcome = record["t"], record["outcome"]
            run.records.append(record)
        elif event == "fault":
            books.faults.append(
                Fault(record["what"], record.get("target"), record["t"], max(record["t"], record.get("until") or 0.0))
            )
        elif event == "worker" and record["what"] == "ended":  # on a busy machine a while after it was killed
            for number, fault in enumerate(books.faults):
                if fault == Fault("SIGKILL", record["target"], fault.start, fault.start):
                    books.faults[number] = replace(fault, until=record["t"])
        elif event == "operator":
            numbers[record["number"]] = action = {**record, "until": float("inf"), "answer": "unknown"}
            books.actions[record["id"]].append(action)
        elif event == "answer":
            numbers[record["number"]].update(until=record["t"], answer=record["answer"])
    return books


# Second runs


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a task may run once more, and from when on."""

    why: str
    since: float


@dataclass(frozen=True, slots=True)
class Rules:
    """What the account has to know about the run of the soak."""

    lease: float = 30.0
    embedded: bool = True

    @property
    def long_stop(self):
        """Seconds from which a stop may cost a worker its lease: it may have been renewed a third of it before."""
        return self.lease / 2


def waited(since, until, stalls):
    """Seconds from *since* to *until* in which nothing was held up."""
    held = sum(max(0.0, min(until, end) - max(since, start)) for start, end in stalls)
    return until - since - held


def hit(run, fault, stalls):
    """Whether *run* was under way when *fault* came, or its outcome may not have been recorded yet."""
    if run.start > fault.until + SLACK:
        return False
    return run.end is None or run.end >= fault.start or waited(run.end, fault.start, stalls) <= run.window


def explains(run, fault, rules):
    """Why *fault*, which hit *run*, lets its task run again; None when it does not."""
    mine = fault.target in run.place
    long = fault.until - fault.start >= rules.long_stop
    match fault.what:
        case "SIGKILL" | "SIGTERM" | "self" | "exit" | "descriptors":
            return fault.what if mine else None
        case "SIGSTOP" if mine and long:
            return "SIGSTOP"
        case "SIGSTOP" if long and rules.embedded:
            return "SIGSTOP of another"  # who was stopped may have held a lock that all need
    return "connection" if fault.what in CONNECTION else None


def reason_of(run, later, books, rules, stalls):
    """Why the claim that *run* belongs to may have been followed by another. One claim has one successor."""
    if run.outcome == "raised" and run.kind in RETRIED and run.tries + 1 < TRIES.get(run.kind, MOST_TRIES):
        assert run.end is not None
        return Reason("retry", run.end)
    for fault in books.faults:
        if hit(run, fault, stalls) and (why := explains(run, fault, rules)):
            return Reason(why, fault.start)
    if run.kind in TRANSACTIONAL and run.outcome == "returned" and later.tries > run.tries and run.end is not None:
        return Reason("conflict", run.end)
    return None


def began_while_stopped(run, books, rules):
    """Whether a child began *run* while its worker was stopped: the claim may have been another worker's by then."""
    return any(
        fault.what == "SIGSTOP"
        and fault.target in run.place
        and fault.until - fault.start >= rules.long_stop
        and fault.start < run.start <= fault.until
        for fault in books.faults
    )


def second_runs(all_runs, books, rules):
    """Takes for each second run a reason of an earlier run, or an operator's retry. Returns how often which."""
    found = Counter()
    violations = []
    stalls = books.stalls
    for ref, runs in all_runs.items():
        taken = set()
        retries = [
            Reason("operator", action["t"])
            for key in keys_of(ref, books)
            for action in books.actions.get(key, ())
            if action["what"] == "retry" and action["answer"] != "refused"
        ]
        for place, later in enumerate(runs[1:], 1):
            reasons = {
                number: reason
                for number, run in enumerate(runs[:place])
                if number not in taken and (reason := reason_of(run, later, books, rules, stalls))
            }
            number = next((n for n, r in reasons.items() if r.since <= later.start + SLACK), None)
            if number is not None:
                taken.add(number)
                found[reasons[number].why] += 1
                continue
            asked = next((r for r in retries if r.since <= later.start), None)
            if asked is not None:
                retries.remove(asked)
                found["operator"] += 1
                continue
            if began_while_stopped(later, books, rules):
                found["SIGSTOP before it began"] += 1
                continue
            found["unexplained"] += 1
            violations.append(Violation("a second run has no explanation", f"{ref}, run {later.name}"))
    return found, violations


def keys_of(ref, books):
    """The ids of the tasks of *ref*, where they are known."""
    known = {run.id for run in runs_of(ref, books) if run.id is not None}
    if ref in books.acks:
        known.add(str(books.acks[ref]["id"]))
    return frozenset(known)


def runs_of(ref, books):
    """The runs of a task, or the calls of a handler for what a source has."""
    return books.runs.get(ref) or books.calls.get(ref) or ()


def story(books, ref):
    """All that the ledger has about one task or call, and the faults of the processes that ran it."""
    keys = keys_of(ref, books)
    runs = runs_of(ref, books)
    own = {id(record) for run in runs for record in run.records}
    said = ref.rpartition("/")[2]
    places = frozenset(chain.from_iterable(run.place for run in runs))
    first = min((run.start for run in runs), default=0.0) - 1.0
    last = max((run.end or run.start for run in runs), default=0.0) + 5.0

    def about(record):
        if record["event"] in ("operator", "answer"):
            return record.get("id") in keys
        if record["event"] in ("fault", "worker"):
            return record.get("target") in (*places, None) and first <= record["t"] <= last
        if record["event"] in ("start", "end"):
            return id(record) in own
        return record.get("ref") == said or said in record.get("refs", ())

    return tuple(record for record in books.records if about(record))


def with_story(violation, books):
    """With what the ledger has about what its subject and its rows name."""
    named = re.findall(r"[^\s,:]+", violation.subject)
    for row in violation.evidence:
        if isinstance(row, Row):
            named += [row.ref, *(call_of(row.kind, ref) for ref in row.refs[:3])]
    known = dict.fromkeys(ref for ref in named if ref in books.attempts or runs_of(ref, books))
    told = chain.from_iterable(story(books, ref) for ref in known)
    return replace(violation, evidence=(*violation.evidence, *told))


# The account


def account(records, rows, rules):
    """All violations, and how many second runs were explained by what."""
    books = sort_out(records)
    whole = with_refs(rows, books)
    rows = whole.of_producers()
    explained, violations = second_runs(books.runs, books, rules)
    for check in (unfinished, unattempted, undone, early, outcomes, effects, crashes, cancelled_runs):
        violations.extend(check(books, rows))
    violations.extend(chain(broken(whole), processes(books)))
    return [with_story(violation, books) for violation in violations], explained


def with_refs(rows, books):
    """The rows whose arguments are no longer kept, with the refs that the ledger has for their ids."""
    refs = {run.id: ref for ref, runs in books.runs.items() for run in runs if run.id is not None}
    refs.update({str(ack["id"]): ref for ref, ack in books.acks.items()})

    def named(row):
        return row if row.ref or row.kind in OTHERS else replace(row, ref=refs.get(row.key, ""))

    return replace(rows, live=[named(row) for row in rows.live], history=[named(row) for row in rows.history])


def unfinished(books, rows):
    """Tasks that have not ended, and acknowledged ones of which nothing is known."""
    for row in rows.live:
        yield Violation("a task is stuck in QUEUE_TASK", row.subject, (row,))
    there = {row.key for row in rows.both}
    for ref, ack in books.acks.items():
        ignored = any(run.kind == "ignored" for run in books.runs.get(ref, ()))  # which leaves no trace by its own wish
        if str(ack["id"]) not in there and not (ignored and returned(books, ref)):
            yield Violation("an acknowledged task is lost", f"{ref}, id {ack['id']}")


def early(books, _):
    """Tasks that began before their countdown was over."""
    for ref, delayed in books.delayed.items():
        due = delayed["t"] + delayed["seconds"]
        for run in books.runs.get(ref, ()):
            if run.start < due - CLOCKS:
                yield Violation("a task ran before its time", f"{ref}, {due - run.start:.3f} s early")


def unattempted(books, rows):
    """What ran, or is in the database, without any producer's having tried to enqueue it."""
    for ref in books.runs.keys() - books.attempts.keys():
        yield Violation("a task ran that was not enqueued", ref)
    ids = defaultdict(set)
    for row in rows.both:
        ids[row.ref, "rows"].add(row.id)
        if row.ref not in books.attempts:
            yield Violation("the database holds a task that was not enqueued", row.subject, (row,))
    for ref in books.runs:
        ids[ref, "runs"] = keys_of(ref, books)
    for (ref, where), found in ids.items():
        if len(found) > 1:
            yield Violation("one enqueue made several tasks", f"{ref}, {where}: ids {sorted(found)}")


def undone(books, rows):
    """What was rolled back or refused, and is there all the same."""
    for what, refs in (("rolled back", books.rolledback), ("refused", books.refused)):
        for ref in refs.keys() & books.runs.keys():
            yield Violation(f"a task ran whose enqueue was {what}", ref)
        for row in rows.both:
            if row.ref in refs:
                yield Violation(f"the database holds a task whose enqueue was {what}", row.subject, (row,))


def outcomes(books, rows):
    """Outcomes that the task's kind and what was done to it do not allow."""
    for row in rows.both:
        if row.tries > TRIES.get(row.kind, MOST_TRIES):
            yield Violation("TRY_COUNT is above its limit", row.subject, (row,))
    for row in rows.history:
        fails = row.kind == "failing"
        if row.state == State.SUCCEEDED and (fails or not returned(books, row.ref)):
            yield Violation("a task succeeded that did not return", row.subject, (row,))
        elif row.state == State.FAILED and not fails and WORKER_LOST not in (row.error_type or ""):
            yield Violation("a task failed that should not", row.subject, (row,))
        elif row.state == State.CANCELLED and not asked(books, row.key, "cancel"):
            yield Violation("a task was cancelled without a request", row.subject, (row,))


def returned(books, ref):
    """Whether a run of the task has returned."""
    return any(run.outcome == "returned" for run in books.runs.get(ref, ()))


def asked(books, key, what):
    """Whether an operator did that to the id, as far as the answer tells."""
    return any(a["what"] == what and a["answer"] != "refused" for a in books.actions.get(key, ()))


def effects(books, rows):
    """Each effect of a transactional task that succeeded once, and none of one that did not."""
    found = Counter(ref for ref, _ in rows.effects)
    for row in rows.history:
        if row.kind != "transactional":
            continue
        count = found.pop(row.ref, 0)
        if row.state == State.SUCCEEDED and count != 1:
            yield Violation("a transactional effect is not there exactly once", f"{row.subject}: {count}", (row,))
        if row.state != State.SUCCEEDED and count:
            yield Violation("a transactional effect of a task that did not succeed", row.subject, (row,))
    for ref in found:
        yield Violation("a transactional effect of a task that has not ended", ref)


def crashes(books, rows):
    """Tasks charged with more crashes than came over their runs, or over a process in which one had not said so yet."""
    stalls = books.stalls
    unsaid = [fault for fault in books.faults if fault.what == "SIGKILL" and not _interrupts_a_run(fault, books)]
    for row in rows.both:
        if row.crashes == 0:
            continue
        runs = books.runs.get(row.ref, [])
        hits = sum(any(_deadly(run, fault) and hit(run, fault, stalls) for fault in books.faults) for run in runs)
        enqueued = books.attempts[row.ref]["t"] if row.ref in books.attempts else float("inf")
        for fault in [fault for fault in unsaid if fault.start > enqueued][: max(0, row.crashes - hits)]:
            unsaid.remove(fault)
            hits += 1
        if row.crashes > hits:
            what = f"{row.subject}: CRASH_COUNT {row.crashes}, {hits} of its {len(runs)} runs were hit"
            yield Violation("a task is charged with crashes it had no part in", what, (row,))


def _interrupts_a_run(fault, books):
    return any(
        fault.target in run.place and run.start <= fault.start and (run.end is None or run.end >= fault.start)
        for runs in chain(books.runs.values(), books.calls.values())
        for run in runs
    )


def _deadly(run, fault):
    return fault.what in CONNECTION or fault.target in run.place or fault.what == "SIGSTOP"


def cancelled_runs(books, _):
    """Runs that began after their task had been cancelled while it waited."""
    for ref, runs in books.runs.items():
        actions = [action for key in keys_of(ref, books) for action in books.actions.get(key, ())]
        for action in actions:
            if action["what"] != "cancel" or action["answer"] != "cancelled":
                continue
            for run in runs:
                again = any(a["what"] == "retry" and action["t"] <= a["until"] and a["t"] <= run.start for a in actions)
                if run.start > action["until"] + SLACK and not again:
                    yield Violation("a task ran after it had been cancelled", ref)


def processes(books):
    """Workers that ended by themselves, processes left over, and what was seen while everything ran."""
    for record in books.records:
        match record:
            case {"event": "worker", "what": "ended", "expected": False}:
                yield Violation("a worker ended by itself", record["name"], (record, *record.get("log", ())))
            case {"event": "worker", "what": "orphan"}:
                yield Violation("a process outlived its worker", f"pid {record['target']}", (record,))
            case {"event": "worker", "what": "hung"}:
                yield Violation("a process did not end when asked", record["name"], (record,))
            case {"event": "sample", "violations": [_, *_] as violations}:
                for text in violations:
                    yield Violation("seen while everything ran", text)


def mistaken_outages(name, text):
    """Rows that others hold, which a worker took for the loss of its database: it stops all of its work."""
    for line in text.splitlines():
        if _MISTAKEN.search(line):
            yield Violation("a conflict was taken for an outage", name, (line[:300],))


def tracebacks(name, log):
    """Each traceback in a log, with the lines around it; without those of tasks and children that fail on purpose."""
    lines = log.splitlines()

    def meant(number):
        before, after = lines[number - 1] if number else "", lines[number : number + 40]
        return bool(_FAILED.search(before)) or (bool(_BROKEN.search(before)) and any(map(_CLOSED.search, after)))

    return [
        Violation(
            "a log holds a traceback", f"{name}, line {number + 1}", tuple(lines[max(0, number - 2) : number + 25])
        )
        for number, line in enumerate(lines)
        if "Traceback (most recent call last)" in line and not meant(number)
    ]
