"""The results of a run: as a page for people, and for programs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.bench import Member
from benchmarks.calibration import CPU_LIMIT, WRITE_LIMIT, Calibration
from benchmarks.changes import HANDLED
from benchmarks.figures import ROUNDS_TO_DECIDE, Figure, Target, Verdict

SLOW = "!"
"""Behind a reading whose calibration was off."""
SHOWN = ("drain", "settled", "latency p50", "enqueue", "publish to ack", HANDLED)
"""What the table of ratios has."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """All that was found."""

    machine: dict[str, str]
    rounds: int
    quick: bool
    minutes: float
    calibrations: list[Calibration]
    figures: dict[str, Figure]
    pairs: list[tuple[Member, Member]]
    """What was measured beside what, ours first."""
    versions: dict[str, str]
    """What was measured of other systems, by their keys."""
    verdicts: list[tuple[Target, Verdict]]
    notes: list[str]


def as_json(result: Result) -> dict[str, Any]:
    """For JSON."""
    return {
        "machine": result.machine, "rounds": result.rounds, "quick": result.quick, "minutes": round(result.minutes, 1),
        "calibrations": [{"cpu": c.cpu, "write": c.write} for c in result.calibrations],
        "pairs": [{"ours": ours.key, "theirs": theirs.key} for ours, theirs in result.pairs],
        "figures": {
            figure.key: {
                "label": figure.label, "unit": figure.unit, "median": figure.value,
                "readings": [{"round": r.round, "value": r.value, "slow": r.slow} for r in figure.readings],
            }
            for figure in result.figures.values()
        },
        "targets": [
            {"what": target.what, "figure": target.key, "wanted": target.wanted, "reached": verdict.value}
            for target, verdict in result.verdicts
        ],
        "versions": result.versions,
        "notes": result.notes,
    }  # fmt: skip


def page(result: Result) -> str:
    """In Markdown, whose tables can be read as they are."""
    parts = [_head(result), _table(("", ""), result.machine.items())]
    if not result.quick:
        parts += ["![Drains side by side](results.svg)"] if result.versions else []
    measured = [(target, verdict) for target, verdict in result.verdicts if verdict is not Verdict.MISSING]
    if measured:
        link = "[What stands in the way](../how-to/benchmark.md#what-stands-in-the-way) of those that are not reached."
        parts += ["## Targets", _verdicts(measured, result.figures), link]
    compared = list(_ratios(result))
    if compared:
        head = ("fbtasks", "beside it", "ratio of", "median", "least - most", "each round", "versions")
        parts += ["## Side by side", "fbtasks divided by what was measured beside it.", _table(head, compared)]
    own = [figure for key, figure in result.figures.items() if not key.endswith("/ratio")]
    rows = [(f.label, amount(f.value), f.unit, each_round(f)) for f in own]
    parts += ["## All figures", _table(("figure", "median", "unit", "each round"), rows)]
    if result.notes:
        parts += ["## Not measured", "\n".join(f"- {' '.join(note.split())}" for note in result.notes)]
    return "\n\n".join(parts) + "\n"


def _head(result: Result) -> str:
    cpu, write = (
        f"{1000 * median(values):.3g} ({1000 * min(values):.3g} - {1000 * max(values):.3g}) ms"
        for values in ([c.cpu for c in result.calibrations], [c.write for c in result.calibrations])
    )
    quick = "\n\n**A quick run, which only shows that the benchmark works.**" if result.quick else ""
    return (
        "# Results of the benchmark\n\nWritten by `make bench`; [how each number is taken](../how-to/benchmark.md).\n"
        f"{result.rounds} round{'s' if result.rounds > 1 else ''} in {result.minutes:.0f} minutes. Figures are medians "
        f"of the rounds. A target is decided by {ROUNDS_TO_DECIDE} rounds that all agree.\n\n"
        f"Calibration beside each sample: processor {cpu}, synchronous write {write}. A reading with `{SLOW}` "
        f"was taken beside one that was off from the median by more than a factor of {CPU_LIMIT} or {WRITE_LIMIT}: "
        f"{_flagged(result)}.{quick}"
    )


def _flagged(result: Result) -> str:
    readings = [reading for figure in result.figures.values() for reading in figure.readings]
    return f"{sum(reading.slow for reading in readings)} of {len(readings)} readings"


def _verdicts(verdicts: Iterable[tuple[Target, Verdict]], figures: dict[str, Figure]) -> str:
    rows = []
    for target, verdict in verdicts:
        figure = figures[target.key]
        few = f": {figure.rounds} of {ROUNDS_TO_DECIDE} rounds" if figure.rounds < ROUNDS_TO_DECIDE else ""
        word = f"**{verdict.value}**" if verdict is Verdict.MISSED else f"{verdict.value}{few}"
        rows.append((target.what, target.wanted, amount(figure.value), spread(figure), word))
    return _table(("what", "wanted", "median", "least - most", "reached"), rows)


def _ratios(result: Result) -> Iterator[tuple[str, ...]]:
    for ours, theirs in result.pairs:
        versions = result.versions.get(theirs.key, "")
        for what in SHOWN:
            figure = result.figures.get(f"{theirs.key}/{what}/ratio")
            if figure is not None:
                yield (
                    ours.label, theirs.label, what, amount(figure.value), spread(figure), each_round(figure),
                    versions,
                )  # fmt: skip
                versions = ""  # once is enough


def spread(figure: Figure) -> str:
    """The least and the most."""
    return f"{amount(min(figure.values))} - {amount(max(figure.values))}"


def each_round(figure: Figure) -> str:
    """All readings, those in slow stretches marked."""
    return ", ".join(f"{amount(reading.value)}{SLOW if reading.slow else ''}" for reading in figure.readings)


def amount(value: float) -> str:
    """A figure with as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [tuple(head), *(tuple(row) for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(head))]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in cells]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)
