"""Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fbtasks.errors import ConfigurationError, DuplicateTask, EnqueueError, TaskDefinitionError
from fbtasks.feature import Asked, Deployed, Duty, Every, Feature, Problem, Told, Worker
from fbtasks.features.limits.definition import (
    QUEUE,
    LimitDefinition,
    LimitOptions,
    QueueLimits,
    define_limit,
    limit_name,
)
from fbtasks.features.limits.gates import Gates, Unknown
from fbtasks.features.limits.known import KnownLimits
from fbtasks.features.limits.options import BatchedTask, LimitedTask
from fbtasks.system import checks
from fbtasks.tasks.call import Batch, Call, Gate, OnDuplicate
from fbtasks.tasks.declare import refuse_unknown

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import Claim, Outcome, TaskRow
    from fbtasks.tasks.definition import Task


class Limits(Feature):
    """Limits: how many tasks run at once, how often they begin, and in which order; unique tasks and batches."""

    name = "limits"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"ENQUEUING", "FEED", "FEED_BATCHES", "HAS_ROOM", "LINE", "OWNER", "ROOM", "TOOK"})
    options = BatchedTask
    fed_options = LimitedTask

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        super().bind(app)
        self.definitions: dict[str, LimitDefinition] = {}
        """The app's limits by their names; tasks with an order and the like have some of their own."""
        self.gates: dict[str, Gates] = {}
        """What calls of tasks have to pass, by the names of the tasks that have limits."""
        self.known = KnownLimits(app, self.definitions)

    def define(self, name: str, options: Mapping[str, Any]) -> LimitDefinition:
        """Defines a limit of the app. Raises :class:`ConfigurationError` for options that cannot be."""
        limit_name("name", name)
        refuse_unknown("option of a limit", options, LimitOptions)
        return self.add(define_limit(name, LimitOptions(**options)))

    def define_queue(self, queue: str, options: Mapping[str, Any]) -> None:
        """Defines the limit of a queue of the app, which may be on nothing. Raises as :meth:`define` does."""
        self.add(define_limit(f"{QUEUE}{queue}", QueueLimits(**options)))
        self.known.queues.add(queue)

    def add(self, definition: LimitDefinition) -> LimitDefinition:
        """Makes *definition* one of the app's. Raises :class:`ConfigurationError` for another one of its name."""
        if self.definitions.setdefault(definition.name, definition) != definition:
            what = f"limit {definition.name!r}" if definition.queue is None else f"queue {definition.queue!r}"
            raise ConfigurationError(f"the {what} is defined twice in the app {self.app.name!r}: keep one of them.")
        return definition

    def declare(self, task: Task[..., Any]) -> bool:
        """Checks the limits of *task*, and defines those that are its own. Returns whether it has any."""
        options = task.options
        if not isinstance(options, LimitedTask):
            return False
        if (options.limits, options.ordered, options.unique, options.batching) == (None, None, None, None):
            return False
        if not task.is_called:
            _check_fed(options)
        gates = Gates(task, options)
        for limit in gates.own:
            self.add(limit)
        missing = next((name for name in gates.names if name not in self.definitions), None)
        if missing is not None:
            close = checks.did_you_mean(missing, self.definitions)
            raise TaskDefinitionError(
                f"the task {task.name!r} names the limit {missing!r}, which the app {self.app.name!r} does not "
                f"define.{close} Call app.limit({missing!r}, at_once=...) or (..., rate=...) before the task."
            )
        rates = [name for name in gates.names if self.definitions[name].period is not None]
        if len(rates) > 1:
            raise TaskDefinitionError(
                f"the task {task.name!r} has the rates {' and '.join(rates)}: a task has one rate at most."
            )
        self.gates |= dict.fromkeys(task.names, gates)
        return True

    def prepare(
        self,
        call: Call,
        task: Task[..., Any] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        step: int | None = None,
    ) -> Call:
        """Returns the call with the gates that it has to pass. Raises :class:`EnqueueError` when a key cannot be told.

        A key of a step that needs a result which is not known yet is told by the worker that claims the step.
        """
        if task is None:
            return call
        gates = self.gates[task.name]
        if step is not None and cast(LimitedTask, task.options).unique is not None:
            raise EnqueueError(
                f"the task {task.name!r} is unique, and a call that is merged into another one cannot be part of a "
                "workflow. Use another task for the step."
            )
        if not step:
            return call._replace(gates=gates.of(args, kwargs, call.queue))
        return call._replace(gates=gates.of_step((*(Unknown() for _ in range(step)), *args), kwargs, call.queue))

    def ready(self, batch: Batch | None) -> None:
        """Brings the limits of *batch* into the database, once for each limit and queue.

        Raises :class:`DuplicateTask` when two calls of it have one key and their task refuses that, and
        :class:`EnqueueError` when a limit is not in the database, and its user may not bring it in.
        """
        if self.known.queues:
            self.known.of_queues(self.known.queues if batch is None else {call.queue for call in batch})
        if batch is not None:
            _refuse_duplicates(batch.calls)
            batch.owners |= self.known.of(batch)

    def close(self) -> None:
        """Forgets which limits the database has."""
        self.known.forget()

    def forget(self) -> None:
        """Forgets which limits the former database had."""
        self.known.forget()

    def receives(self, task: Task[..., Any]) -> bool:
        """Returns whether it has limits."""
        return task.name in self.gates

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Puts it before its limits, when it was enqueued without them."""
        from fbtasks.features.limits.gating import gated

        return gated(self, session, claim)

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Forgets what nothing needs."""
        from fbtasks.features.limits.duty import Leftovers

        yield Every("looking for limits that nothing needs any more", 600.0, Leftovers().turn, at_start=False)

    def deploy(self, session: Session) -> Deployed:
        """Brings in what the app says of limits."""
        from fbtasks.features.limits.duty import sync_limits

        changed = sync_limits(session, self.app.name, self.definitions.values())
        return Deployed(changed, [f"Limit {each}." for each in changed])

    # For operators, whose modules no other process imports.

    def hold_names(self, session: Session, holds: Collection[Hold]) -> Mapping[Hold, str]:
        """Returns the names of limits."""
        from fbtasks.features.limits import store

        found = [hold for hold in holds if hold.stage >= 0]
        names = store.names(session, {hold.owner for hold in found})
        return {hold: names.get(hold.owner, "a limit that no app defines") for hold in found}

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns what shuts the limit that a held task waits for, and that of its queue."""
        from fbtasks.features.limits.operations import describe

        return describe(session, holds, queue)

    def describe_queues(self, session: Session, rows: dict[str, QueueRow]) -> None:
        """Puts what their limits let in into *rows*."""
        from fbtasks.features.limits.operations import describe_queues

        describe_queues(session, rows)

    def sheets(self) -> Sequence[Sheet]:
        """Returns the list of limits."""
        from fbtasks.features.limits.sheets import LimitSheet

        return [LimitSheet()]

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns the keys that are closed, and that tasks wait for limits that are not defined."""
        from fbtasks.features.limits.operations import find_problems

        return find_problems(session)


def _check_fed(options: LimitedTask) -> None:
    """Raises :class:`TaskDefinitionError` for limits of a task that is not called with arguments."""
    for word, value in (("ordered", options.ordered), ("unique", options.unique)):
        if value is not None:
            raise TaskDefinitionError(
                f"{word}= is for calls: what a source brings is ordered and merged by options of its own, such as "
                "order= and coalesce=. Leave it out."
            )
    keyed = next((name for name, key in (options.limits or {}).items() if key is not None), None)
    if keyed is not None:
        raise TaskDefinitionError(
            f"limits={{{keyed!r}: ...}} has a key, and a task that a source feeds has no arguments to count by: it "
            f"may stand for many changes. Give {{{keyed!r}: None}}, which counts all of them together."
        )


def _refuse_duplicates(calls: Sequence[Call | None]) -> None:
    seen: set[Gate] = set()
    for call in calls if len(calls) > 1 else ():
        for gate in () if call is None else call.gates:
            if gate.on_duplicate is OnDuplicate.RAISE and gate in seen and call is not None:
                raise DuplicateTask(
                    f"two of the {len(calls)} calls of {call.name!r} have one key, which its conflict='raise' refuses. "
                    "Nothing was enqueued. Leave one of them out."
                )
            seen.add(gate)
