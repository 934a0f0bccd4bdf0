"""The summary that a soak prints."""

import re
from collections import Counter, defaultdict

from fbtasks.states import State
from soak.accounting import sort_out
from soak.limited import LIMITS
from soak.sources import HANDLERS

SHOWN = 5
"""Violations of one rule that are shown with their evidence."""


def table(rows):
    """A line for each name and its counts; what is counted to 0 is left out."""
    return "\n".join(f"{name:22}{counted(counts)}" for name, counts in rows)


def summary(records, rows, faults, explained, seconds):
    """Tasks by kind, what was done to them, and why some ran more than once."""
    books = sort_out(records)
    counts = defaultdict(Counter)
    known = {
        "acknowledged": books.acks, "rolled back": books.rolledback, "refused": books.refused,
        "uncertain": books.uncertain,
    }  # fmt: skip
    for ref, attempt in books.attempts.items():
        runs = len(books.runs.get(ref, ()))
        counts[attempt["kind"]].update(attempted=1, runs=runs, **{"ran again": runs > 1})
        counts[attempt["kind"]].update({what: ref in refs for what, refs in known.items()})
    for row in rows.of_producers().both:
        counts[row.kind][State(row.state).name.lower()] += 1
    total = sum(counts.values(), Counter())
    answers = Counter(
        f"{a['what']}: {a['answer'].partition(' ')[0]}" for actions in books.actions.values() for a in actions
    )
    parts = [
        table([*sorted(counts.items()), ("all", total)]),
        "faults        " + counted(faults),
        "operator      " + counted(answers),
        "second runs   " + counted(explained),
        f"throughput    {total['runs'] / max(seconds, 0.1):.1f} runs a second over {seconds:.0f} s",
    ]
    return "\n\n".join(parts)


def of_handlers(records, rows):
    """The table of what sources feed: what was committed, and the calls for it."""
    books = sort_out(records)
    said = Counter(each.what for each in rows.sources.said)
    undone = sum(len(record["refs"]) for record in books.records if record["event"] == "undone")
    body = []
    for handler, what in HANDLERS.items():
        calls = [runs for call, runs in books.calls.items() if call.startswith(f"{handler}/")]
        states = Counter(row.state for row in rows.history if row.kind == handler for _ in row.refs)
        raised = sum(run.outcome == "raised" for runs in calls for run in runs)
        counts = Counter(called=len(calls), calls=sum(map(len, calls)), committed=said[what], raised=raised)
        body.append((f"{handler} ({what})", counts + Counter(failed=states[11], cancelled=states[12])))
    return table(body) + f"\n\nundone        {undone} changes, events and rows"


def of_limits(records, rows):
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


def at_once(books):
    """The most that had a place of each limit at once, by what they wrote down, whatever became of their workers."""
    moments = defaultdict(list)
    for run in (run for runs in books.runs.values() for run in runs):
        for name, key in run.records[0].get("lanes", ()):
            moments[name, key] += [(run.start, 1), (run.end or run.start, -1)]
    most = Counter()
    for (name, _), found in moments.items():
        inside = 0
        for _, change in sorted(found):
            inside += change
            most[name] = max(most[name], inside)
    return most


def counted(counter):
    return ", ".join(f"{what} {n}" for what, n in sorted(counter.items()) if n) or "none"


def complaints(logs):
    """What the logs warn of, with numbers and names taken out, most frequent first."""
    found = Counter()
    for path in logs.glob("*.log"):
        for line in path.read_text(errors="replace").splitlines():
            for level in (" ERROR ", " WARNING "):
                head, mark, text = line.partition(level)
                if mark and head[:2] == "20":
                    found[level.strip() + " " + re.sub(r"\S*\d\S*|/\S+", "#", text)[:150]] += 1
    return "\n".join(f"{n:6}  {text}" for text, n in found.most_common(25))


def verdict(violations):
    """All violations by rule, a few of each with their evidence."""
    if not violations:
        return "Every task is accounted for."
    by_rule = defaultdict(list)
    for violation in violations:
        by_rule[violation.rule].append(violation)
    parts = []
    for rule, found in by_rule.items():
        parts.append("\n".join(["", f"== {rule}: {len(found)}", *(str(v) for v in found[:SHOWN])]))
    parts.append(f"{len(violations)} violations: " + counted(Counter(v.rule for v in violations)))
    return "\n".join(parts)
