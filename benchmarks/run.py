"""The benchmark: ``python -m benchmarks.run [--url URL | --venv .venv-bench] [--into FOLDER]``.

Measures all that the plan says, a round after the other, prints the page with the results, and writes results.json,
results.md and results.svg.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from firebird.driver import DatabaseError

from benchmarks import plan
from benchmarks.bench import FULL, QUICK, Bench, Member, Scale
from benchmarks.database import BenchDatabase, NotMeasured
from benchmarks.figures import ROUNDS_TO_DECIDE, Sample, ratios
from benchmarks.machine import description
from benchmarks.measures import MEASURES, Samples
from benchmarks.peers import Peers
from benchmarks.record import Record
from benchmarks.report import Result, as_json, page
from benchmarks.stopping import heed_signals
from benchmarks.targets import targets
from fbtasks import FBTasks, FBTasksError

Progress = Callable[[str], None]
LARGE = 1_000_000
"""Finished tasks beside which claims are measured when the user asks for large tables."""


def options(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a database with a queue, for fbtasks alone; else an embedded one, made for it")
    parser.add_argument("--venv", type=Path, help="the virtual environment with the other systems")
    parser.add_argument("--into", type=Path, help="the folder to write to; else the results are only printed")
    parser.add_argument("--rounds", type=int, help=f"how often everything is measured; {ROUNDS_TO_DECIDE}, quick: 1")
    parser.add_argument("--quick", action="store_true", help="a small run, to see that it works")
    parser.add_argument("--large", action="store_true", help="claims beside a million finished tasks")
    parser.add_argument("--only", default="", help="only figures whose names begin so, separated by commas")
    chosen = parser.parse_args(arguments)
    chosen.rounds = chosen.rounds or (1 if chosen.quick else ROUNDS_TO_DECIDE)
    if chosen.rounds < 1:
        parser.error("--rounds: at least one.")
    chosen.only = [name.strip() for name in chosen.only.split(",") if name.strip()]
    chosen.groups = groups_chosen(chosen.only, own=not chosen.url, peers=chosen.venv is not None)
    chosen.measures = measures_chosen(chosen.only, own=not chosen.url, filled=chosen.large or not chosen.url)
    if not chosen.groups and not chosen.measures:
        parser.error(f"--only {','.join(chosen.only)}: nothing has such a name. By themselves: {', '.join(MEASURES)}.")
    return chosen


def groups_chosen(names: list[str], *, own: bool, peers: bool) -> list[plan.Group]:
    """The groups of which something has a name that begins with one of *names*.

    Where the database is not the run's own, other databases are created beside it only when asked for.
    """
    alone = (*plan.ALONE, *plan.CHANGES) if own or names else plan.ALONE
    return plan.chosen(plan.COMPARED if own and peers else alone, names)


def measures_chosen(names: list[str], *, own: bool, filled: bool) -> dict[str, Callable[[Bench], Samples]]:
    """The measures whose names begin with one of *names*.

    Where the database is not the run's *own*, its tables are filled, and others are created beside it, only when asked
    for.
    """
    left_out = {key for key, included in (("claim", filled), ("capture", own)) if not included} - set(names)
    return {
        key: measure
        for key, measure in MEASURES.items()
        if (not names or any(key.startswith(name) for name in names)) and key not in left_out
    }


class Run:
    """One run: the rounds, and what was found."""

    def __init__(self, bench: Bench, record: Record, chosen: argparse.Namespace, progress: Progress) -> None:
        self._bench = bench
        self._record = record
        self._chosen = chosen
        self._progress = progress
        self._failed: set[str] = set()

    def rounds(self) -> None:
        """Measures everything once in every round."""
        begun = time.monotonic()
        for number in range(1, self._chosen.rounds + 1):
            self._record.round = number
            for group in self._chosen.groups:
                self._group(group)
            for key, measure in self._chosen.measures.items():
                self._try(key, key, measure(self._bench))
            left = (time.monotonic() - begun) / number * (self._chosen.rounds - number)
            self._progress(f"round {number} of {self._chosen.rounds} is done; left: about {left:.0f} s")

    def _group(self, group: plan.Group) -> None:
        """Measures the members one after the other, and the ratios of ours to each of the others."""
        found: dict[str, tuple[list[Sample], int]] = {}
        for member in group.order(self._record.round):
            samples: list[Sample] = []
            stretch = self._try(member.key, member.label, self._named(member, samples))
            if stretch is not None:
                found[member.key] = samples, stretch
        for other in group.beside:
            if group.ours.key in found and other.key in found:
                (ours, first), (theirs, second) = found[group.ours.key], found[other.key]
                self._record.derived(ratios(ours, theirs, other.key, other.label), first, second)

    def _named(self, member: Member, samples: list[Sample]) -> Iterator[Sample]:
        """The samples of *member* under its name, and as they are in *samples*."""
        for sample in member.measure(self._bench):
            samples.append(sample)
            yield sample.of(member.key, member.label)

    def _try(self, key: str, label: str, samples: Iterator[Sample]) -> int | None:
        """Measures. Returns the stretch of the record; None when it failed, now or before, which is noted."""
        if key in self._failed:
            return None
        self._progress(f"round {self._record.round} of {self._chosen.rounds}: {label}")
        gc.collect()
        try:
            return self._record.measured(samples)
        except (NotMeasured, FBTasksError, DatabaseError, subprocess.TimeoutExpired) as error:
            self._failed.add(key)
            self._record.note(f"{label}: not measured in round {self._record.round} and later: {error}")
            return None


def measure(chosen: argparse.Namespace, folder: Path, progress: Progress) -> Result:
    """Runs what was chosen, with its files in *folder*."""
    begun = time.monotonic()
    url = chosen.url or f"firebird://{folder}/bench.fdb"
    if not chosen.url:
        FBTasks("bench", url).migrate()
    record = Record(folder / "calibration")
    with BenchDatabase(url) as database, Peers(chosen.venv, folder / "peers") as peers:
        bench = Bench(database, peers, folder, scale_of(chosen))
        Run(bench, record, chosen, progress).rounds()
        figures = record.figures()
        return Result(
            machine=description(database), rounds=chosen.rounds, quick=chosen.quick, calibrations=record.calibrations,
            minutes=(time.monotonic() - begun) / 60, figures=figures, notes=record.notes,
            pairs=[(group.ours, other) for group in chosen.groups for other in group.beside],
            versions={system.key: peers.versions(system) for system in plan.others(chosen.groups)},
            verdicts=[(each, each.judge(figures.get(each.key))) for each in targets(embedded=database.embedded)],
        )  # fmt: skip


def scale_of(chosen: argparse.Namespace) -> Scale:
    """How much is measured."""
    scale = QUICK if chosen.quick else FULL
    return replace(scale, history=LARGE) if chosen.large else scale


def write(result: Result, into: Path, venv: Path | None) -> None:
    """Writes the results, and draws them where the virtual environment has what that needs."""
    into.mkdir(parents=True, exist_ok=True)
    (into / "results.json").write_text(json.dumps(as_json(result), indent=1) + "\n")
    (into / "results.md").write_text(page(result))
    if venv is not None:
        root = Path(__file__).resolve().parents[1]
        files = [str(into / name) for name in ("results.json", "results.svg")]
        command = [str(venv.absolute() / "bin" / "python"), "-m", "benchmarks.plot", *files]
        if subprocess.run(command, env={**os.environ, "PYTHONPATH": str(root)}).returncode:
            print("The plot was not drawn.", file=sys.stderr)
    print(f"Written to {into}.", file=sys.stderr)


def main() -> None:
    """The command line."""
    chosen = options()
    heed_signals()
    begun = time.monotonic()

    def progress(what: str) -> None:
        print(f"{time.monotonic() - begun:6.0f} s  {what}", file=sys.stderr, flush=True)

    folder = Path(tempfile.mkdtemp(prefix="fbtasks-bench-"))
    folder.chmod(0o711)  # a server may run as another user, who passes through
    try:
        result = measure(chosen, folder, progress)
    except FBTasksError as error:
        sys.exit(f"Error: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(page(result))
    if chosen.into is not None:
        write(result, chosen.into, chosen.venv)


if __name__ == "__main__":
    main()
