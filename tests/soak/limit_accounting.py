"""The account of limits, orders, unique calls, workflows and schedules, by what the tasks themselves wrote down.

Pure functions of records and rows, as in accounting.py. A run counts from its own first line to its last one, both of
which lie within the time for which its task has its place: two that overlap had their places at once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise

from support.rules import WORKER_LOST, Violation

from fbtasks.states import State
from soak.accounting import (
    Ledgers,
    Rows,
    Rules,
    call_of,
    explains,
    hit,
    keys_of,
    sort_out,
    with_story,
)
from soak.limited import BURST, LIMITS, RATE, STEPS, key_of

LATE = 0.25
"""Seconds by which the time of a claim may lie before that of its token: its transaction waited, or looked at more."""


@dataclass(frozen=True, slots=True)
class Account:
    """The ledger and the tables."""

    books: Ledgers
    rows: Rows
    rules: Rules
    left: Mapping[str, int]

    def runs(self, kind):
        """The runs of each task of an own account of *kind*."""
        for call, runs in self.books.calls.items():
            if call.startswith(f"{kind}/"):
                yield call, runs


def account_limits(records, rows, rules, left):
    """All violations; *left*: how many rows each table still had when all was forgotten."""
    account = Account(sort_out(records), rows, rules, left)
    checks = (
        too_many, out_of_order, too_fast, uncovered, flows, early_steps, ticks, strangers, leftovers,
    )  # fmt: skip
    return [with_story(violation, account.books) for check in checks for violation in check(account)]


# How many at once


def holding(ref, runs, account):
    """From when to when each run surely had its task's place.

    Not any longer when its worker may be taken for dead, or an operator ended its task, nor when the task runs anew. A
    run that begins when another one has returned is one that its worker, held up, did not know to be another's by then.
    """
    stalls = account.books.stalls
    actions = [a for run in runs if run.id for a in account.books.actions.get(str(run.id), ())]
    for number, run in enumerate(runs):
        if any(each.outcome == "returned" for each in runs[:number]):
            continue
        ends = [run.end] if run.end is not None else []
        ends += [later.start for later in runs[number + 1 : number + 2]]
        ends += [
            fault.start
            for fault in account.books.faults
            if hit(run, fault, stalls) and explains(run, fault, account.rules)
        ]
        ends += [max(action["t"], run.start) for action in actions if action["until"] >= run.start]
        if ends and min(ends) > run.start:
            yield run, run.start, min(ends)


def lanes(run):
    return [(name, key) for name, key in run.records[0].get("lanes", ())]


def too_many(account):
    """More tasks of one key at once than the limit says."""
    moments = defaultdict(list)
    for ref, runs in account.books.runs.items():
        if runs[0].records[0].get("lanes"):
            for run, start, end in holding(ref, runs, account):
                for lane in lanes(run):
                    moments[lane] += [(start, 1, ref), (end, 0, ref)]
    for lane, times in moments.items():
        inside = set()
        for at, begins, ref in sorted(times):
            if not begins:
                inside.discard(ref)
                continue
            inside.add(ref)
            if len(inside) > LIMITS[lane[0]]:
                what = f"{lane[0]}, {lane[1]}: {len(inside)} at {at}, {' '.join(sorted(inside))}"
                yield Violation("more tasks at once than the limit says", what)
                break


def out_of_order(account):
    """A task that began before one of its key, which had been enqueued when that one's call began, had ended."""
    books = account.books
    by_key = defaultdict(list)
    for ref, runs in books.runs.items():
        if runs[0].kind == "ordered" and ref in books.attempts:
            by_key[lanes(runs[0])[0][1]].append(ref)
    for refs in by_key.values():
        refs.sort(key=lambda ref: books.attempts[ref]["t"])
        done = []  # enqueued at, last begun at
        for ref in refs:
            mine = [start for _, start, _ in holding(ref, books.runs[ref], account)]
            if not mine:
                continue
            before = max(((last, each) for at, last, each in done if at < books.attempts[ref]["t"]), default=None)
            if before is not None and before[0] > mine[0]:
                yield Violation("a task overtook one that it had to follow", f"{ref} before {before[1]}")
            if ref in books.acks:
                actions = chain.from_iterable(books.actions.get(key, ()) for key in keys_of(ref, books))
                retried = [action["t"] for action in actions if action["what"] == "retry"]
                first = [start for start in mine if start < min(retried, default=float("inf"))]
                if first:  # what had ended before it was put back holds up nobody
                    done.append((books.acks[ref]["t"], first[-1], ref))


def too_fast(account):
    """More of one kind in a time than its rate lets begin."""
    worst, first = float("-inf"), 0
    claims = account.rows.limits.claims
    for number, at in enumerate(claims):
        if at - number / RATE > worst:
            worst, first = at - number / RATE, number
        early = worst - (at - number / RATE) - (BURST - 1) / RATE
        if early > LATE:
            what = f"{number - first + 1} in {at - claims[first]:.3f} s, of {RATE} a second"
            yield Violation("more tasks began in a time than the rate lets", what)
            return


# Unique calls


def uncovered(account):
    """Committed calls of a unique task that no run covers which began after them."""
    runs = defaultdict(list)
    for call, found in account.runs("once"):
        runs[key_of(call)].extend(found)
    ended = [row for row in account.rows.history if row.kind == "once" and row.state != State.SUCCEEDED]
    asked = {record["ref"]: record for record in account.books.records if record["event"] == "asked"}
    granted = {record["ref"] for record in account.books.records if record["event"] == "granted"}
    for ref in granted:
        record = asked[ref]
        if any(run.start >= record["t"] and run.outcome == "returned" for run in runs[record["key"]]):
            continue
        if any(_excuses(row, record, account) for row in ended):
            continue
        yield Violation("a call that was merged is not covered by a run", f"once/{ref}", (record,))


def _excuses(row, record, account):
    """Whether the end of *row* may be that of the call."""
    if key_of(row.ref) != record["key"]:
        return False
    if row.state == State.FAILED:
        return WORKER_LOST in (row.error_type or "")
    return any(action["until"] >= record["t"] for action in account.books.actions.get(row.key, ()))


# Workflows


def flows(account):
    """Steps that are missing, or ended otherwise than their workflow says."""
    ids = {str(run.id): run.records[0]["ref"] for kind in STEPS for _, runs in account.runs(kind) for run in runs}
    rows = {row.ref or ids.get(row.key, ""): row for row in account.rows.history if row.kind in STEPS}
    live = {row.ref: row for row in account.rows.live if row.kind in STEPS}
    said = {record["ref"]: record for record in account.books.records if record["event"] == "flow"}
    made = {record["ref"]: record for record in account.books.records if record["event"] == "flow made"}
    refused = {record["ref"] for record in account.books.records if record["event"] == "flow refused"}
    for ref, flow in said.items():
        wanted = list(expected(flow))
        found = [each for each, _ in wanted if each in rows or each in live]
        if ref in refused and found:
            yield Violation("the database holds steps of a workflow that was refused", _named(found))
        elif len(found) != len(wanted) and (ref in made or found):
            yield Violation("a step of a workflow is lost", _named(each for each, _ in wanted if each not in found))
        elif stuck := [each for each in found if each in live]:
            yield Violation("a step of a workflow is stuck", _named(stuck))
        elif not _was_disturbed(account, [rows[each] for each in found]):
            for each, state in wanted:
                if each in found and rows[each].state != state:
                    what = f"{_named([each])}: {State(rows[each].state).name} and not {state.name}"
                    yield Violation("a step of a workflow ended otherwise than it says", what, (rows[each],))


def expected(flow):
    """The steps of a workflow, and how each is to end."""
    kind, size, fails = flow["kind"], flow["size"], flow["fails"]
    for number in range(size):
        state = State.FAILED if number == fails else State.SUCCEEDED
        if kind == "chain" and fails is not None and number > fails:
            state = State.CANCELLED
        yield f"{flow['ref']}.{number}", state
    if kind == "chord":
        yield f"{flow['ref']}.body", State.SUCCEEDED if fails is None else State.FAILED


def _was_disturbed(account, rows):
    """Whether operators or the deaths of workers decided about a step."""
    return any(account.books.actions.get(row.key) or WORKER_LOST in (row.error_type or "") for row in rows)


def _named(steps):
    """The steps by what their runs may be found by."""
    return " ".join(call_of(kind, step) for step in steps for kind in sorted(STEPS))


def early_steps(account):
    """Steps that ran before those that they follow had returned, or were not given their results."""
    said = {record["ref"]: record for record in account.books.records if record["event"] == "flow"}
    for kind in ("step", "body"):
        for call, runs in account.runs(kind):
            ref = runs[0].records[0]["ref"]
            flow, _, number = ref.rpartition(".")
            if flow not in said:
                yield Violation("a step ran of a workflow that was not enqueued", call)
                continue
            if kind == "step":
                former, numbers = "step", [int(number) - 1] if int(number) else []
            else:
                former, numbers = "member", range(said[flow]["size"])
            before = [f"{flow}.{each}" for each in numbers]
            given = list(runs[0].records[0]["got"])
            ends = [
                min(
                    (r.end for r in account.books.calls.get(call_of(former, each), ()) if r.outcome == "returned"),
                    default=None,
                )
                for each in before
            ]
            if given != before:
                yield Violation("a step was not given what it follows", f"{call}: {given}")
            if any(end is None or end > runs[0].start for end in ends):
                yield Violation("a step ran before what it follows", call)


# Schedules, and what is left


def ticks(account):
    """Ticks that are missing, or were enqueued twice."""
    found = account.rows.limits.ticks
    for at, count in Counter(found).items():
        if count > 1:
            yield Violation("a schedule ticked twice for one moment", f"{at}: {count} tasks")
    for earlier, later in pairwise(sorted(set(found))):
        if round(later - earlier, 3) != 1.0:
            yield Violation("a schedule missed a tick", f"{later - earlier:.3f} s from {earlier}")
    if not found:
        yield Violation("a schedule missed a tick", "there was none")


def strangers(account):
    """Runs of unique calls that were never made, and of ticks that the database does not have."""
    asked = {record["ref"] for record in account.books.records if record["event"] == "asked"}
    for call, _ in account.runs("once"):
        if call.partition("/")[2] not in asked:
            yield Violation("a task ran that was not enqueued", call)
    for row in account.rows.of({"once", "tick"}).history:
        if row.state == State.FAILED and WORKER_LOST not in (row.error_type or ""):
            yield Violation("a task failed that should not", f"{row.kind} {row.key}: {row.error_type}", (row,))
    for row in account.rows.of({"once"}).live:
        yield Violation("a task is stuck in QUEUE_TASK", f"once, id {row.key}", (row,))


def leftovers(account):
    """Places, tickets, paths and parts of workflows that are there when all has ended and is forgotten."""
    for table, count in account.left.items():
        if count:
            yield Violation("something is left of tasks that have ended", f"{table}: {count} rows")
