"""Taking back what the dead held: by their death, not by the age of what they do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from fbtasks.errors import ConflictError, StatementRefused
from fbtasks.firebird.session import Session
from fbtasks.maintenance.watch import Suspect
from fbtasks.store import tasks

logger = logging.getLogger(__name__)


def rescue(
    suspects: Iterable[Suspect],
    take_back: Callable[[Suspect], tuple[int, str | None]],
    cut: Callable[[Suspect], bool],
    *,
    kind: str,
    again: str,
) -> int:
    """Takes back what those *suspects* held that are dead. Gives how much.

    *take_back* gives how much one of them held, and why it is dead (None: it lives). *cut* ends the connection of one
    that is dead and still holds locks. *kind* and *again* are words for the log.
    """
    total = 0
    for suspect in suspects:
        who = kind, suspect.neighbour.worker_id, suspect.neighbour.host.partition("/")[0]
        try:
            released, why = take_back(suspect)
        except ConflictError:  # it writes at this moment, or it was stopped while it did
            if cut(suspect):
                logger.warning("%s %d on %s holds locks and is silent: its connection is cut.", *who)
            continue
        except StatementRefused as error:  # a row of the register that somebody wrote by hand
            logger.error("%s %d on %s cannot be looked after: %s", *who, error)
            continue
        if why is not None:
            total += released
            logger.warning("%s %d on %s is dead: %s. %d of its %s again.", *who, why, released, again)
    return total


def release_orphans(session: Session) -> int:
    """Gives back rows that say they run and whose worker nobody knows. Gives how many."""
    try:
        released = session.run(tasks.release_orphans)
    except ConflictError as error:
        logger.warning("Tasks that no known worker holds are looked for again in a minute: %s", error)
        return 0
    if released:
        logger.warning("%d tasks were held by no worker that is known; they run again.", released)
    return released
