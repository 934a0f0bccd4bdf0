"""What a dashboard shows of the past: counters, backlogs, tries and failures, which workers write, and the audit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Final, NamedTuple

from fbtasks import timing as clock
from fbtasks.database import values
from fbtasks.database.values import as_naive_utc, as_utc
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import results
from fbtasks.queue.register import processes
from fbtasks.queue.results import QueueRow
from fbtasks.sheet import Spark
from fbtasks.system.showing import CUT, sendable, shorten
from fbtasks.tasks.call import WorkerRow

BOUNDS: Final = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 120.0, 600.0)
"""Seconds: what ends each bucket of a histogram but the last one."""
_COUNTED: Final = 100_000
"""Tasks of each state that are counted in a queue."""
_MOST: Final = 10**15 - 1
_WHAT: Final = 1_000
"""Characters of what an action of the audit was done to."""
_LONGEST: Final = 3600.0
"""Seconds up to which the last one is taken to go."""
BUCKETS: Final = len(BOUNDS) + 1
SPANS: Final = ((10, 60, 90), (60, 600, 4 * 3600), (600, 3600, 2 * 86_400))
"""How rows are joined: those of so many seconds to rows of so many, and after how many seconds."""
LOOKED_THROUGH: Final = 10_000
"""Failures among which those of one kind are looked for."""
_POINTS: Final = 1500
"""The most that a series has."""
_STEP: Final = 180
"""Seconds of a bar of the last hour."""
_IDS: Final = 50
_VERSIONS: Final = 200
"""Changes of the workers' version that are read of a queue: the newest."""
_VARIES: Final = re.compile(
    r"""
    (?<![\w=])(?P<name>'[^\W\d]\w*'|"[^\W\d]\w*")(?!\w)
    |(?<!\w)(?P<quoted>'[^']*'|"[^"]*")(?!\w)
    |\b\w+://[^\s'"<>()]+
    |(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+
    |(?<![\w/.])(?:/|[A-Za-z]:\\)[\w.@%+~-]+(?:[/\\][\w.@%+~-]+)+
    |\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b
    |\b(?=[A-Za-z]*\d)(?:0x[0-9a-fA-F]+|[0-9a-fA-F]{8,}|[0-9A-Za-z]{16,})\b
    |\d+(?:[.,:]\d+)*
    """,
    re.VERBOSE,
)
"""What differs between the messages of one failure: quoted text, URLs, e-mail addresses, paths, UUIDs, hexadecimal
numbers and tokens, numbers."""
_NAMING: Final = frozenset(
    f"builtins.{each.__name__}"
    for each in (AttributeError, ImportError, KeyError, ModuleNotFoundError, NameError, TypeError)
)
"""Errors in whose messages a quoted word is a name in the program: it tells failures apart. So does one in double
quotes, as the engine has names of tables and constraints."""


class Percentiles(NamedTuple):
    """How long tasks took, or waited, in seconds: so many percent of them no longer than that, about."""

    p50: float
    p95: float
    p99: float


class Point(NamedTuple):
    """What has ended in one span of time, which begins at *time*."""

    time: datetime
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0
    retried: int = 0
    """Tries that did not end their task, as those that follow."""
    run: Percentiles | None = None
    wait: Percentiles | None = None
    """From when the task could begin until it did."""


class NameRow(NamedTuple):
    """The same of the tasks of one name in one queue."""

    queue: str
    name: str
    succeeded: int
    failed: int
    cancelled: int
    retried: int
    run: Percentiles | None
    wait: Percentiles | None


class Depth(NamedTuple):
    """How many tasks there were: the most in the span of time that begins at *time*, counted up to 100,000."""

    time: datetime
    ready: int
    scheduled: int
    held: int
    running: int
    busy: int
    """Tasks that the workers of the queue ran, those of other queues as well."""
    slots: int
    """How many they can run at once."""


class Version(NamedTuple):
    """The versions that the workers of a queue had from a *time* on."""

    time: datetime
    versions: str
    """Separated by commas: while workers are replaced, or where several apps serve the queue, there are more."""


@dataclass(frozen=True, slots=True)
class Group:
    """Failures with one cause, as far as their messages tell."""

    key: str
    """The same for each look."""
    error_type: str
    name: str
    message: str
    """Without what differs between them."""
    count: int
    first: datetime
    last: datetime
    ids: tuple[int, ...]
    """Up to 50, the newest first."""
    workers: tuple[str, ...]
    versions: tuple[str | None, str | None]
    """Of the workers of the first and of the last one, or of all of their queue then; None: not known."""


class Groups(NamedTuple):
    """What has failed lately."""

    rows: list[Group]
    """The largest first."""
    looked_at: int
    """How many failures they are made of."""
    until: datetime | None
    """When the oldest of these has failed."""


class Try(NamedTuple):
    """A try that did not end its task."""

    number: int
    worker: str | None
    start: datetime
    end: datetime
    kind: str
    """``retry``, ``crash``, or ``release``: its worker ended meanwhile."""
    error_type: str | None
    error: str | None
    traceback: str | None


class AuditRow(NamedTuple):
    """What somebody has done."""

    id: int
    time: datetime
    who: str
    """The user whom the dashboard knows."""
    login: str | None
    """The user of the database; None: it was not noted yet."""
    action: str
    what: str
    said: str


# What workers write.


class Tried(NamedTuple):
    """A try that did not end its task, as its worker notes it."""

    task: int
    number: int
    kind: str
    worker: str
    ended: float
    """By the worker's monotonic clock."""
    elapsed: float
    error_type: str
    error: str
    traceback: str


def ahead(reader: Session | Transaction) -> float:
    """Returns by how many seconds the database's clock is ahead of this machine's."""
    now = results.now(reader) if isinstance(reader, Session) else values.now(reader)
    return (now - clock.utcnow()).total_seconds()


def put(transaction: Transaction, counts: Mapping[tuple[str, str], Sequence[float]], tries: Iterable[Tried]) -> float:
    """Adds *counts* of tasks, by queues and names, with their sums, and notes *tries*. Returns what :func:`ahead` does.

    The counts are the columns of QUEUE_MINUTE from SUCCEEDED on, times in seconds.
    """
    rows = dict(counts)
    for (queue, _), own in counts.items():
        for key in ((queue, ""), ("", "")):
            rows[key] = [a + b for a, b in zip(rows.get(key, [0] * len(own)), own, strict=True)]
    for (queue, name), row in sorted(rows.items()):
        *ended, elapsed, waited = row[:6]
        numbers = (*ended, 1000 * elapsed, 1000 * waited, *row[6:])
        packed = "".join(f"{min(max(0, int(each)), _MOST):015d}" for each in numbers)
        transaction.call("FBTASKS_WEB.PUT_MINUTE", queue, name, packed)
    now = clock.monotonic()
    for each in tries:
        ago, took = int(1000 * (now - each.ended)), int(1000 * each.elapsed)
        kind, error, trace = (sendable(text).replace("\0", "\N{SYMBOL FOR NULL}") or None for text in each[6:])
        given = each.task, each.number, each.kind, each.worker[:255], ago, took, kind and kind[:255], error, trace
        transaction.call("FBTASKS_WEB.PUT_TRY", *given)
    return ahead(transaction)


def depth_is_noted(session: Session) -> bool:
    """Whether a worker has noted the depths of queues in this minute."""
    return bool(session.read("depth_is_noted")[0][0])


def depths(session: Session) -> dict[str, tuple[object, ...]]:
    """Returns how many tasks queues hold, as :class:`Depth` has it, and the versions of their workers.

    By an empty name it has how many all of them do.
    """
    alive = [row for row in processes.workers(session) if row.alive]
    found = {row.queue: row for row in results.bounded(session, _COUNTED)}
    rows = {"": _depth(found.values(), alive)}
    for queue in sorted({*found, *processes.serving(alive)}):
        own = [found[queue]] if queue in found else []
        rows[queue] = _depth(own, [row for row in alive if queue in row.queues])
    return rows


def _depth(queues: Collection[QueueRow], workers: Collection[WorkerRow]) -> tuple[object, ...]:
    states = (sum(getattr(row, name) for row in queues) for name in ("ready", "scheduled", "held", "running"))
    versions = ", ".join(sorted({row.version for row in workers if row.version}))
    return *states, sum(row.running for row in workers), sum(row.concurrency for row in workers), versions[:255]


def put_depths(transaction: Transaction, rows: Mapping[str, Iterable[object]]) -> None:
    """Notes what :func:`depths` returns."""
    for queue, numbers in rows.items():
        transaction.call("FBTASKS_WEB.PUT_DEPTH", queue, *numbers)


# What a dashboard reads.


def series(
    session: Session, start: datetime, end: datetime, seconds: int, queue: str | None = None, name: str | None = None
) -> list[Point]:
    """Returns a point for each span of so many *seconds* (60, 600 or 3600) from *start* until *end*.

    Spans are longer where the database has only longer ones of that time, or there were more than 1500: the times of
    the points tell.
    """
    start, seconds = _from(session, start, end, seconds)
    more, params = " AND NAME_HASH = CRYPT_HASH(CAST(? AS QUEUE_TEXT) USING SHA256)", [name or ""]
    if queue is not None or name is None:
        more += " AND QUEUE = ?"
        params.append(queue or "")
    more += f" GROUP BY DATEDIFF(SECOND FROM TIMESTAMP '2000-01-01 00:00:00' TO AT_TIME) / {seconds}"
    found = {}
    for time, _, _, *counts in session.read("minutes", as_naive_utc(start), as_naive_utc(end), *params, more=more):
        begins = _floor(as_utc(time), seconds)
        found[begins] = Point(begins, *_told(counts))
    span = timedelta(seconds=seconds)
    times = (start + n * span for n in range(-((start - end) // span)))
    return [found.get(each) or Point(each) for each in times]


def names(session: Session, start: datetime, end: datetime, queue: str | None = None) -> list[NameRow]:
    """Returns what became of the tasks of each name, by queues and names."""
    start, _ = _from(session, start, end, 60)
    more, params = " AND NAME <> ''", []
    if queue is not None:
        more += " AND QUEUE = ?"
        params.append(queue)
    rows = session.read(
        "minutes", as_naive_utc(start), as_naive_utc(end), *params, more=f"{more} GROUP BY QUEUE, NAME_HASH"
    )
    return sorted(NameRow(own, name, *_told(counts)) for _, own, name, *counts in rows)


def backlog(session: Session, start: datetime, end: datetime, queue: str | None = None) -> list[Depth]:
    """Returns how many tasks *queue* held, or all queues, at the times for which that was noted."""
    start, _ = _from(session, start, end, 60)
    rows = session.read("depths", queue or "", as_naive_utc(start), as_naive_utc(end))
    return [Depth(as_utc(time), *counts) for time, *counts in rows]


def versions(session: Session, queue: str | None = None) -> list[Version]:
    """Returns which versions the workers of *queue* had, or all workers, and since when: the newest change first."""
    return [Version(as_utc(time), each) for time, each in session.read("versions", _VERSIONS, queue or "")]


def sparks(session: Session) -> dict[str, Spark]:
    """Returns what has succeeded and failed in each queue in the last hour, by three minutes."""
    start = _floor(results.now(session), _STEP) - timedelta(seconds=19 * _STEP)
    end = start + timedelta(seconds=20 * _STEP)
    found: dict[str, dict[str, list[float]]] = {}
    for queue, time, succeeded, failed in session.read("sparks", as_naive_utc(start), as_naive_utc(end)):
        parts = found.setdefault(queue, {"succeeded": [0] * 20, "failed": [0] * 20})
        at = int((as_utc(time) - start).total_seconds()) // _STEP
        parts["succeeded"][at], parts["failed"][at] = int(succeeded), int(failed)
    return {queue: Spark("Ended in the last hour, by three minutes", parts) for queue, parts in found.items()}


def _from(session: Session, start: datetime, end: datetime, seconds: int) -> tuple[datetime, int]:
    """Returns where the first span begins, and how long spans are: as long as those that are kept of that time."""
    age = (results.now(session) - start).total_seconds()
    for _, longer, after in SPANS[1:]:
        if age > after or (end - start).total_seconds() > _POINTS * seconds:
            seconds = max(seconds, longer)
    return _floor(max(start, end - timedelta(seconds=(_POINTS - 1) * seconds)), seconds), seconds


def _floor(moment: datetime, seconds: int) -> datetime:
    whole = int(moment.timestamp())
    return datetime.fromtimestamp(whole - whole % seconds, UTC)


def _told(counts: Sequence[int]) -> tuple[int, int, int, int, Percentiles | None, Percentiles | None]:
    succeeded, failed, cancelled, retried, *buckets = map(int, counts)  # sums of BIGINT arrive as Decimal
    return succeeded, failed, cancelled, retried, percentiles(buckets[:BUCKETS]), percentiles(buckets[BUCKETS:])


def percentiles(buckets: Sequence[int]) -> Percentiles | None:
    """Returns what a histogram tells. None: it is empty."""
    total = sum(buckets)
    return Percentiles(*(_at(buckets, part * total) for part in (0.5, 0.95, 0.99))) if total else None


def _at(buckets: Sequence[int], rank: float) -> float:
    """The value of that *rank*: within a bucket they are taken to be spread evenly by their logarithms."""
    ends = (*BOUNDS, _LONGEST)
    begins = (BOUNDS[0] / 3, *BOUNDS)
    for low, high, count in zip(begins, ends, buckets, strict=True):
        if count and rank <= count:
            return float(low * (high / low) ** (rank / count))
        rank -= count
    return _LONGEST


def failure_groups(
    session: Session,
    told: Callable[[str], str | None],
    most: int = 2000,
    name: str | None = None,
    queue: str | None = None,
) -> Groups:
    """Returns the newest *most* failures in groups; those of a *name* or a *queue* among the newest 10,000.

    *told* returns what readers see of a message: what they do not see makes no other group.
    """
    grouped: dict[str, list[_Failure]] = {}
    last = None
    for count, last in enumerate(_failures(session, told, most, name, queue), 1):  # noqa: B007
        grouped.setdefault(last.key, []).append(last)
    if last is None:
        return Groups([], 0, None)
    workers = {row.name: (row.started, row.version) for row in processes.workers(session)}
    noted = cache(partial(versions, session))
    rows = [_group(some, workers, noted) for some in grouped.values()]
    return Groups(sorted(rows, key=lambda row: (-row.count, row.key)), count, last.time)


def group_ids(session: Session, told: Callable[[str], str | None], key: str, most: int) -> list[int]:
    """Returns the ids of up to *most* failures of a group, the newest first, of the newest 10,000 of all groups."""
    found = (each.id for each in _failures(session, told, LOOKED_THROUGH, None, None) if each.key == key)
    return [task for task, _ in zip(found, range(most), strict=False)]


class _Failure(NamedTuple):
    id: int
    name: str
    queue: str
    error_type: str
    message: str
    time: datetime
    worker: str | None

    @property
    def key(self) -> str:
        told = "\n".join((self.name, self.error_type, self.message))
        return hashlib.sha256(told.encode("utf-8", "replace")).hexdigest()[:12]


def _failures(
    session: Session, told: Callable[[str], str | None], most: int, name: str | None, queue: str | None
) -> Iterator[_Failure]:
    looked_through = most if name is queue is None else LOOKED_THROUGH
    for task, own, in_queue, kind, message, time, worker in session.read("failures", most, looked_through, name, queue):
        said = normalised(told(message or "") or "", kind or "")
        yield _Failure(task, own, in_queue, kind or "", said, as_utc(time), worker)


def normalised(message: str, kind: str) -> str:
    """Returns *message* without what differs between failures of a *kind* with one cause."""

    def told(found: re.Match[str]) -> str:
        if name := found["name"]:
            return name if kind in _NAMING or name[0] == '"' else "'...'"
        return "'...'" if found["quoted"] else "#"

    return _VARIES.sub(told, message)


def _group(
    some: Sequence[_Failure],
    workers: Mapping[str, tuple[datetime, str]],
    noted: Callable[[str], list[Version]],
) -> Group:
    def version(failure: _Failure) -> str | None:
        since, number = workers.get(failure.worker or "", (None, None))
        if since is not None and since <= failure.time:
            return number
        return next((each.versions for each in noted(failure.queue) if each.time <= failure.time), None)

    last, first = some[0], some[-1]
    return Group(
        last.key, last.error_type, last.name, last.message, len(some), first.time, last.time,
        tuple(each.id for each in some[:_IDS]), tuple(sorted({each.worker for each in some if each.worker})),
        (version(first), version(last)),
    )  # fmt: skip


def tries(session: Session, task: int) -> list[Try]:
    """Returns the tries that did not end a task, the first one first: the newest 100 that are kept."""
    rows = session.read("tries", task)
    return [Try(number, worker, as_utc(start), as_utc(end), *rest) for number, worker, start, end, *rest in rows[::-1]]


# The audit.


def note(transaction: Transaction, written: int | None, who: str, action: str, what: str, said: str) -> int:
    """Writes a line of the audit, unless *written*, which the same operation has written before, is there.

    Returns its number.
    """
    given = who[:255], action[:255], shorten(what, _WHAT, CUT), said
    return int(transaction.call("FBTASKS_WEB_ADMIN.NOTE", written, *given))


def audit(session: Session, before: int | None = None, most: int = 50) -> list[AuditRow]:
    """Returns up to *most* lines of the audit before the one of that number, the newest first."""
    rows = session.read("audit", most, 2**63 - 1 if before is None else before)
    return [AuditRow(number, as_utc(time), *rest) for number, time, *rest in rows]
