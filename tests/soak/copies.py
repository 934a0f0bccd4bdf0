"""A backup is put in the place of the database beneath a worker that waits: the copy's tasks are not run by it."""

import os
import time
from contextlib import suppress

from support.rules import Violation

from soak.ledger import read_ledger

REFS = tuple(f"copy-{number}" for number in range(5))
PATIENCE = 30.0
WATCHED = 8.0
"""Seconds for which the worker is watched with the copy beneath it: some heartbeats, and a lease."""


def runs(fleet):
    """How often the tasks of the copy have begun."""
    return sum(r["event"] == "start" and r["ref"] in REFS for r in read_ledger(fleet.run.ledger))


def restored_beneath(database, fleet, proxy):
    """Backs up waiting tasks, has a worker run them, restores the backup beneath it, and watches what it does."""
    backup = f"{database.parsed.database}.fbk"
    database.enqueue(REFS)
    database.back_up(backup)
    worker = fleet.start(fleet.pools[0])
    if not _until(lambda: runs(fleet) == len(REFS), PATIENCE) or not _until(lambda: database.waiting() == 0, PATIENCE):
        fleet.terminate(60.0)
        return [Violation("the worker does not run what is to be copied", f"{runs(fleet)} of {len(REFS)}")]
    time.sleep(1.0)  # its outcomes are written
    if proxy is not None:
        proxy.refuse(True)
        proxy.cut()
    database.restore(backup)
    if proxy is not None:
        proxy.refuse(False)
    fleet.ledger.write("note", text="a restored copy is in the place of the database")
    _until(lambda: worker.process.poll() is not None or runs(fleet) > len(REFS), WATCHED)
    again, waits = runs(fleet) - len(REFS), database.waiting()
    worker.fate = worker.fate or "replaced"
    fleet.terminate(60.0)
    with suppress(OSError):
        os.remove(backup)
    if again or waits != len(REFS):
        log = tuple(worker.log.read_text(errors="replace").splitlines()[-15:])
        what = f"{again} runs, and {waits} of {len(REFS)} tasks still wait"
        return [Violation("a worker runs the tasks of a restored copy", what, log)]
    return []


def _until(condition, seconds):
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            return False
        time.sleep(0.05)
    return True
