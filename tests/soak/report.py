"""The summary that a soak prints."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from support.rules import Violation

from soak.accounting import Ledgers, Rows, sort_out
from soak.ledger import Record
from soak.limited import LIMITS
from soak.sources import HANDLERS

STATES = {10: "succeeded", 11: "failed", 12: "cancelled"}
SHOWN = 5
"""Violations of one rule that are shown with their evidence."""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns as wide as they need be, numbers to the right."""
    lines = [list(head), *([str(value) for value in row] for row in rows)]
    widths = [max(len(line[n]) for line in lines) for n in range(len(head))]
    return "\n".join(
        "  ".join(v.ljust(w) if n == 0 else v.rjust(w) for n, (v, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    )


def summary(
    records: Sequence[Record], rows: Rows, faults: Counter[str], explained: Counter[str], seconds: float
) -> str:
    """The tables: tasks by kind, what was done to them, and why some ran more than once."""
    books = sort_out(records)
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for ref, attempt in books.attempts.items():
        kind = attempt["kind"]
        counts[kind]["attempted"] += 1
        for what, refs in (
            ("acknowledged", books.acks),
            ("rolled back", books.rolledback),
            ("refused", books.refused),
            ("uncertain", books.uncertain),
        ):
            counts[kind][what] += ref in refs
        runs = books.runs.get(ref, ())
        counts[kind]["runs"] += len(runs)
        counts[kind]["ran again"] += len(runs) > 1
    plain = rows.of_producers()
    for row in plain.history:
        counts[row.kind][STATES.get(row.state, str(row.state))] += 1
    for row in plain.live:
        counts[row.kind]["live"] += 1
    columns = [
        "attempted",
        "acknowledged",
        "rolled back",
        "refused",
        "uncertain",
        "runs",
        "ran again",
        "succeeded",
        "failed",
        "cancelled",
        "live",
    ]
    total: Counter[str] = sum(counts.values(), Counter())
    body = [[kind, *(counts[kind][c] for c in columns)] for kind in sorted(counts)]
    body.append(["all", *(total[c] for c in columns)])
    answers = Counter(
        f"{a['what']}: {a['answer'].partition(' ')[0]}" for actions in books.actions.values() for a in actions
    )
    parts = [
        table(["kind", *columns], body),
        "faults        " + counted(faults),
        "operator      " + counted(answers),
        "second runs   " + counted(explained),
        f"throughput    {total['runs'] / max(seconds, 0.1):.1f} runs a second over {seconds:.0f} s",
    ]
    return "\n\n".join(parts)


def of_handlers(records: Sequence[Record], rows: Rows) -> str:
    """The table of what sources feed: what was committed, and the calls for it."""
    books = sort_out(records)
    said = Counter(each.what for each in rows.sources.said)
    undone = sum(len(record["refs"]) for record in books.records if record["event"] == "undone")
    columns = ["committed", "called", "calls", "raised", "failed", "cancelled"]
    body = []
    for handler, what in HANDLERS.items():
        calls = [runs for call, runs in books.calls.items() if call.startswith(f"{handler}/")]
        states = Counter(row.state for row in rows.history if row.kind == handler for _ in row.refs)
        raised = sum(run.outcome == "raised" for runs in calls for run in runs)
        counts = (said[what], len(calls), sum(map(len, calls)), raised, states[11], states[12])
        body.append([f"{handler} ({what})", *counts])
    return table(["handler", *columns], body) + f"\n\nundone        {undone} changes, events and rows"


def of_limits(records: Sequence[Record], rows: Rows) -> str:
    """What was done of that which has limits, is merged, follows each other or ticks."""
    books = sort_out(records)
    events = Counter(record["event"] for record in books.records)
    kinds = Counter(call.partition("/")[0] for call in books.calls)
    at_most = ", ".join(f"{name} {most} of {LIMITS[name]}" for name, most in sorted(at_once(books).items()))
    merged = f"{events['granted']} calls in {kinds['once']} tasks"
    steps = ", ".join(f"{kinds[kind]} {kind}" for kind in ("step", "member", "body"))
    return (
        f"at once       {at_most}\nrate          {len(rows.limits.claims)} claims\nmerged        {merged}\n"
        f"workflows     {events['flow made']}, with {steps}\nticks         {len(rows.limits.ticks)}"
    )


def at_once(books: Ledgers) -> Counter[str]:
    """The most that had a place of each limit at once, by what they wrote down, whatever became of their workers."""
    moments: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for run in (run for runs in books.runs.values() for run in runs):
        for name, key in run.records[0].get("lanes", ()):
            moments[name, key] += [(run.start, 1), (run.end or run.start, -1)]
    most: Counter[str] = Counter()
    for (name, _), found in moments.items():
        inside = 0
        for _, change in sorted(found):
            inside += change
            most[name] = max(most[name], inside)
    return most


def counted(counter: Counter[str]) -> str:
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items()) if n) or "none"


def complaints(logs: Path) -> str:
    """What the logs warn of, with numbers and names taken out, most frequent first."""
    found: Counter[str] = Counter()
    for path in logs.glob("*.log"):
        for line in path.read_text(errors="replace").splitlines():
            for level in (" ERROR ", " WARNING "):
                head, mark, text = line.partition(level)
                if mark and head[:2] == "20":
                    found[level.strip() + " " + re.sub(r"\S*\d\S*|/\S+", "#", text)[:150]] += 1
    return "\n".join(f"{n:6}  {text}" for text, n in found.most_common(25))


def verdict(violations: Sequence[Violation]) -> str:
    """All violations by rule, a few of each with their evidence."""
    if not violations:
        return "Every task is accounted for."
    by_rule: dict[str, list[Violation]] = defaultdict(list)
    for violation in violations:
        by_rule[violation.rule].append(violation)
    parts = []
    for rule, found in by_rule.items():
        parts.append("\n".join(["", f"== {rule}: {len(found)}", *(str(v) for v in found[:SHOWN])]))
    parts.append(f"{len(violations)} violations: " + counted(Counter(v.rule for v in violations)))
    return "\n".join(parts)
