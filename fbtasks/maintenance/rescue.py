"""Taking back what dead workers held."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fbtasks.call import WorkerRow
from fbtasks.store import tasks, workers
from fbtasks.store.session import Session

logger = logging.getLogger(__name__)


def rescue(session: Session, is_gone: Callable[[WorkerRow], bool]) -> int:
    """Releases the tasks of workers that are gone, or whose lease ran out by the database's clock."""
    total = 0
    for worker in workers.listing(session):
        if worker.lease_left > 0 and not is_gone(worker):
            continue

        def bury(transaction: object, worker_id: int = worker.id) -> int:
            released = tasks.release_worker(transaction, worker_id, crashed=True)  # type: ignore[arg-type]
            workers.unregister(transaction, worker_id)  # type: ignore[arg-type]
            return released

        released = session.run(bury)
        total += released
        why = "its lease ran out" if worker.lease_left <= 0 else "its process is gone"
        logger.warning("Worker %s is dead (%s); %d of its tasks run again.", worker.name, why, released)
    return total
