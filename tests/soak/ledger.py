"""The ledger: what every process of a soak saw and did, kept outside the database.

One file for each process, appended to with one short ``write`` for each line, so that a SIGKILL cannot tear one. Times
are of CLOCK_MONOTONIC, which all processes of a machine share.

========== ================================================================================================
event      fields beside ``t``, ``pid`` and ``event``
========== ================================================================================================
attempt    ref, kind, how: a producer is about to enqueue
delayed    ref, seconds: the call that is about to be enqueued has this countdown
ack        ref, id: the enqueue has returned, or its transaction has been committed
rolledback ref: the transaction of the attempt was rolled back
refused    ref, error: the enqueue raised, and the error says that nothing was written
uncertain  ref, error: the enqueue raised, and the task may be there or not
start, end ref, run, worker: the task's function began, returned or raised (outcome)
           lanes: the places of limits that it has; got: the results that it was given
asked      ref, key: a unique task is about to be called; granted: the transaction of the call was committed
flow       ref, kind, size, fails: a workflow is about to be enqueued; flow made (ids), flow refused, flow uncertain
said       refs: what a transaction has written into the tables of sources
committed  refs: that transaction was committed; undone: it was not, or a part of it was not
fault      what, target, until: SIGKILL, SIGSTOP, SIGTERM, self, descriptors, cut, freeze, refuse, throttle, row lock,
           host lock; ``until`` is its end
worker     name, target, what: a worker was started, or ended (code, asked)
operator   number, what, id: an operator is about to cancel or retry
answer     number, answer: what came of it
continued  target: a stopped process goes on
note       text: what a process of the soak itself met
sample     violations: the invariants, looked at while everything ran
========== ================================================================================================
"""

import json
import os
import time
from typing import Any

Record = dict[str, Any]


class Ledger:
    """Appends records to a file of this process's own."""

    def __init__(self, folder, role):
        self.path = folder / f"{role}-{os.getpid()}.jsonl"
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, event, **fields):
        """Appends one record and gives it."""
        record = {"t": round(time.monotonic(), 6), "pid": os.getpid(), "event": event, **fields}
        os.write(self._fd, json.dumps(record, default=str).encode() + b"\n")
        return record

    def close(self):
        os.close(self._fd)


def read_ledger(folder):
    """All records of a folder, in the order of their times."""
    found = [record for path in sorted(folder.glob("*.jsonl")) for record in parse(path.read_text().splitlines())]
    return sorted(found, key=lambda record: record["t"])


def parse(lines):
    """The records in *lines*. Raises :class:`ValueError` for a torn one: the ledger must be whole."""
    return [json.loads(line) for line in lines]
