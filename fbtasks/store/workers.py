"""Workers as the database knows them: registration, heartbeat, lease."""

from __future__ import annotations

from collections.abc import Iterable

from fbtasks.call import WorkerRow
from fbtasks.store.session import Session, Transaction
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
) -> int:
    """Announces a worker, with a lease of *lease* seconds. Gives its id."""
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
        )
    )


def heartbeat(transaction: Transaction, worker_id: int, *, lease: float, draining: bool, conflicts: int) -> bool:
    """Renews the lease. False when the worker is no longer registered: it was taken for dead."""
    return bool(transaction.value("heartbeat", worker_id, int(lease * 1000), draining, conflicts))


def unregister(transaction: Transaction, worker_id: int) -> None:
    """Forgets a worker."""
    transaction.execute("unregister", worker_id)


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
        )
        for row in session.read("workers")
    ]
