"""The soak: ``python -m soak.soak --seconds 60 --seed 1``.

Starts producers, workers of each pool and an operator as real processes, does harm to them at random, lets the queue
drain, and accounts for every task. Exit code 0 when the account is right, 1 when it is not.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path

from support.proxy import Proxy

from soak.accounting import Rules, account, mistaken_outages, tracebacks
from soak.copies import restored_beneath
from soak.database import Database
from soak.faults import KINDS, Faults
from soak.ledger import Ledger, read_ledger
from soak.limit_accounting import account_limits
from soak.locks import Locks
from soak.monitor import Monitor
from soak.processes import POOLS, Fleet, adopt_orphans
from soak.report import complaints, summary, verdict
from soak.settings import Run
from soak.source_accounting import account_sources

LEASE = 3.0
"""Seconds; that of a worker is longer unless it is told."""
PRODUCERS = {
    "producers": ("single", "bulk", "transaction"),
    "source_producers": ("sources-1", "sources-2"),
    "limit_producers": ("limits1", "limits2"),
}


def options():
    parser = argparse.ArgumentParser(prog="soak", description="Faults at random, and an account of every task.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="which")
    parser.add_argument("--url", default=os.environ.get("FBTASKS_TEST_URL"), help="a database whose server to use")
    parser.add_argument("--keep", action="store_true", help="keep ledger, logs and database")
    parser.add_argument("--drain", type=float, default=90.0, help="seconds that the queue may take to drain")
    parser.add_argument("--pools", default=",".join(POOLS), help="pools of the workers, separated by commas")
    known = ", ".join(kind.replace(" ", "-") for kind in KINDS)
    parser.add_argument("--kinds", default=known, help=f"kinds of harm: {known}")
    chosen = parser.parse_args()
    chosen.kinds = frozenset(kind.strip().replace("-", " ") for kind in chosen.kinds.split(","))
    if unknown := chosen.kinds.difference(KINDS):
        parser.error(f"unknown kind {min(unknown)!r}. Known kinds: {known}")
    return chosen


class Soak:
    """One soak from its start to its verdict."""

    def __init__(
        self,
        seconds,
        seed,
        url,
        drain,
        pools,
        kinds,
    ):
        self.seconds = seconds
        self.seed = seed
        self.drain = drain
        self.folder = Path(tempfile.mkdtemp(prefix="fbtasks-soak-"))
        for name in ("ledger", "logs"):
            (self.folder / name).mkdir()
        self.database = Database(self.folder, url)
        self.proxy = None
        if not self.database.parsed.embedded:
            self.proxy = Proxy(self.database.parsed.host or "", self.database.parsed.port)
        self.run = Run(self.folder, time.monotonic() + seconds, kinds)
        self.ledger = Ledger(self.run.ledger, "supervisor")
        through = self.database.url if self.proxy is None else self.database.through(self.proxy.port)
        self.fleet = Fleet(self.run, self.ledger, through, ("--grace", "0.2", "--lease", f"{LEASE:g}"), pools)
        rng = random.Random(f"{seed}/faults")
        self.rng = random.Random(f"{seed}/supervisor")
        self.faults = Faults(
            self.fleet, self.ledger, rng, lease=LEASE, longest=seconds / 2, proxy=self.proxy,
            locks=Locks(self.database, self.ledger), kinds=kinds,
        )  # fmt: skip
        if self.proxy is not None:
            self.proxy._on_cut = self.faults.cut_happened
        self.monitor = Monitor(self.database, self.run, self.ledger)

    def begin(self):
        self.fleet.reaper.start()
        self.monitor.start()
        for pool in self.fleet.pools:
            self.fleet.start(pool)
        for module, names in PRODUCERS.items():
            for name in names:
                self.fleet.other(f"{module}-{name}", f"soak.{module}", name, str(self.seed))
        self.fleet.other("operator", "soak.operators", str(self.seed))

    def disturb(self):
        """The time of faults."""
        while self.run.going_on():
            self.faults.step()
            self.fleet.tend(delay=self.rng.choice((0.0, 0.0, self.rng.uniform(0.0, 3.0))))
            time.sleep(0.02)
        self.faults.stop()
        self.fleet.end_others(60.0)

    def finish(self):
        """Starts fresh workers until no task is left. Returns the seconds that this took."""
        self.fleet.terminate(60.0)
        self.database.stop_schedules()
        for pool in self.fleet.pools:
            self.fleet.start(pool)
        started = time.monotonic()
        while not self.monitor.empty_since(started) and time.monotonic() - started < self.drain:
            self.fleet.tend()
            time.sleep(0.1)
        took = time.monotonic() - started
        self.fleet.terminate(60.0)
        time.sleep(0.3)  # for the reaper to see what they leave behind
        return took

    def judge(self, took):
        rows = self.monitor.last()
        records = read_ledger(self.run.ledger)
        if rows is None:
            print(verdict(hung := [self.monitor.hung(records)]))
            return hung
        rules = Rules(lease=LEASE, embedded=self.proxy is None)
        violations, explained = account(records, rows, rules)
        of_sources, explained_calls = account_sources(records, rows, rules)
        violations.extend(of_sources)
        left = self.database.left()
        violations.extend(account_limits(records, rows, rules, left))
        for log in sorted((self.folder / "logs").glob("*.log")):
            text = log.read_text(errors="replace")
            violations.extend(chain(tracebacks(log.stem, text), mistaken_outages(log.stem, text)))
        faults = Counter(self.faults.done)
        for what, name in (("self", "tasks that took their process"), ("descriptors", "tasks that closed descriptors")):
            faults[name] = sum(r["event"] == "fault" and r["what"] == what for r in records)
        if "copy" in self.run.kinds:
            faults["copies restored"] += 1
            violations.extend(restored_beneath(self.database, self.fleet, self.proxy))
        if self.proxy is not None:
            faults["connections cut"] = self.proxy.cuts
        print()
        print(summary(records, rows, faults, explained + explained_calls, self.seconds + took))
        print(f"\nworkers         {self.fleet.restarts} started again")
        print(f"\nqueue           up to {self.monitor.deepest} live tasks, drained in {took:.1f} s")
        print(f"\nwarnings in the logs\n{complaints(self.folder / 'logs') or '  none'}")
        print()
        print(verdict(violations))
        return violations

    def close(self, *, keep):
        self.fleet.kill_all()
        if not self.monitor.stop():
            keep = True
            print("the database does not answer: its connections are left to the end of this process")
        if self.proxy is not None:
            self.proxy.close()
        if not self.monitor.is_alive():
            self.database.close(drop=not keep)
        self.ledger.close()
        if keep:
            print(f"kept: {self.folder}")
        else:
            shutil.rmtree(self.folder, ignore_errors=True)


def main():
    chosen = options()
    print(f"seed {chosen.seed}, {chosen.seconds:g} seconds", flush=True)
    adopt_orphans()
    soak = Soak(chosen.seconds, chosen.seed, chosen.url, chosen.drain, tuple(chosen.pools.split(",")), chosen.kinds)
    keep = True
    try:
        soak.begin()
        soak.disturb()
        violations = soak.judge(soak.finish())
        keep = chosen.keep or bool(violations)
    finally:
        soak.close(keep=keep)
    print(f"seed {chosen.seed}: {'FAILED' if violations else 'passed'}")
    return 1 if violations else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # a thread may still wait for a database that hangs
