"""The summary that a soak prints."""

import re
from collections import Counter, defaultdict
from itertools import chain

from fbtasks.states import State
from soak.accounting import sort_out
from soak.sources import HANDLERS

SHOWN = 5
"""Violations of one rule that are shown with their evidence."""


def summary(records, rows, faults, explained, seconds):
    """Tasks by kind, what was done to them, and why some ran more than once."""
    books = sort_out(records)
    counts = defaultdict(Counter)
    known = {
        "acknowledged": books.acks, "rolled back": books.rolledback, "refused": books.refused,
        "uncertain": books.uncertain,
    }  # fmt: skip
    for ref, attempt in books.attempts.items():
        counts[attempt["kind"]]["attempted"] += 1
        counts[attempt["kind"]].update({what: ref in refs for what, refs in known.items()})
    for runs in chain(books.runs.values(), books.calls.values()):
        counts[runs[0].kind].update({"runs": len(runs), "ran again": len(runs) > 1})
    for row in rows.both:
        counts[row.kind][State(row.state).name.lower()] += len(row.refs) or 1
    said = Counter(each.what for each in rows.sources.said)
    for handler, what in HANDLERS.items():
        counts[handler]["committed"] = said[what]
    counts["once"]["granted"] = sum(record["event"] == "granted" for record in books.records)
    total = sum(counts.values(), Counter())
    answers = Counter(
        f"{a['what']}: {a['answer'].partition(' ')[0]}" for actions in books.actions.values() for a in actions
    )
    parts = [
        "\n".join(f"{kind:16}{counted(found)}" for kind, found in [*sorted(counts.items()), ("all", total)]),
        "faults          " + counted(faults),
        "operator        " + counted(answers),
        "second runs     " + counted(explained),
        f"throughput      {total['runs'] / max(seconds, 0.1):.1f} runs a second over {seconds:.0f} s",
    ]
    return "\n\n".join(parts)


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
