"""Makes calls from arguments and options, and enqueues them in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any, Final, TypeVar, Unpack

from fbtasks.config import Settings
from fbtasks.database import guests, settlement
from fbtasks.database.database import Database
from fbtasks.database.settlement import ENQUEUE, InDoubt
from fbtasks.errors import EnqueueError, EnqueueUncertain, UnknownQueueError
from fbtasks.feature import Features
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.queue import tasks
from fbtasks.system import checks
from fbtasks.tasks.call import Batch, Call, Enqueued
from fbtasks.tasks.options import CallOptions, CommonOptions, chosen_of_call, expiry_of, start_of
from fbtasks.tasks.serialize import Serializer

T = TypeVar("T")
_ASKED: Final = 10.0
"""Seconds for which a database that is away is asked what became of an enqueue."""
_PLAIN: Final = CommonOptions()


class _MadeReadyElsewhere(Exception):
    """The database was replaced since the features had made it ready: their numbers are those of the former one."""


class Enqueuer:
    """Makes and writes the calls of one app."""

    def __init__(self, settings: Settings, serializer: Serializer, database: Database, features: Features) -> None:
        self._settings = settings
        self._serializer = serializer
        self._database = database
        self._readying = features.which("ready")
        self._heeding = features.which("refused")

    def make_call(
        self,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task: CommonOptions = _PLAIN,
        **options: Unpack[CallOptions],
    ) -> Call:
        """Returns a call as the record that is enqueued; the options that it does not give are those of its *task*.

        Raises when it cannot be one; nothing is written here.
        """
        given = chosen_of_call(options) if options else {}
        if given.get("link") or given.get("link_error"):
            raise EnqueueError(
                f"link and link_error are for calls of a task that this program has, and {name!r} is called by its "
                "name, or by a schedule: have a task of this program enqueue the workflow."
            )
        timezone = self._settings.timezone
        start = start_of(given.get("countdown"), given.get("eta"), timezone) if given else None
        expires = given.get("expires", task.expires)
        serializer = given.get("serializer")
        if serializer is not None:
            self._serializer.check(serializer)
        payload = self._serializer.dump_call(
            args, kwargs, given.get("headers"), task=name, serializer=serializer or task.serializer
        )
        return Call(
            name=name,
            queue=self.check_queue(given.get("queue")) or task.queue or self._settings.default_queue,
            content_type=payload.content_type,
            payload=payload.data,
            priority=given.get("priority", task.priority),
            start=start,
            expires=None if expires is None else expiry_of(expires, start, timezone),
            max_tries=given.get("max_retries"),
            task_id=given.get("task_id"),
        )

    def check_queue(self, queue: str | None) -> str | None:
        """Returns *queue*. Raises :class:`ConfigurationError`, or :class:`UnknownQueueError` for one not declared."""
        if queue is None:
            return None
        checks.queue_name("queue", queue)
        declared = self._settings.queues
        if declared is not None and queue not in declared:
            known = ", ".join(sorted(declared))
            raise UnknownQueueError(f"the app {self._settings.name!r} declares no queue {queue!r}. Declared: {known}.")
        return queue

    def guest(self, connection: Any) -> guests.Guest:
        """Returns *connection* as it is kept for calls in its transaction. Raises :class:`EnqueueError`."""
        guest = guests.Guest(connection)
        guests.transaction(guest, self._database)
        return guest

    def enqueue(self, calls: Sequence[Call], using: guests.Guest | None = None) -> list[Enqueued]:
        """Writes calls in one transaction: a new one, or with *using*, a guest, the caller's, and all of them or none.

        What became of a commit whose answer was lost is asked. Raises :class:`EnqueueUncertain` when the database is
        away for too long to be asked, and what features raise: :class:`QueueFull`, :class:`DuplicateTask`.
        """
        batch = Batch(calls)

        def write(transaction: Transaction) -> tuple[list[Enqueued], int | None]:
            return tasks.enqueue(transaction, calls, batch.owners, finds=using is None)

        return self.write(batch, write, using)

    def write(
        self,
        batch: Batch,
        write: Callable[[Transaction], tuple[T, int | None]],
        using: guests.Guest | None = None,
        ids: Callable[[Any], Sequence[Enqueued]] = list,
        ready: Callable[[], None] = lambda: None,
    ) -> T:
        """Calls *write* to write *batch*, as :meth:`enqueue` does. Returns its result, and raises what that raises.

        *write* returns the number of the transaction as well, for ``settlement``. *ids* makes the calls' ids of what it
        returned. *ready* does before what the features do for *batch*.
        """
        if using is not None:
            refuse_fork()
            transaction = guests.transaction(using, self._database)
            ready()
            self.make_ready(batch)
            using.begin(transaction)
            with guests.all_or_nothing(transaction) if len(batch.calls) > 1 else nullcontext():
                return write(transaction)[0]
        self._database.make_ready()
        mark: bytes | None = None

        def write_there(transaction: Transaction) -> tuple[T, int | None]:
            if self._database.known.mark != mark:
                raise _MadeReadyElsewhere
            return write(transaction)

        try:
            while True:
                if self._database.known.mark != mark:
                    mark = self._database.known.mark
                    ready()
                    self.make_ready(batch)
                try:
                    return self.commit(write_there)
                except _MadeReadyElsewhere:
                    self._database.make_ready()
                except EnqueueError as error:
                    batch.until_written = batch.until_written or ExitStack()
                    if not any(feature.refused(error, batch) for feature in self._heeding):
                        raise
        except InDoubt as doubt:
            raise _uncertain(batch, doubt, ids(doubt.written)) from doubt
        finally:
            if batch.until_written is not None:
                batch.until_written.close()

    def make_ready(self, batch: Batch | None) -> None:
        """Brings what features need for *batch* into the database; None: for all that the app may write."""
        for feature in self._readying:
            feature.ready(batch)

    def commit(self, write: Callable[[Transaction], tuple[T, int | None]]) -> T:
        """Calls *write* in a transaction of its own, in a database that is ready. Returns its result.

        Raises :class:`InDoubt` when the answer of the commit was lost, and the database is away for too long.
        """
        return settlement.once(self._use, write, ENQUEUE, _ASKED)

    def _use(self, work: Callable[[Transaction], T], kind: bytes) -> T:
        point = "enqueue" if kind == ENQUEUE else ""
        return self._database.use(lambda session: session.run(work, kind, point), ready=True)


def _uncertain(calls: Iterable[Call], doubt: InDoubt, found: Sequence[Enqueued]) -> EnqueueUncertain:
    given = next((call.task_id for call in calls if call.task_id), None)
    task_id = given or str(found[0].id)
    return EnqueueUncertain(
        f"the connection was lost while task {task_id} was committed, and whether it was enqueued cannot be told: "
        f"{doubt} Look for it with app.AsyncResult({task_id!r}), or enqueue it again under the same task_id.",
        task_id=task_id,
    )
