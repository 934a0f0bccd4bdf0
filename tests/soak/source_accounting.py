"""The account of what sources feed: each committed change, event and row handled, in its order, and nothing else.

Pure functions of records and rows, as in accounting.py. What was committed is known from SOAK_SAID, which is written in
the same transactions, and is held against what the producers saw.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, pairwise

from support.rules import WORKER_LOST, Violation

from fbtasks.states import State
from soak.accounting import (
    SLACK,
    Ledgers,
    Row,
    Rows,
    Rules,
    asked,
    call_of,
    explains,
    hit,
    second_runs,
    sort_out,
    with_story,
)
from soak.sources import BOUNDED, HANDLERS, MAX_LENGTH, Said

GOES_ON = 5.0
"""Seconds after the end of a fault in which a process may go on with a run that another one has by then."""
RAISES = "Refusal"


def by_key(said):
    """Where there is one lane for each key."""
    return said.lane


def in_total(said):
    """Where there is one lane."""
    return "all"


LANES = {"by_key": by_key, "effect": by_key, "in_total": in_total, "heard": by_key, "heard_too": by_key}
"""Of which no two calls of a handler are made at once; None: at any time."""


@dataclass(frozen=True, slots=True)
class Sources:
    """What was said and what was done, by handler."""

    books: Ledgers
    rows: Rows
    rules: Rules
    said: Mapping[str, Said]
    ended: Mapping[str, Row]
    """The rows of the history by handler and ref: what has failed for good, or was cancelled."""

    @property
    def tables(self):
        return self.rows.sources

    def wanted(self, handler):
        """What *handler* is to be called for."""
        return (said for said in self.said.values() if said.what == HANDLERS[handler])

    def calls(self, handler, ref):
        return self.books.calls.get(call_of(handler, ref), ())


def account_sources(records, rows, rules):
    """All violations, and how many calls that were made again were explained by what."""
    books, fed = sort_out(records), rows.of(HANDLERS)
    said = {each.ref: each for each in rows.sources.said}
    ended = {call_of(row.kind, ref): row for row in fed.history for ref in row.refs}
    sources = Sources(books, fed, rules, said, ended)
    explained, violations = second_runs(books.calls, books, rules)
    checks = (commits, unfinished, unhandled, uncommitted, ends, order, overlaps, effects, inbox, crashes, places)
    violations.extend(chain.from_iterable(check(sources) for check in checks))
    return [with_story(violation, books) for violation in violations], explained


# What was committed


def commits(sources):
    """What the database says of commits against what the producers saw, and against the rows' own counts."""
    for record in sources.books.records:
        for ref in record.get("refs", ()):
            if record["event"] == "committed" and ref not in sources.said:
                yield Violation("a committed change is lost", ref, (record,))
            if record["event"] == "undone" and ref in sources.said:
                yield Violation("a change is there that was rolled back", ref, (record,))
    found = defaultdict(list)
    for said in sources.said.values():
        if said.what == "change":
            found[str(said.lane)].append(said.n)
    for key, count in sources.tables.counted.items():
        if sorted(found[key]) != list(range(1, count + 1)):
            yield Violation("a row was not changed as often as was committed", f"{key}: {count} times", (found[key],))


# Handled, and nothing else


def unfinished(sources):
    """What waits although nothing else is done."""
    if sources.tables.waiting:
        yield Violation("changes or polled rows are stuck", f"{sources.tables.waiting} of them")
    for row in sources.rows.live:
        yield Violation("a task is stuck in QUEUE_TASK", f"{row.kind}, id {row.key}", (row,))


def unhandled(sources):
    """What was committed, and no call of its handler has returned for."""
    for handler in HANDLERS:
        for said in sources.wanted(handler):
            call = call_of(handler, said.ref)
            returned = any(run.outcome == "returned" for run in sources.calls(handler, said.ref))
            if not returned and call not in sources.ended:
                yield Violation(f"a committed {said.what} was not handled", call, (said,))


def uncommitted(sources):
    """Calls and tasks for what was not committed."""
    known = {call_of(handler, said.ref) for handler in HANDLERS for said in sources.wanted(handler)}
    called = {call for call in sources.books.calls if call.partition("/")[0] in HANDLERS}
    for call in called - known:
        yield Violation("a handler was called for what was not committed", call)
    for row in sources.rows.both:
        for ref in row.refs:
            if call_of(row.kind, ref) not in known:
                yield Violation("the database holds a task for what was not committed", f"{row.kind}, {ref}", (row,))


def ends(sources):
    """Failures and cancellations without a reason."""
    for row in sources.rows.history:
        meant = (WORKER_LOST, RAISES) if row.kind == "polled" else (WORKER_LOST,)
        if row.state == State.FAILED and (row.error_type or "").rpartition(".")[2] not in meant:
            yield Violation("a task failed that should not", f"{row.kind} {row.key}: {row.error_type}", (row,))
        elif row.state == State.CANCELLED and not asked(sources.books, row.key, "cancel"):
            yield Violation("a task was cancelled without a request", f"{row.kind} {row.key}", (row,))
        elif row.state == State.SUCCEEDED:
            yield Violation("a success is kept that no program wants", f"{row.kind} {row.key}", (row,))


# In their order, and not at once


def order(sources):
    """Calls that began before one for what comes first had returned."""
    for handler, lane_of in LANES.items():
        in_turn = [said for said in sources.wanted(handler) if not out_of_turn(sources, handler, said.ref)]
        lines = by((said for said in in_turn if said.lane is not None), lambda said: said.lane, lambda said: said.n)
        if lane_of is in_total:  # also in the order in which one program has made them
            lines += by(in_turn, lambda said: said.producer, lambda said: said.ref)
        for line in lines:
            for former, said in pairwise(line):
                if not returned_first(sources.calls(handler, former.ref), sources.calls(handler, said.ref)):
                    what = f"{call_of(handler, said.ref)} before {call_of(handler, former.ref)}"
                    yield Violation("a call was made before its turn", what, (said, former))


def by(all_said, group, place):
    """What was said by *group*, each in the order of *place*."""
    found = defaultdict(list)
    for said in sorted(all_said, key=place):
        found[group(said)].append(said)
    return list(found.values())


def returned_first(formers, runs):
    """Whether a call of *formers* had returned when the first of *runs* began."""
    if not runs:
        return True
    first = min(run.start for run in runs)
    return any(run.outcome == "returned" and run.end is not None and run.end <= first for run in formers)


def out_of_turn(sources, handler, ref):
    """Whether a call was taken out of its order: it has failed or was cancelled, or an operator has put it back."""
    if call_of(handler, ref) in sources.ended:
        return True
    return any(asked(sources.books, run.id or "", "retry") for run in sources.calls(handler, ref))


def overlaps(sources):
    """Calls of one lane that were made at once, though nothing had happened to either."""
    for handler, lane_of in LANES.items():
        lanes = defaultdict(list)
        for said in sources.wanted(handler):
            lane = lane_of(said)
            if lane is not None:
                lanes[lane].extend(sources.calls(handler, said.ref))
        for runs in lanes.values():
            goes_on = []
            for run in sorted(runs, key=lambda run: run.start):
                goes_on = [former for former in goes_on if former.end is None or former.end > run.start]
                for former in goes_on:
                    if not parted(former, run, sources):
                        yield Violation("two calls of one lane at once", f"{former.name} of {former.ref} and {run.ref}")
                goes_on.append(run)


def parted(former, later, sources):
    """Whether *former* had been cut short, or one of the two was no longer what the queue knows of, when it began."""
    stalls = sources.books.stalls

    def parts(fault):
        if fault.start > later.start + SLACK:
            return False
        if former.end is None and hit(former, fault, stalls) and explains(former, fault, sources.rules):
            return True
        near = later.start <= fault.until + GOES_ON
        return near and any(explains(run, fault, sources.rules) for run in (former, later))

    ended = former.end is None and any(
        action["what"] == "cancel" and action["t"] <= later.start
        for action in sources.books.actions.get(former.id or "", ())
    )
    return ended or any(parts(fault) for fault in sources.books.faults)


# Effects, rows, crashes, places


def effects(sources):
    """Each effect of the transactional handler once, and none where it has failed or was cancelled."""
    found = Counter(sources.tables.effects)
    for said in sources.wanted("effect"):
        count = found.pop(said.ref, 0)
        due = 0 if call_of("effect", said.ref) in sources.ended else 1
        if count != due:
            what = f"{call_of('effect', said.ref)}: {count} instead of {due}"
            yield Violation("a change's effect is not there exactly once", what)
    for ref in found:
        yield Violation("an effect of what was not committed", call_of("effect", ref))


def inbox(sources):
    """What is written to polled rows."""
    for said in sources.wanted("polled"):
        status = sources.tables.inbox.get(said.ref)
        due = "E" if call_of("polled", said.ref) in sources.ended else "D"
        if status != due:
            what = f"{call_of('polled', said.ref)}: {status} instead of {due}"
            yield Violation("a polled row does not have its status", what)


def crashes(sources):
    """Tasks that were given up after fewer deaths than came over their calls."""
    stalls = sources.books.stalls
    for row in sources.rows.history:
        if WORKER_LOST not in (row.error_type or ""):
            continue
        runs = [run for ref in row.refs for run in sources.calls(row.kind, ref)]
        if not any(
            hit(run, fault, stalls) and explains(run, fault, sources.rules)
            for run in runs
            for fault in sources.books.faults
        ):
            yield Violation("a task was given up to which nothing had happened", f"{row.kind} {row.key}", (row,))


def places(sources):
    """Bounded queues, which are empty at the end, with places that did not come back."""
    for queue, free in sources.tables.places.items():
        if free != MAX_LENGTH:
            yield Violation("a bounded queue has not all of its places", f"{queue}: {free} of {MAX_LENGTH}")


def too_long(rows):
    """Bounded queues that hold more tasks than they may, at any moment."""
    for queue, count in Counter(row.queue for row in rows.live).items():
        if queue in BOUNDED and count > MAX_LENGTH:
            yield Violation("a bounded queue holds too many", f"{queue}: {count}")
