"""The register of the living in the database: workers and consumers of messages, their leases, their rescue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal, NamedTuple
from urllib.parse import quote, unquote

from fbtasks.database.values import as_utc
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.register import hosts
from fbtasks.queue.shares import queue_in
from fbtasks.tasks.call import HeartbeatReply, Neighbour, WorkerRow

Kind = Literal["worker", "consumer"]
SHARE: Final = 7
"""The part of its lease for which a process may be silent whose connection is gone: it had time to come back."""


class Rescued(NamedTuple):
    """The result of a rescue."""

    released: int
    """How many tasks or messages were taken back from it."""
    why: str | None
    """Why it is dead; None: it lives."""


def register(
    transaction: Transaction,
    kind: Kind,
    *,
    host: str,
    pid: int,
    pid_start: int,
    lease: float,
    name: str | None = None,
    queues: Iterable[str] = (),
    pool: str | None = None,
    concurrency: int | None = None,
    version: str | None = None,
    tasks: Iterable[str] = (),
    delivery_limit: int | None = None,
    former: int | None = None,
    features: str = "",
) -> int:
    """Announces a process, with a lease of *lease* seconds. Returns its id.

    Tasks that are still claimed as *former*, which is not registered any more, are claimed by this worker then. What
    came back more than *delivery_limit* times is not delivered to this consumer (None: any number of times). *features*
    are the names of those of other distributions that it has, each between spaces: see :func:`features_and_app`.
    """
    identity = kind, host[: hosts.LONGEST], pid, pid_start, int(lease * 1000)
    worker = name and name[:255], ",".join(queues), pool, concurrency, version, "\n".join(tasks)
    return int(transaction.call("FBTASKS_WORKER.REGISTER", *identity, *worker, delivery_limit, former, features))


def task_names(session: Session, *, alive: bool = True) -> set[str]:
    """Returns the names of the tasks that workers know which are alive; with *alive* false all that are registered."""
    return {name for names in _of_workers(session, "worker_tasks", alive) for name in names.split("\n") if name}


def features(session: Session) -> set[str]:
    """Returns the names of the features of other distributions that workers have which are alive."""
    return {name for names in _of_workers(session, "worker_features", True) for name in names.split()}


def _of_workers(session: Session, query: str, alive: bool) -> Iterable[str]:
    """Returns what the workers have that are *alive*, or all of them."""
    for found, host, pid, start, leased in session.read(query):
        if found and (not alive or (leased and not hosts.is_known_gone(host, pid, start))):
            yield found


def namesakes(session: Session, name: str, process_id: int) -> list[tuple[str, int, int]]:
    """Returns the other workers of that name, unless they are to end: host, pid and start of the process of each."""
    return [(host, pid, start) for host, pid, start in session.read("namesakes", name[:255], process_id)]


def heartbeat(
    transaction: Transaction,
    kind: Kind,
    process_id: int,
    *,
    lease: float,
    draining: bool = False,
    conflicts: int = 0,
) -> HeartbeatReply:
    """Renews the lease of a process, for *lease* seconds.

    Neighbours in the answer: the processes of its kind that it looks after, which are those behind it in the order of
    their numbers: a few on its host, and a few on other hosts. A worker is also told what concerns its tasks, and adds
    its *conflicts* to the counters.
    """
    query, given = "heartbeat", [process_id, int(lease * 1000)]
    if kind == "worker":
        query, given = "worker_heartbeat", [*given, draining, process_id, conflicts]
    done, silence, oldest, packed, number, *rest = transaction.rows(query, *given)[0]
    version, generation, parked, stops, ends = rest or (0, 0, 0, 0, False)
    lines = bytes(packed).decode().split("\n")
    return HeartbeatReply(
        bool(done), done == 1, silence / 1000, oldest == process_id,
        tuple(_neighbour(line) for line in lines if line), number, version, generation, bool(parked), bool(stops),
        ends,
    )  # fmt: skip


def _neighbour(line: str) -> Neighbour:
    process_id, pid, pid_start, silence, lease, host = line.split(";", 5)
    return Neighbour(int(process_id), int(pid), int(pid_start), int(silence) / 1000, int(lease) / 1000, host)


def rescue(
    transaction: Transaction, process_id: int, *, gone: bool, awake: float, crash_limit: int = 0, share: int = SHARE
) -> Rescued:
    """Declares a process dead and gives back what it held, when it is dead.

    *gone* says that its process is known to have ended; else the database decides: by its lease, and from the
    *share*-th part of that on by its connection. Of its silence only the last *awake* seconds count, in which the
    caller was not held up itself. A task that was charged with *crash_limit* crashes is failed.
    """
    given = process_id, int(gone), share, int(awake * 1000), crash_limit
    return Rescued(*transaction.call("FBTASKS_WORKER.RESCUE", *given))


def kill_connection(transaction: Transaction, process_id: int, *, awake: float) -> bool:
    """Kills the connection of a process that the database takes for dead, so that its locks go. False when it lives."""
    return bool(transaction.call("FBTASKS_WORKER.KILL_CONNECTION", process_id, SHARE, int(awake * 1000)))


def serving(rows: Iterable[WorkerRow]) -> Counter[str]:
    """How many of the workers serve each queue. One that is dead serves none."""
    return Counter(queue for row in rows if row.alive for queue in row.queues)


def workers(session: Session) -> list[WorkerRow]:
    """All registered workers, the oldest first."""
    found = []
    for *facts, shares, started, age, left, draining, version, running, begun, busy, had in session.read("workers"):
        named = shares.split(",")
        times = as_utc(started), age / 1000, left / 1000
        latest = draining, version, running, begun, busy and busy / 1000
        row = WorkerRow(*(*facts, tuple(map(queue_in, named)), *times, *latest, tuple(named)))
        found.append(replace(row, app=_app_in(had), ended=hosts.is_known_gone(row.host, row.pid, row.pid_start)))
    return found


# The register has no column for the app of a worker: it stands among the names of its features, which have no '='.
_APP: Final = "app="
_ROOM: Final = 900
"""Characters of the register for the name of an app; the rest of its column is for features."""


def features_and_app(features: str, app: str) -> str:
    """Returns what a worker has, as it is registered: the names of its *features*, and that of its *app*."""
    while len(written := quote(app, safe="")) > _ROOM:
        app = app[:-1]
    return f"{features} {_APP}{written} "


def _app_in(features: str) -> str | None:
    found = (word.removeprefix(_APP) for word in features.split() if word.startswith(_APP))
    return next(map(unquote, found), None)
