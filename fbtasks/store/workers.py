"""Workers as the database knows them: registration, heartbeat, lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fbtasks.call import HeartbeatReply, Neighbour, WorkerRow
from fbtasks.firebird.session import Session, Transaction
from fbtasks.store.values import as_utc


def register(
    transaction: Transaction,
    *,
    name: str,
    host: str,
    pid: int,
    pid_start: int,
    lease: float,
    queues: Iterable[str],
    pool: str,
    concurrency: int,
    version: str,
    tasks: Iterable[str],
    former: int = 0,
) -> int:
    """Announces a worker, with a lease of *lease* seconds. Gives its id.

    What is still claimed as *former*, who is not registered any more, is claimed by this worker then.
    """
    return int(
        transaction.value(
            "register",
            name[:255],
            host[:255],
            pid,
            pid_start,
            int(lease * 1000),
            ",".join(queues),
            pool,
            concurrency,
            version,
            "\n".join(tasks),
            former,
        )
    )


def heartbeat(
    transaction: Transaction,
    worker_id: int,
    *,
    lease: float,
    draining: bool,
    conflicts: int,
    share: int,
    beat: float,
) -> HeartbeatReply:
    """Renews the lease.

    Neighbours in the answer: the workers of this host, and those that will have been silent for the *share*-th part of
    their lease before the next heartbeat, in *beat* seconds.
    """
    done, silence, version, parked, stops, packed, number = transaction.rows(
        "heartbeat", worker_id, int(lease * 1000), draining, conflicts, share, int(beat * 1000)
    )[0]
    neighbours = tuple(neighbour(line) for line in bytes(packed).decode().split("\n") if line)
    return HeartbeatReply(bool(done), done == 1, silence / 1000, version, bool(parked), bool(stops), neighbours, number)


def neighbour(line: str) -> Neighbour:
    """One line of the neighbours that a heartbeat tells of."""
    worker_id, pid, pid_start, silence, lease, host = line.split(";", 5)
    return Neighbour(int(worker_id), int(pid), int(pid_start), int(silence) / 1000, int(lease) / 1000, host)


def rescue(
    transaction: Transaction, worker_id: int, *, gone: bool, share: int, credit: float = 0.0, crash_limit: int
) -> tuple[int, str | None, int | None]:
    """Buries a worker and gives its tasks back when it is dead.

    Gives how many tasks, why (None: it lives), and the id of the one that was failed by this (None: none was).

    *gone* says that its process is known to have ended; else the database decides by its lease, and from the *share*-th
    part of that on by its connection, without *credit* seconds of its silence.
    """
    released, why, failed = transaction.rows("rescue", worker_id, int(gone), share, int(credit * 1000), crash_limit)[0]
    return released, why, failed


def cut(transaction: Transaction, worker_id: int, *, share: int, credit: float = 0.0) -> bool:
    """Cuts the connection of a worker that the database takes for dead, so that its locks go. False when it lives."""
    return bool(transaction.value("cut", worker_id, share, int(credit * 1000)))


def unregister(transaction: Transaction, worker_id: int) -> None:
    """Forgets a worker."""
    transaction.execute("unregister", worker_id)


def serving(rows: Iterable[WorkerRow]) -> Counter[str]:
    """How many of the workers serve each queue. One whose lease is over serves none."""
    return Counter(queue for row in rows if row.lease_left > 0 for queue in row.queues)


def listing(session: Session) -> list[WorkerRow]:
    """All registered workers, the oldest first."""
    return [
        WorkerRow(
            id=row[0],
            name=row[1],
            host=row[2],
            pid=row[3],
            pool=row[4],
            concurrency=row[5],
            queues=tuple(row[6].split(",")),
            started=as_utc(row[7]),
            heartbeat_age=row[8] / 1000,
            lease_left=row[9] / 1000,
            draining=row[10],
            version=row[11],
            running=row[12],
            pid_start=row[13],
            busy_for=None if row[14] is None else row[14] / 1000,
        )
        for row in session.read("workers")
    ]
