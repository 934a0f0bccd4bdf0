"""What fbtasks sets out to reach, judged on the figures of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fbtasks.bench.figures import Figures

LIGHT = ("drain/threads/2", "drain/threads/10", "drain/asyncio/2", "drain/asyncio/10")
PROCESSES = ("drain/processes/2", "drain/processes/10")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One target, and what was found."""

    what: str
    wanted: str
    found: float | None
    """None when it was not measured."""
    unit: str
    reached: bool | None


def at_least(what: str, wanted: float, found: float | None, unit: str) -> Target:
    """A target that is reached with *wanted* or more."""
    reached = None if found is None else found >= wanted
    return Target(what=what, wanted=f"at least {wanted:g}", found=found, unit=unit, reached=reached)


def at_most(what: str, wanted: float, found: float | None, unit: str) -> Target:
    """A target that is reached with *wanted* or less."""
    reached = None if found is None else found <= wanted
    return Target(what=what, wanted=f"at most {wanted:g}", found=found, unit=unit, reached=reached)


def ratio(above: float | None, below: float | None) -> float | None:
    """*above* / *below*, or None when one of them is missing."""
    return None if above is None or not below else above / below


def own_targets(figures: Figures, *, embedded: bool) -> list[Target]:
    """The targets that need no other system beside fbtasks."""
    get = figures.get
    return [
        at_least(
            "drain, the faster of threads and asyncio, results ignored",
            0.5, ratio(best(figures, LIGHT), get("ceiling/claim+delete")), "x PSQL claim + delete",
        ),
        *(
            at_least(
                f"drain, {pool}, {number} at once, results kept", 0.6,
                ratio(get(f"drain/{pool}/{number}/kept"), get(f"drain/{pool}/{number}/ignored")), "x results ignored",
            )
            for pool in ("threads", "asyncio", "processes")
            for number in (2, 10)
            if get(f"drain/{pool}/{number}/kept") is not None
        ),
        at_least("enqueue, durable, one at a time", 0.9, get("enqueue/ratio"), "x bare INSERT + COMMIT"),
        at_least("enqueue in an open transaction", 4_000, get("enqueue/open"), "tasks/s"),
        _bulk(figures),
        at_most("latency, idle worker, 100/s, p50", 5, get("latency/100/p50"), "ms"),
        at_most("latency, idle worker, 100/s, p99", 20, get("latency/100/p99"), "ms"),
        at_most("claim in large tables, a snapshot held", 1.3, get("claim/snapshot/ratio"), "x in small tables"),
        at_most("4 workers: tasks run twice or never", 0, get("workers/4/numbered/twice"), "tasks"),
        *_several(figures, embedded=embedded),
        at_most("idle worker: processor", 1, get("idle/cpu"), "% of one core"),
        at_most("idle worker: statements", 40, get("idle/statements"), "a minute"),
        at_most("start of a worker to its first task", 1.0, get("start/worker"), "s"),
        at_most("start of fbtasks --help", 0.25, get("start/help"), "s"),
    ]  # fmt: skip


def best(figures: Figures, prefixes: Sequence[str]) -> float | None:
    """The fastest of some drains with results ignored."""
    return figures.best([f"{prefix}/ignored" for prefix in prefixes])


def _bulk(figures: Figures) -> Target:
    found = figures.get("enqueue/bulk")
    share = ratio(found, figures.get("ceiling/insert"))
    reached = None if found is None else found >= 20_000 or (share is not None and share >= 0.35)
    wanted = "at least 20,000, or 0.35 of the PSQL insert"
    if share is not None:
        wanted += f" (which is {share:.2f})"
    return Target(what="enqueue in bulk", wanted=wanted, found=found, unit="tasks/s", reached=reached)


def _several(figures: Figures, *, embedded: bool) -> list[Target]:
    conflicts = figures.get("workers/4/numbered/conflicts")
    if embedded:
        speed = ratio(figures.get("workers/4/numbered"), figures.get("workers/1/numbered"))
        return [
            at_most("4 workers: conflicts (embedded)", 0, conflicts, "% of statements"),
            at_least("4 workers: speed (embedded)", 0.5, speed, "x one worker"),
        ]
    speed = ratio(figures.get("workers/4/pause"), figures.get("workers/1/pause"))
    return [
        at_most("4 workers: conflicts (server)", 0.1, conflicts, "% of statements"),
        at_least("4 workers: speed for tasks of 5 ms (server)", 1.0, speed, "x one worker"),
    ]
