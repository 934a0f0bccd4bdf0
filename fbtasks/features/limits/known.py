"""The numbers of the limits that this process has found in the database, or brought in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from fbtasks.features.limits import store as admission
from fbtasks.features.limits.definition import QUEUE, LimitDefinition
from fbtasks.features.limits.duty import bring_in
from fbtasks.firebird.session import Session
from fbtasks.queue.firsts import check_known, write_first
from fbtasks.tasks.call import Call, Owner

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


class KnownLimits:
    """Limits by their names, each looked for once; what is not there yet is brought in."""

    def __init__(self, app: FBTasks, definitions: Mapping[str, LimitDefinition]) -> None:
        """*definitions*: what the app says of limits, which may grow."""
        self._app = app
        self._definitions = definitions
        self._limits: dict[str, Owner] = {}
        self._uses: set[tuple[str, str]] = set()
        self.queues: set[str] = set()
        """Queues with a limit of their own that was not looked for yet."""

    def forget(self) -> None:
        """Forgets what was found: the next connection may be to another database."""
        self.queues = {each.queue for each in self._definitions.values() if each.queue is not None}
        self._limits = {}
        self._uses = set()

    def of(self, calls: Iterable[Call]) -> Mapping[str, Owner]:
        """Returns the limits that *calls* have to pass. The queues of the calls are known to have them from here on.

        Raises :class:`EnqueueError` when a limit is not in the database, and its user may not bring it in.
        """
        for call in calls:
            for gate in call.gates:
                if (gate.limit, call.queue) not in self._uses:
                    self.note(gate.limit, call.queue)
        return self._limits

    def of_queues(self, queues: Collection[str]) -> None:
        """Looks for the limits of *queues*, once for each. Raises as :meth:`of` does."""
        for queue in self.queues.intersection(queues):
            left = self.queues
            self._app.database.make_ready()
            self._app.database.use(partial(self._find, name=f"{QUEUE}{queue}"))
            left.discard(queue)

    def note(self, name: str, queue: str) -> Owner:
        """Finds the limit *name*, and notes that tasks of *queue* have to pass it."""

        def work(session: Session) -> Owner:
            limit = limits.get(name) or self._find(session, name)
            assert limit is not None
            id = limit.id
            write_first(session, lambda t: t.call("FBTASKS_LIMITS_API.USE_LIMIT", id, queue))
            return limit

        self._app.database.make_ready()
        limits, uses = self._limits, self._uses
        limit = limits[name] = self._app.database.use(work)
        uses.add((name, queue))
        return limit

    def _find(self, session: Session, name: str) -> Owner | None:
        """Finds a limit, which is brought in if it is not there. None: it is that of a queue, and says nothing."""
        definition = self._definitions[name]
        found = admission.find(session, name)
        bring = partial(bring_in, session, self._app.name, definition, only_new=True)
        check_known(f"limit {name!r}", found and found[1], definition.hash, bring)
        found = found or admission.find(session, name)
        return found and found[0]
