"""Calls on their way into the queue: made from arguments and options, and written in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, TypeVar, Unpack

from fbtasks.config import Settings
from fbtasks.database import guests, settlement
from fbtasks.database.database import Database
from fbtasks.database.settlement import ENQUEUE, InDoubt
from fbtasks.errors import DuplicateTask, EnqueueError, EnqueueUncertain, UnknownQueueError
from fbtasks.features.limits.definition import LimitDefinition
from fbtasks.features.limits.known import KnownLimits
from fbtasks.features.queues.definition import QueueDefinition
from fbtasks.features.queues.room import QueueRoom
from fbtasks.features.sources.store import raising
from fbtasks.features.sources.store.silence import silence
from fbtasks.features.sources.subscription import event_name
from fbtasks.features.workflows import store as flows
from fbtasks.features.workflows.plan import Plan
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.queue import tasks
from fbtasks.system import checks
from fbtasks.tasks.call import Call, Enqueued, Gate, OnDuplicate, Owner
from fbtasks.tasks.declare import chosen
from fbtasks.tasks.options import CallOptions, CommonOptions, unknown_of_call
from fbtasks.tasks.serialize import Serializer
from fbtasks.tasks.times import expiry_of, moment_of, start_of

T = TypeVar("T")
_ASKED: Final = 10.0
"""Seconds for which a database that is away is asked what became of an enqueue."""
_PLAIN: Final = CommonOptions()


class Enqueuer:
    """Makes and writes the calls of one app."""

    def __init__(
        self,
        settings: Settings,
        serializer: Serializer,
        database: Database,
        queues: Mapping[str, QueueDefinition] | None = None,
        limits: Mapping[str, LimitDefinition] | None = None,
    ) -> None:
        """*queues*, *limits*: what the app says of its queues and of limits, which may grow."""
        self._settings = settings
        self._serializer = serializer
        self._database = database
        self._group_queues: set[str] = set()
        """Queues of which the database knows that tasks of theirs follow groups."""
        self._room = QueueRoom(settings.name, database, {} if queues is None else queues)
        self.limits = KnownLimits(settings.name, database, {} if limits is None else limits)

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
        given = chosen(CallOptions, options, unknown_of_call) if options else {}
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
        payload = self._serializer.dump_call(args, kwargs, task=name, serializer=serializer or task.serializer)
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

    def check_connection(self, connection: Any) -> None:
        """Raises :class:`EnqueueError` unless calls can be enqueued in the transaction of *connection*."""
        guests.transaction_of(connection, self._database)

    def silence(self, connection: Any, names: Sequence[str]) -> None:
        """Silences the transaction of *connection*: for the tasks *names*, or without any for all."""
        refuse_fork()
        silence(guests.transaction(connection, self._database), names)

    def enqueue(self, calls: Sequence[Call], using: Any = None) -> list[Enqueued]:
        """Writes calls in one transaction: a new one, or with *using* the caller's, and all of them or none.

        A call into a queue that is full waits, where the app says so of the queue. What became of a commit whose answer
        was lost is asked. Raises :class:`EnqueueUncertain` when the database is away for too long to be asked,
        :class:`QueueFull`, and :class:`DuplicateTask`.
        """
        if self._room.queues:
            self.check_limits({call.queue for call in calls})
        if len(calls) > 1 and calls[0].gates:
            _refuse_duplicates(calls)
        if using is not None:
            return self._enqueue_in(using, calls)
        return self._room.wait_for(lambda: self._enqueue(calls), calls)

    def check_limits(self, queues: Iterable[str]) -> None:
        """Brings in what the app says of *queues*, where the database knows nothing of them. Once for each."""
        self._room.check_known(queues)

    def _enqueue_in(self, using: Any, calls: Sequence[Call]) -> list[Enqueued]:
        refuse_fork()
        transaction = guests.transaction(using, self._database)
        limits = self.limits.of(calls)
        with guests.all_or_nothing(transaction) if len(calls) > 1 else nullcontext():
            return tasks.enqueue(transaction, calls, limits)[0]

    def _enqueue(self, calls: Sequence[Call]) -> list[Enqueued]:
        self._database.make_ready()
        limits = self.limits.of(calls)
        try:
            return settlement.once(self._use, lambda t: tasks.enqueue(t, calls, limits, finds=True), ENQUEUE, _ASKED)
        except InDoubt as doubt:
            raise _uncertain(calls, doubt) from doubt

    def enqueue_plan(self, plan: Plan[Call], using: Any = None) -> int:
        """Writes a workflow as :meth:`enqueue` writes calls. Returns the database's number of its node 0."""
        if using is not None:
            refuse_fork()
            transaction = guests.transaction(using, self._database)
            limits = self.prepare(plan)
            with guests.all_or_nothing(transaction):
                return flows.enqueue(transaction, plan, limits)[0]
        return self._room.wait_for(lambda: self._enqueue_plan(plan), (call for _, call in plan.steps()))

    def prepare(self, plan: Plan[Call]) -> Mapping[str, Owner]:
        """Has the database know what the app says of the queues, groups and limits of *plan*. Returns the limits.

        It does so in transactions of its own, once for each queue and limit.
        """
        if self._room.queues:
            self.check_limits({call.queue for _, call in plan.steps()})
        self._database.make_ready()
        self._note_groups(plan)
        return self.limits.of(call for _, call in plan.steps())

    def _enqueue_plan(self, plan: Plan[Call]) -> int:
        limits = self.prepare(plan)
        try:
            return settlement.once(self._use, lambda t: flows.enqueue(t, plan, limits), ENQUEUE, _ASKED)
        except InDoubt as doubt:
            first: int = doubt.written
            found = [Enqueued(first + node, duplicate=False) for node, _ in plan.steps()]
            calls = [call for _, call in plan.steps()]
            raise _uncertain(calls, InDoubt(str(doubt), doubt.number, found)) from doubt

    def _note_groups(self, plan: Plan[Call]) -> None:
        """Has workers look after the groups of *plan*, in their queues. Once for each queue."""
        new = set(plan.queues_of_groups().values()) - self._group_queues
        if new:
            self._database.make_ready()
            self._database.use(lambda session: flows.note_group_queues(session, new))
            self._group_queues |= new

    def close(self) -> None:
        """Closes the connection over which it hears of queues that have room again."""
        self._room.close()

    def raise_event(
        self, event: str, data: Any = None, *, using: Any = None, start: object = None, order_key: str | None = None
    ) -> None:
        """Raises *event* in a transaction of its own, or with *using* in the caller's."""
        event_name("event", event)
        if order_key is not None:
            _order_key(order_key, start)
        text = self._serializer.dump_event(data, event=event)
        moment = moment_of("start", start, self._settings.timezone)
        if using is not None:
            refuse_fork()
            raising.raise_event(guests.transaction(using, self._database), event, text, moment, order_key)
            return
        self._database.make_ready()
        try:
            settlement.once(
                self._use, lambda t: (None, raising.raise_event(t, event, text, moment, order_key)), ENQUEUE, _ASKED
            )
        except InDoubt as doubt:
            raise EnqueueUncertain(
                f"the connection was lost while the event {event!r} was committed, and whether it was raised cannot be "
                f"told: {doubt}"
            ) from doubt

    def _use(self, work: Callable[[Transaction], T], kind: bytes) -> T:
        point = "enqueue" if kind == ENQUEUE else ""
        return self._database.use(lambda session: session.run(work, kind, point))


def _refuse_duplicates(calls: Sequence[Call]) -> None:
    """Raises :class:`DuplicateTask` when two of *calls* have one key, and their task refuses that."""
    seen: set[Gate] = set()
    for call in calls:
        for gate in call.gates:
            if gate.on_duplicate is OnDuplicate.RAISE and gate in seen:
                raise DuplicateTask(
                    f"two of the {len(calls)} calls of {call.name!r} have one key, which its conflict='raise' refuses. "
                    "Nothing was enqueued. Leave one of them out."
                )
            seen.add(gate)


def _order_key(value: object, start: object) -> None:
    """Raises :class:`EnqueueError` for an order key that cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 255 or "\0" in value or not checks.is_utf8(value):
        raise EnqueueError(f"order_key {checks.shown(value)} must be a string of 1 to 255 characters, such as '7'.")
    if start is not None:
        raise EnqueueError(
            "give start or order_key: events of one key are handled in the order in which they are raised."
        )


def _uncertain(calls: Sequence[Call], doubt: InDoubt) -> EnqueueUncertain:
    given = next((call.task_id for call in calls if call.task_id), None)
    found: list[Enqueued] = doubt.written
    task_id = given or str(found[0].id)
    return EnqueueUncertain(
        f"the connection was lost while task {task_id} was committed, and whether it was enqueued cannot be told: "
        f"{doubt} Look for it with app.AsyncResult({task_id!r}), or enqueue it again under the same task_id.",
        task_id=task_id,
    )
