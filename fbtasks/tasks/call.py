"""The records that travel: a call on its way in, a claim on its way to an executor, an outcome on its way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, ClassVar, Final, NamedTuple

from fbtasks.errors import EnqueueError
from fbtasks.states import State
from fbtasks.system.checks import shown

When = datetime | timedelta | None
"""A moment in UTC, a span from the database's now, or neither."""
LONGEST_EXTRA: Final = 4000
"""Bytes that a feature may have to say about a call."""
MOST_TRIES: Final = 1_000_000_000
"""The most tries that the database counts; a call that allows that many allows them without limit."""


class OnDuplicate(Enum):
    """What to do with a call of a unique task when another one with its key waits."""

    MERGE = "merge"
    """It is enqueued, and merged by a claim."""
    FIND = "find"
    """In a transaction of its own the other one is looked for first; if it is found the call enqueues nothing."""
    RAISE = "raise"
    """The same in any transaction, and the call is refused."""


class Gate(NamedTuple):
    """A key of a limit that a task has to pass before it begins."""

    limit: str
    lane: int
    """A number for the key; 0: the one for all calls."""
    keeps: bool = False
    """Whether its place stays taken while the task waits for another try."""
    on_duplicate: OnDuplicate | None = None
    """Of a unique task."""


class Call(NamedTuple):
    """A call of a task with its serialised arguments, ready for the queue."""

    name: str
    queue: str
    content_type: str
    payload: bytes
    priority: int = 0
    start: When = None
    expires: When = None
    max_tries: int | None = None
    """Tries allowed; 0: without limit; None: as the task's own policy says."""
    task_id: str | None = None
    gates: tuple[Gate, ...] = ()
    extras: tuple[tuple[str, bytes], ...] = ()
    """What features have to say about it, by their names."""

    def saying(self, feature: str, data: bytes) -> Call:
        """Returns the call with what *feature* has to say of it. Raises :class:`EnqueueError` for what cannot be."""
        if not isinstance(data, bytes) or len(data) > LONGEST_EXTRA:
            raise EnqueueError(
                f"the feature {feature!r} says {shown(data)} about a call of {self.name!r:.80}: it must be bytes, at "
                f"most {LONGEST_EXTRA}."
            )
        return self._replace(extras=(*self.extras, (feature, data)))


class Batch:
    """Calls that are written together, in one transaction."""

    __slots__ = ("calls", "kept", "owners", "until_written")

    def __init__(self, calls: Sequence[Call | None]) -> None:
        self.calls = calls
        """The calls in their order; None in the place of what is no call: a group of a workflow."""
        self.until_written: ExitStack | None = None
        """What ends when it is written, or cannot be; there when it was refused once."""
        self.owners: dict[str, Owner] = {}
        """What holds some of them back, by the names that their gates have."""
        self.kept: dict[str, Any] = {}
        """What features keep between two attempts to write it, by their names."""

    def __iter__(self) -> Iterator[Call]:
        return (call for call in self.calls if call is not None)


class Owner(NamedTuple):
    """A limit as the database knows it."""

    id: int
    stage: int


class Enqueued(NamedTuple):
    """An enqueued call: the id of its task in the database, and whether the task was there before."""

    id: int
    """0 when a task of this ``task_id`` exists that the caller's transaction cannot see."""
    duplicate: bool


class Input(NamedTuple):
    """The result of a predecessor, as an argument of a workflow's step."""

    node: int
    """The task that has ended, or the group."""
    state: State | None = None
    """How the task has ended; None: the group has."""
    content_type: str = ""
    result: bytes = b""
    """Of a task that failed: the arguments of its exception."""
    error_type: str = ""
    message: str = ""
    members: tuple[Input, ...] = ()
    """Those of the group, in their order."""
    id: str = ""
    """Of a task that was run where its call was made: its id."""
    is_report: bool = False
    """Whether the step is told of a failure, and not given a result."""


class Claim(NamedTuple):
    """A task in a worker's hands, and the token (``claim_id``) that lets it record an outcome.

    A tuple, since some ten thousand a second are made, sent to a child process and read there.
    """

    id: int
    claim_id: int
    name: str = ""
    queue: str = ""
    priority: int = 0
    try_count: int = 0
    crash_count: int = 0
    max_tries: int | None = None
    start: int = 0
    """Not before; tenths of a millisecond since 1970 in UTC, which is as fine as the database counts."""
    expire_ms: int | None = None
    content_type: str = ""
    payload: bytes | None = b""
    """None while a large payload is still in its own table."""
    task_id: str | None = None
    suspect: int = 0
    """1 when a worker or a process died while it held this task, 2 when that happened again; 0 once it survived."""
    gated: bool = False
    """Whether it has passed the gates of limits."""
    wanted: bool = False
    """Whether its result is kept although its task ignores it: others follow it."""
    fed: bool = False
    """Whether it follows others and is given their results, which are still to be read into ``inputs``."""
    inputs: tuple[Input, ...] = ()
    members: tuple[Claim, ...] = ()
    """The claims that are run together, when this is a batch of them; all else is as of the first one."""
    has_extras: bool = False
    """Whether features of other distributions have something to say about it."""

    @property
    def label(self) -> str:
        """Number and name of its task, as logs have them."""
        return f"{self.id} ({self.name})"

    @property
    def parts(self) -> tuple[Claim, ...]:
        """The claims of a batch; of another claim this alone."""
        return self.members or (self,)

    def of(self, parts: Sequence[Claim]) -> Claim:
        """Returns the claim with these *parts*, of which there is one at least."""
        return batch_of(parts) if self.members else parts[0]


def batch_of(members: Sequence[Claim]) -> Claim:
    """The claim that stands for a batch of *members*. Its payload is None, and it is fed, while that holds for one."""
    here = all(each.payload is not None for each in members)
    fed = any(each.fed for each in members)
    return members[0]._replace(payload=b"" if here else None, fed=fed, inputs=(), members=tuple(members))


class Claims(list[Claim]):
    """The claims that one statement has made."""

    unseen = False
    """Whether it stopped early: at a suspect, or at as many expired tasks as one claim may cancel."""
    missed = False
    """Whether another worker was at what the sources of the queue have: there may be more in a moment."""
    let_in = False
    """Whether the last one was let in by an owner, a limit or a source: the order of the queue ends before it."""
    idles = False
    """Whether nothing is left in the queue but idle work, which was not asked for."""
    limited = False
    """Whether the limit of the queue had no room for more: the end of one that runs makes some."""


class Extra:
    """Data of a feature beside an outcome. The feature writes it (:meth:`Feature.before_finish`) with the outcome."""

    __slots__ = ()
    feature: ClassVar[str]
    """Its name."""
    own: bytes | None
    """The payload that the task has from now on; None: what it had."""
    tries: int | None
    """The tries that have ended of what that begins with, and it has not crashed; None: it begins as before."""

    def is_sound(self) -> bool:
        """Whether what it holds is what belongs in it, as :meth:`FeatureOutcome.is_sound`."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The task returned. With ``keep`` false nothing of it stays but the count."""

    content_type: str = ""
    result: bytes = b""
    keep: bool = True


@dataclass(frozen=True, slots=True)
class Failed:
    """The task raised and no retry is left."""

    error_type: str
    """Module and qualified name of the exception's class, such as ``builtins.ValueError``."""
    message: str
    traceback: str = ""
    args_payload: bytes | None = None
    """What its class is to be called with, in JSON; None when JSON cannot hold it."""
    extra: Extra | None = None
    """What has failed, and what goes on. None: all of the task has failed."""


class Reason(Enum):
    """Why a task goes back to its queue. What follows from it for the row of the task: FBTASKS_CORE.PUT_BACK."""

    RETRY = b"R"
    """It has ended a try, and is tried again."""
    SNOOZE = b"Z"
    """It asked to be run again later; no try is counted."""
    CONTINUE = b"A"
    """It has done a part; the extra has what is left."""
    RELEASE = b"L"
    """It goes back as if it had not been claimed."""
    CLOSED = b"W"
    """It was claimed outside its task's hours, and is scheduled for when they begin."""
    HELD = b"G"
    """It was enqueued without the limits that hold it; the message has them, as the database reads them."""
    PARKED = b"P"
    """The worker does not know a task of its name, or lacks a feature, as the message says. Another one may have it."""


@dataclass(frozen=True, slots=True)
class Requeue:
    """The task has not ended, and goes back to its queue."""

    reason: Reason
    delay: float = 0.0
    """Seconds until it may be claimed again."""
    message: str = ""
    error_type: str = ""
    extra: Extra | None = None
    """What of it goes back. None: all of it."""
    traceback: str = ""


RELEASED: Final = Requeue(Reason.RELEASE)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The task was cancelled while it ran, or gave up by itself."""

    message: str
    extra: Extra | None = None
    """What was not done. None: all of the task."""


class FeatureOutcome:
    """A feature has the task end in a way of its own, which it records. What a transactional task has done is kept."""

    __slots__ = ()
    feature: ClassVar[str]
    """Its name."""
    word: ClassVar[str]
    """How the worker counts it when it ends: ``replaced``."""

    def text(self) -> str:
        """Returns the text of the log between the task and the time that it took: ``is replaced``."""
        raise NotImplementedError

    def is_sound(self) -> bool:
        """Whether what it holds is what belongs in it: a child process says it, in which tasks run."""
        raise NotImplementedError

    def run_eagerly(self, app: Any) -> Any:
        """Does here and now what follows from it, in eager mode. Returns the result of the task."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process that ran the task died. ``charged``: the task alone can have done it, so a crash is counted."""

    message: str
    charged: bool
    limit: int = 3
    """Crashes after which the task is failed."""
    extra: Extra | None = None
    """What was not done before; or what has failed, and what goes on. None: all of the task."""


@dataclass(frozen=True, slots=True)
class Several:
    """A batch has ended, and each of its calls has an outcome of its own, in their order."""

    outcomes: tuple[Outcome, ...]


Outcome = Succeeded | Failed | Requeue | Cancelled | FeatureOutcome | Crashed | Several


def extra_of(outcome: Outcome) -> Extra | None:
    """Returns what a feature has to say beside *outcome*."""
    if type(outcome) is Succeeded:  # that of most
        return None
    return outcome.extra if isinstance(outcome, Failed | Requeue | Cancelled | Crashed) else None


def reason_of(outcome: Outcome) -> Reason | None:
    """Returns why the task goes back to its queue; None when it has ended."""
    return outcome.reason if isinstance(outcome, Requeue) else None


def crashes(claim: Claim, outcome: Crashed) -> int:
    """Returns how many crashes are counted with this one: of the task, or of what it goes on with."""
    before = claim.crash_count if outcome.extra is None or outcome.extra.tries is None else 0
    return before + outcome.charged


def is_last_crash(claim: Claim, outcome: Crashed) -> bool:
    """Returns whether the database fails the task by this crash."""
    return outcome.charged and crashes(claim, outcome) >= outcome.limit


class Finished(NamedTuple):
    """An outcome with the claim it belongs to and the time it took, in seconds."""

    claim: Claim
    outcome: Outcome
    elapsed: float = 0.0
    recorded: bool = False
    """Whether the outcome is in the database already: a transactional task records its own."""

    def parts(self) -> list[Finished]:
        """Returns one for each call of a batch; of another claim this one alone."""
        members = self.claim.members
        if not members:
            return [self]
        outcome = self.outcome
        if isinstance(outcome, Several):
            outcomes: Sequence[Outcome] = outcome.outcomes
        elif isinstance(outcome, Crashed) and len(members) > 1:  # any of them can have done it
            beside = f"{outcome.message}, in a batch with {len(members) - 1} others"
            outcomes = [replace(outcome, message=beside, charged=False)] * len(members)
        else:
            outcomes = [outcome] * len(members)
        return [self._replace(claim=each, outcome=end) for each, end in zip(members, outcomes, strict=True)]


class Said(NamedTuple):
    """A message of a running task to a feature, in its worker."""

    id: int
    claim_id: int
    feature: str
    data: bytes


@dataclass(frozen=True, slots=True)
class TaskRow:
    """A task as the database has it, live or finished."""

    id: int
    task_id: str | None
    name: str
    queue: str
    state: State
    priority: int
    raise_time: datetime
    start_time: datetime
    claim_time: datetime | None = None
    finish_time: datetime | None = None
    elapsed_ms: int | None = None
    try_count: int = 0
    max_tries: int | None = None
    crash_count: int = 0
    worker: str | None = None
    enqueued_by: str | None = None
    error_type: str | None = None
    error_msg: str | None = None
    waits_for: list[str] = field(default_factory=list)
    """Of a task that is held: the lane and the limits that it has still to pass. It waits for the first."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The outcome of a finished task as the database keeps it."""

    state: State
    try_count: int
    error_type: str | None = None
    error_msg: str | None = None
    traceback: str | None = None
    content_type: str | None = None
    result: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Stale:
    """An outcome that was not recorded: mostly it came too late, and the task's claim is another one by now."""

    task: int
    stands: int
    """The claim that the task has now; 0 when it has none or has ended.

    For a transaction that waits also the outcome's own claim: another transaction holds the task's row.
    """


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another process of the register, as a heartbeat tells of it."""

    process_id: int
    pid: int
    pid_start: int
    silence: float
    """Seconds since its last heartbeat, by the database's clock."""
    lease: float
    """Seconds for which it may be silent."""
    host: str


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The answer of the database to a heartbeat."""

    alive: bool
    """False when the process is no longer registered: it was declared dead."""
    renewed: bool
    """False when its lease was not renewed, since it is not alive or another transaction holds its row."""
    silence: float
    """Seconds since the process's heartbeat before this one, in the database's time."""
    oldest: bool
    """Whether it was registered before all others, if it is a consumer."""
    neighbours: tuple[Neighbour, ...]
    transaction: int
    """The number of the transaction that it was sent in."""
    schema_version: int = 0
    """This and what follows is told to workers alone."""
    generation: int = 0
    """The number of the packages in use."""
    parked: bool = False
    """Whether tasks are parked in any queue."""
    stops: bool = False
    """Whether tasks of this worker are to be stopped."""
    ends: bool = False
    """Whether an operator has told this worker to end, or it has begun to."""


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker as it registered itself."""

    id: int
    name: str
    host: str
    pid: int
    pool: str
    concurrency: int
    queues: tuple[str, ...]
    started: datetime
    heartbeat_age: float
    """Seconds since its last heartbeat, by the database's clock."""
    lease_left: float
    """Seconds left of its lease; negative when it is overdue."""
    draining: bool
    version: str
    running: int
    pid_start: int
    busy_for: float | None = None
    """Seconds since it claimed the oldest of the tasks that it runs. None when it runs none."""
    shares: tuple[str, ...] = ()
    """Its queues with their weights and its own limits, as ``-Q`` takes them."""
    app: str | None = None
    """The name of its app. None: it has not said that."""
    ended: bool = False
    """Whether its process, on this host, is known to have ended, whatever its lease says."""

    @property
    def alive(self) -> bool:
        """Whether nothing tells that it is dead."""
        return self.lease_left > 0 and not self.ended
