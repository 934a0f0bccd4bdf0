"""The door for features: what one may say, and how an app finds those that it has.

The core calls the members of :class:`Feature` and knows none of them by name. A feature is a folder with the same files
as any other: ``__init__`` (its :class:`Feature`), ``definition`` (what users write), ``schema`` (its SQL), ``store``
(the calls of that), ``operations`` (what operators do), ``duty`` (what a worker does now and then), ``commands``,
``sheets`` (what dashboards show).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError
from fbtasks.system import checks

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.embedded.hostlock import HostLock
    from fbtasks.firebird.session import Session, Transaction
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.sheet import Sheet
    from fbtasks.tasks.call import Batch, Call, Claim, Finished, Outcome, Said, Stale, TaskRow
    from fbtasks.tasks.definition import Task
    from fbtasks.worker.options import WorkerOptions


class Worker(Protocol):
    """The interface of a worker for features."""

    turn: HostLock
    """To be held around a transaction that changes rows which many workers change."""
    turned_at: float
    """The monotonic time at which its loop last began to wait for something to do; ``math.inf``: it has not begun."""

    @property
    def queues(self) -> Sequence[str]:
        """The queues that it claims from."""

    @property
    def id(self) -> int:
        """Its number in the register; another one after it was taken for dead."""

    def wanted(self) -> int:
        """How many more tasks it can use soon."""

    def events_arrive(self) -> bool:
        """Whether events of the database are known to arrive; else they are made up for by looks."""

    def watch(self, name: str, ended: Callable[[], None]) -> None:
        """Calls *ended* whenever outcomes of the task *name* have been recorded."""

    def watch_outcomes(self, recorded: Callable[[Sequence[Finished]], None]) -> None:
        """Calls *recorded* with the outcomes of each transaction that has recorded some, in the worker's thread.

        Those that came too late, and were dropped, are not among them. What *recorded* takes, each outcome costs: it
        adds up in memory, and a duty writes it.
        """

    def watch_claims(self, took: Callable[[float], None]) -> None:
        """Calls *took* with the seconds of each transaction that has claimed, or found nothing, in the worker's thread.

        With those of its wait for other workers of the machine, and for what it has recorded besides.
        """

    @property
    def options(self) -> WorkerOptions:
        """How it works: its name, its pool, and what the command line says to features."""

    def busy(self) -> list[Claim]:
        """The claims that run; for any thread. None is told of the pool ``solo``."""

    def is_serving(self) -> bool:
        """Whether it claims tasks: it has begun, the database is there, and it is not to end. For any thread."""

    def look(self, task: int, feature: str) -> int | None:
        """Has the process that runs *task* say its stack to *feature* (:meth:`Duty.told`), as text in UTF-8.

        Returns the pid of the process, whether it will answer or not; None: *task* has not begun here.
        """


class Duty:
    """Something that a worker does now and then, between claims. Used by the worker's thread alone, unless *apart*.

    When another transaction is in its way, the database refuses it, or it raises anything else, the log has that once
    a minute, and it is tried again after a while: nothing else waits. Each worker takes turns of its own, as does
    ``fbtasks.testing.drain``. What it logs is shown from INFO on, unless the worker is told otherwise.
    """

    name: str
    """What it does, as the log has it: ``looking for schedules that are to tick``."""
    events: Collection[str] = ()
    """Names of database events that it hears of, such as ``fbtasks:parked``."""
    while_draining = False
    """Whether it is done by a worker that is to end, too."""
    apart = False
    """Whether :meth:`do` may wait for something else than the database, such as an answer of another server.

    Then each turn is taken in a thread of its own, with a session of its own, and the worker goes on meanwhile. All
    other members are called as ever, :meth:`told` and :meth:`heard` during a turn too. In its turn it asks the worker
    for nothing. A worker that is to end waits for the turn until its grace is over, and then ends without it.
    """

    def begin(self, session: Session) -> None:
        """The worker starts, and has brought in what the code says (:meth:`Feature.deploy`)."""

    def heard(self) -> None:
        """One of its events has come; from any thread."""

    def told(self, said: Said) -> None:
        """A task that runs here has *said* something to the feature."""

    def due(self) -> float:
        """The monotonic time of its next turn; ``math.inf``: not until something tells it. Asked often."""
        raise NotImplementedError

    def do(self, session: Session) -> bool:
        """Takes a turn, in short transactions. Returns whether there may be something to claim now."""
        raise NotImplementedError

    def pending(self) -> bool:
        """Whether a worker that is to leave when nothing is left to do has to wait for it, though it is not due."""
        return False

    def finish(self, session: Session) -> None:
        """The worker ends: does what is to be done at once. Not called while a turn is under way that is apart."""


class Every(Duty):
    """A part of upkeep: done at the start, then every so many seconds, and after one second while there is more."""

    def __init__(
        self,
        name: str,
        seconds: float,
        part: Callable[[Session], bool],
        *,
        feeds: bool = False,
        apart: bool = False,
        at_start: bool = True,
    ) -> None:
        """*part* returns whether there is more. *feeds*: it makes tasks, so a worker does not leave before its end.

        *apart*: it may wait for something else than the database (:attr:`Duty.apart`). *at_start* False: the first turn
        comes at a random moment of the first so many seconds. Then the start of a worker costs nothing for it, and
        workers that live for a short time take as many turns a day as one that runs all the time.
        """
        self.name = name
        self.apart = apart
        self._seconds = seconds
        self._part = part
        self._makes_tasks = feeds
        self._more = False
        self._next = 0.0 if at_start else clock.within(seconds)

    def due(self) -> float:
        """When its time comes."""
        return self._next

    def do(self, session: Session) -> bool:
        """Does it, and sees when there is more to do."""
        self._more = False
        self._next = clock.monotonic() + min(self._seconds, 60.0)  # unless it comes to its end
        self._more = self._part(session)
        self._next = clock.monotonic() + (1.0 if self._more else self._seconds)
        return self._makes_tasks and self._more

    def pending(self) -> bool:
        """Whether some is left."""
        return self._makes_tasks and self._more


class Deployed(NamedTuple):
    """The definitions that a feature has brought into the database."""

    changes: Sequence[Any] = ()
    """For ``fbtasks migrate --json``."""
    lines: Sequence[str] = ()
    """A sentence for each, for people and for the worker's log."""
    summary: str = ""
    """What ``fbtasks migrate`` says instead of these lines, behind its first sentence."""
    problems: Mapping[str, str] = {}
    """What is wrong with definitions, by their names: these are left as they are."""


class Told(NamedTuple):
    """A feature's facts about one task. Sentences have no full stop, and may end with ``: fbtasks COMMAND``."""

    why: Sequence[str] = ()
    """What keeps it from running."""
    of_queue: Sequence[str] = ()
    """What keeps all tasks of its queue from running."""
    facts: Mapping[str, tuple[str, Any]] = {}
    """What else there is to say: by the names in JSON the text for people and the value."""


class Asked(NamedTuple):
    """The question of ``fbtasks health`` and ``fbtasks doctor``."""

    max_age: float
    """Seconds for which a task may be ready."""
    max_lag: float
    """Seconds for which what is to become a task may wait."""
    now: datetime
    queues: Mapping[str, QueueRow]
    """Queues by their names, not counted; a queue may be missing."""
    waiting: set[str]
    """Queues that a worker is to serve. A feature adds those for which something waits that could be a task."""


class Problem(NamedTuple):
    """Something that is wrong: a line of ``fbtasks health`` and of ``fbtasks doctor``, which end with 1 then."""

    problem: str
    """A sentence without a full stop, which may end with ``(fbtasks COMMAND)``: the remedy."""
    what: str = ""
    """What has it: ``limit sms``."""
    is_wrong: bool = True
    """False: health tells it on the standard error, and all is healthy; doctor has it as a warning."""
    id: str = ""
    """Its kind, as ``fbtasks doctor --json`` has it; empty: the name of the feature."""
    private: str = ""
    """The part of *problem* that may have data of users, which dashboards may not show."""

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}" if self.what else self.problem


class Feature:
    """A feature of an app, beside the core. One object serves one app. Every member may be left out."""

    name: ClassVar[str]
    """Small letters, digits and ``_``; a database has one feature of a name."""
    schema: str | PathLike[str] | None = None
    """A folder with ``migrations/NNNN_NAME.sql`` and, for hooks, ``packages/*.sql``: its version is the last number.

    ``grants.sql``: what the roles of a server may do with its package and its tables.
    """
    hooks: Collection[str] = frozenset()
    """The hooks (``queue/schema/hooks.sql``) that its package answers, each with the parameters declared there.

    A hook must not raise: what the core was doing is undone then.
    """
    options: type | None = None
    """What tasks may say: a TypedDict, or a dataclass derived from :class:`fbtasks.tasks.options.CommonOptions`.

    An option of a TypedDict that is left out is None.
    """
    fed_options: type | None = None
    """The options of tasks that a source feeds, and no program calls."""
    commands: Mapping[str, Mapping[str, str]] = {}
    """Lines of ``--help`` by the places of commands, by their modules.

    ``{"": {"audit": "Read."}, "pkg.commands": {"audit list": "All."}}``: in its module a command is an attribute of its
    last word; a group that is not there yet has the module "". Those of features of this
    distribution are in ``fbtasks/features/commands.py``, so that ``--help`` imports none of them.
    """
    brings_in: ClassVar[str] = ""
    """What :meth:`deploy` brings in, as ``fbtasks migrate --json`` calls it; empty: the name of the feature."""
    app: FBTasks

    def bind(self, app: FBTasks) -> None:
        """Makes it the feature of *app*, once."""
        self.app = app

    # In a process that declares tasks and calls them.

    def declare(self, task: Task[..., Any]) -> bool:
        """``@app.task`` makes *task*: checks its options. Returns whether :meth:`prepare` is to see its calls.

        It may give the task an ``invocation`` of its own (:class:`fbtasks.run.invocation.Invocation`).

        Raises :class:`TaskDefinitionError` for options that cannot be.
        """
        return True

    def prepare(
        self,
        call: Call,
        task: Task[..., Any] | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        step: int | None = None,
    ) -> Call:
        """Returns *call*, which is about to be written, with what the feature has to say of it. No database is asked.

        *task* is None for a call by a name that this process does not know. Calls by SQL, and those of programs that
        lack the feature, are not prepared: they have no extra. *step*: the call is a step of a workflow,
        of whose arguments the first so many are not known yet.

        A task of which a feature says something (:meth:`fbtasks.tasks.call.Call.saying`) is run by workers that have
        the feature, and is parked by others; the feature's hooks are called for these tasks alone.
        """
        return call

    def ready(self, batch: Batch | None) -> None:
        """Brings what *batch* needs into the database before it is written, in transactions of its own.

        None: the app connects, and may write anything.
        """

    def refused(self, error: Exception, batch: Batch) -> bool:
        """The database refused *batch*, in a transaction of its own. Returns whether to try it again, now.

        It may wait before it says so, and may raise an error that users understand better.
        """
        return False

    def close(self) -> None:
        """The app closes its connections."""

    def forget(self) -> None:
        """The app is connected to another database from here on: nothing that was found in the former one holds.

        Called in any thread. What another one is about to note of the former database must not be found later: begin
        with a new record, instead of emptying the old one.
        """

    # In a worker.

    def runs(self) -> None:
        """This process is about to run tasks of the app: a child process of a worker, or one that runs them itself."""

    def receives(self, task: Task[..., Any]) -> bool:
        """Whether :meth:`received` sees claims of *task* that nothing held back. It sees those with inputs anyway."""
        return False

    def received(self, session: Session, claim: Claim) -> Claim | Outcome:
        """Returns what becomes of *claim* before it is handed out: it with more in it, or its outcome without a run.

        The features are asked in turn, from the last to the first.
        """
        return claim

    def before_record(self, items: Sequence[Finished]) -> None:
        """Brings what its own outcomes need into the database, in transactions of its own, before they are recorded."""

    def record(
        self,
        transaction: Transaction,
        worker_id: int,
        slot: int,
        items: Sequence[Finished],
    ) -> list[Stale]:
        """Records outcomes of its own. Returns the stale ones, as ``queue.tasks.finish``.

        Raises :class:`StatementRefused` for one that cannot be recorded: its task is failed then.
        """
        return []

    def before_finish(
        self,
        transaction: Transaction,
        slot: int,
        items: Sequence[Finished],
    ) -> list[Stale]:
        """Writes what it has to say beside outcomes: of those of *items* that have an extra of its own.

        Asked when one has, before they are recorded, in the same transaction. Of a stale claim it changes nothing. With
        a *slot* it returns those whose row another transaction holds, which are not recorded then; else it raises
        :class:`ConflictError`.
        """
        return []

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Returns the duties of *worker* for the feature."""
        return ()

    # For deployment and operators.

    def deploy(self, session: Session) -> Deployed:
        """Brings what the code of the app says into the database. Returns what changed.

        Raises :class:`ConfigurationError` for what cannot be.
        """
        return Deployed()

    def begin(self, session: Session) -> Iterable[str]:
        """A worker starts: brings in what the code says, as far as a worker may. Returns lines for its log."""
        return self.deploy(session).lines

    def hold_names(self, session: Session, holds: Collection[Hold]) -> Mapping[Hold, str]:
        """Returns what people are told of those *holds* that are the feature's: ``sms``, ``lane of import_order``."""
        return {}

    def describe(
        self,
        session: Session,
        task: TaskRow,
        holds: Sequence[Hold],
        queue: QueueRow,
    ) -> Told:
        """Returns what there is to say of one task. One that is held waits for the first of *holds*.

        A fact of one task is one of all: None where it does not apply.
        """
        return Told()

    def describe_queues(self, session: Session, rows: dict[str, QueueRow]) -> None:
        """Puts what it knows of queues into *rows*, by their names, and adds queues that have none.

        A fact of one queue is one of all: None where it does not apply.
        """

    def beside(self, session: Session) -> Iterable[str]:
        """Returns what else the database holds that others than workers run, for ``fbtasks inspect`` and ``health``.

        Sentences with a full stop; none where it holds nothing.
        """
        return ()

    def sheets(self) -> Sequence[Sheet]:
        """Returns what it has beside tasks, for dashboards: lists with details and actions."""
        return ()

    def problems(self, session: Session, asked: Asked) -> Iterable[Problem]:
        """Returns what is wrong, for ``fbtasks health`` and ``doctor``: by EXISTS and MIN, never by a scan."""
        return ()

    def __repr__(self) -> str:
        return f"<feature {self.name}>"


class Features:
    """The features of an app, in the order in which they are asked."""

    def __init__(self, features: Iterable[Feature], app: FBTasks) -> None:
        self._features = {each.name: each for each in features}
        self._app = app.name
        for each in self:
            _check_commands(each)
            each.bind(app)

    def __getitem__(self, name: str) -> Any:
        """The feature of that name. Raises :class:`ConfigurationError` when the app has none."""
        if name not in self._features:
            raise ConfigurationError(
                f"the app {self._app!r} was made without the feature {name!r}: add it to features=[...]."
            )
        return self._features[name]

    def __iter__(self) -> Iterator[Feature]:
        return iter(self._features.values())

    def __contains__(self, name: object) -> bool:
        return name in self._features

    @property
    def names(self) -> str:
        """Their names, each between spaces."""
        return "".join(f" {name} " for name in self._features)

    def deploy(self, session: Session) -> dict[str, Deployed]:
        """Brings what the code of the app says into the database. Returns what each has done, by what it brings in."""
        return {each.brings_in or each.name: each.deploy(session) for each in self.which("deploy")}

    def which(self, member: str) -> tuple[Any, ...]:
        """Returns those that have a *member* of their own."""
        base = getattr(Feature, member)
        return tuple(each for each in self if getattr(type(each), member) is not base)


def _check_commands(feature: Feature) -> None:
    """Raises :class:`ConfigurationError` for ``commands`` of another shape than :attr:`Feature.commands` has."""
    found: Any = feature.commands
    tables: list[tuple[Any, Any]] = [*found.items()] if isinstance(found, Mapping) else [("", None)]
    for module, lines in tables:
        words = [module, *lines, *lines.values()] if isinstance(lines, Mapping) else [None]
        if not all(isinstance(each, str) for each in words) or not all(place.split() for place in lines):
            raise ConfigurationError(
                f"the feature {feature.name!r} has commands with {checks.shown(found)}, which must be lines of --help "
                'by the places of commands, by their modules: {"": {"audit": "Read."}, "pkg.commands": '
                '{"audit list": "All."}}.'
            )
