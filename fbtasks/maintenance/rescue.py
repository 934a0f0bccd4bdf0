"""Taking back what dead workers held: by their death, not by the age of what they do."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from fbtasks.call import Neighbour
from fbtasks.errors import ConflictError, DatabaseError, DatabaseUnavailable
from fbtasks.maintenance.watch import Suspect
from fbtasks.store import tasks, workers
from fbtasks.store.session import Session

logger = logging.getLogger(__name__)


def rescue(session: Session, suspects: Iterable[Suspect], *, grace: float, crash_limit: int) -> int:
    """Releases the tasks of those *suspects* that are dead. Gives how many tasks."""
    total = 0
    for worker, gone, credit in suspects:
        try:
            released, why = session.run(
                lambda t, w=worker.worker_id, g=gone, c=credit: workers.rescue(  # type: ignore[misc]
                    t, w, gone=g, grace=grace, credit=c, crash_limit=crash_limit
                ),
                point="rescue",
            )
        except ConflictError:  # it writes at this moment, or it was stopped while it did
            if session.run(lambda t, w=worker.worker_id, c=credit: workers.cut(t, w, grace=grace, credit=c)):  # type: ignore[misc]
                logger.warning("Worker %d on %s holds locks and is silent: its connection is cut.", *_who(worker))
            continue
        except DatabaseUnavailable:
            raise
        except DatabaseError as error:  # a row of the register that somebody wrote by hand
            logger.error("Worker %d on %s cannot be looked after: %s", *_who(worker), error)
            continue
        if why is not None:
            total += released
            logger.warning("Worker %d on %s is dead: %s. %d of its tasks run again.", *_who(worker), why, released)
    return total


def _who(worker: Neighbour) -> tuple[int, str]:
    return worker.worker_id, worker.host.partition("/")[0]


def release_orphans(session: Session) -> int:
    """Gives back rows that say they run and whose worker nobody knows. Gives how many."""
    released = session.run(tasks.release_orphans)
    if released:
        logger.warning("%d tasks were held by no worker that is known; they run again.", released)
    return released
