"""The results of a workflow's nodes: the methods that those of tasks and of groups share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from fbtasks import timing as clock
from fbtasks.features.workflows import store as flows
from fbtasks.firebird.session import Session
from fbtasks.queue.notify.outcomes import polls

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

REVOKED_AT_ONCE: Final = 500
"""Tasks that are cancelled in one transaction."""


class NodeResult:
    """The result of a task, or of a group of tasks."""

    id: str
    app: Any  # the app; None for a group without tasks
    parent: NodeResult | None = None
    """In a workflow that was enqueued here: the result of what it follows."""

    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """Waits for the result, up to *timeout* seconds. Returns it."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Returns whether all of it has ended."""
        raise NotImplementedError

    def successful(self) -> bool:
        """Returns whether all of it has returned."""
        raise NotImplementedError

    def failed(self) -> bool:
        """Returns whether some of it has failed for good."""
        raise NotImplementedError

    def _parts(self) -> Sequence[NodeResult]:
        """Returns the results of what it is made of; none of a task."""
        return ()

    def cancel(self, *, terminate: bool = False) -> int:
        """Cancels all that has not ended of the workflow of which this is the end. Returns how many tasks.

        Those that run are as after :meth:`AsyncResult.revoke`.
        """
        tasks: list[NodeResult] = []
        seen: set[int] = set()
        todo: deque[NodeResult] = deque([self])
        while todo:  # the last ones first
            node = todo.popleft()
            if id(node) in seen:  # many members follow one
                continue
            seen.add(id(node))
            members = node._parts()
            todo += members
            if not members:
                tasks.append(node)
            if node.parent is not None:
                todo.append(node.parent)
        return revoke_all(self.app, tasks, terminate=terminate)

    def _find(self, session: Session) -> int | None:  # noqa: ARG002  # a task's own method asks it
        """Returns the database's number of the task; None when there is none, or it is not known."""
        return None


def revoke_all(app: FBTasks | None, wanted: Sequence[NodeResult], *, terminate: bool) -> int:
    """Cancels those tasks that have not ended. Returns how many, with those whose workers are asked to stop them."""
    if app is None:
        return 0
    with app.database.session() as session:
        ids = [number for each in wanted if (number := each._find(session)) is not None]
        return revoke_ids(session, ids, terminate=terminate)


def revoke_ids(session: Session, ids: Sequence[int], *, terminate: bool) -> int:
    """Cancels the tasks *ids* as :func:`revoke_all` does, in that order."""
    count = 0
    for at in range(0, len(ids), REVOKED_AT_ONCE):
        some, left, pauses = ids[at : at + REVOKED_AT_ONCE], True, polls()
        while left:
            revoke = partial(flows.revoke_many, ids=some, terminate=terminate)
            done, left = session.run(revoke, point="cancel")
            count += done
            if left:
                clock.sleep(pauses.next())
    return count
