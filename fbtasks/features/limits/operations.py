"""Operations on the limits of tasks: list, set, reset, resume."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from fbtasks.database.database import Database
from fbtasks.errors import ConfigurationError
from fbtasks.feature import Problem, Told
from fbtasks.features.limits import store as admission
from fbtasks.features.limits.definition import QUEUE, LimitOptions, define_limit, in_words, rate_text
from fbtasks.features.limits.gates import lane_of
from fbtasks.features.limits.store import Closed, Load, Row, SaidTwice
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.holds import Hold, gate, let_in
from fbtasks.queue.operations.choosing import choose
from fbtasks.queue.results import QueueRow
from fbtasks.system.showing import command_line, count, span


@dataclass(frozen=True, slots=True)
class ClosedKey:
    """A key of an order that stands still since a task failed."""

    task: int
    """The task that failed."""
    since: datetime | None
    waiting: int
    """How many tasks wait behind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitRow:
    """A limit as the database has it, and as it counts: with what operators said."""

    name: str | None = None
    """None: tasks wait for a limit that no app has defined."""
    app: str | None = None
    kind: str | None = None
    """``at_once``, ``rate``, ``ordered``, ``unique``, ``batch``, ``queue`` (of a queue); None when it is not known."""
    at_once: int | None = None
    rate: str | None = None
    burst: int | None = None
    set: list[str] = field(default_factory=list)
    """What operators said: ``at_once``, ``rate``, ``burst``."""
    code_at_once: int | None = None
    """What the code says, and counts when it is reset."""
    code_rate: str | None = None
    code_burst: int | None = None
    batch: int | None = None
    """How many calls are let in together."""
    wait: float | None = None
    """Seconds that the oldest of them waits for so many."""
    state: str
    """``active``; ``orphaned``: the code has it no more; ``undefined``."""
    inside: int
    """Tasks that it has let in, and that have not given back their places."""
    waiting: int
    keys: int
    """Keys of which a task is in or waits."""
    closed: list[ClosedKey] = field(default_factory=list)
    says: dict[str, str] = field(default_factory=dict)
    """Where several apps say something else of it: what each does, in words. What :attr:`app` says counts."""


def list_limits(database: Database) -> list[LimitRow]:
    """Returns all limits; those that are not defined come last."""

    def read(session: Session) -> list[LimitRow]:
        rows, loads, closed = admission.read(session), admission.loads(session), admission.closed(session)
        twice = admission.said_twice(session)
        shown = [replace(show(row, loads.get(row.id), closed), says=says(twice.get(row.id))) for row in rows]
        return shown + [show(None, load) for load in undefined(rows, loads).values()]

    return database.use(read)


def says(said: SaidTwice | None) -> dict[str, str]:
    """Returns what each app says of a limit, in words, where they say something else. The first one counts."""
    return {} if said is None else {app: each.words for app, each in {said.app: said.definition, **said.others}.items()}


def undefined(rows: Iterable[Row], loads: Mapping[int, Load]) -> dict[int, Load]:
    """Returns the loads of limits for which tasks wait, and which no app defines."""
    defined = {row.id for row in rows}
    return {number: load for number, load in sorted(loads.items()) if load.waiting and number not in defined}


def kind_of(row: Row) -> str:
    """Returns of which kind a limit is: see :class:`LimitRow`."""
    if row.name.startswith(QUEUE):
        return "queue"
    if row.batch is not None:
        return "batch"
    if row.until is not None:
        return "unique"
    if row.in_order:
        return "ordered"
    return "at_once" if row.period is None else "rate"


def show(row: Row | None, load: Load | None, closed: Iterable[Closed] = ()) -> LimitRow:
    """Returns a limit as people are shown it; without *row* one that no app defines."""
    concerns = (load or Load())._asdict()
    del concerns["partly"]
    if row is None:
        return LimitRow(state="undefined", **concerns)
    said = {"at_once": row.set_at_once, "rate": row.set_period, "burst": row.set_burst}
    at_once, period, burst = row.in_force
    return LimitRow(
        name=row.name, app=row.app, kind=kind_of(row),
        at_once=at_once, rate=None if period is None else rate_text(period), burst=burst,
        set=[name for name, value in said.items() if value is not None],
        code_at_once=row.at_once, code_rate=None if row.period is None else rate_text(row.period), code_burst=row.burst,
        batch=row.batch, wait=None if row.batch is None else row.wait_ms / 1000, state=row.state,
        closed=[ClosedKey(each.task, each.since, each.waiting) for each in closed if each.limit == row.id],
        **concerns,
    )  # fmt: skip


def lets_in(row: LimitRow) -> str:
    """Returns what a limit lets in, in words; and what the code says where operators have said something else."""
    if row.kind in ("ordered", "unique"):
        return "one at a time, in order" if row.kind == "ordered" else "one of equal calls"
    if row.batch is not None and row.wait is not None:
        return f"{row.batch} together, or after {span(row.wait)}"
    said = _allowed(row.at_once, row.rate, row.burst)
    return f"{said} (set; the code: {_allowed(row.code_at_once, row.code_rate, row.code_burst)})" if row.set else said


def _allowed(at_once: int | None, rate: str | None, burst: int | None) -> str:
    said = [] if at_once is None else [f"{at_once} at once"]
    if rate is not None:
        said.append(f"{rate} (burst {burst or 1})")
    return ", ".join(said) or "any number"


def change(
    database: Database, name: str, *, at_once: int | None = None, rate: str | None = None, burst: int | None = None
) -> LimitRow:
    """Sets what a limit goes by instead of the code. Returns it as it is then.

    Raises :class:`ConfigurationError` for what cannot be.
    """
    return _override(database, name, lambda row: _changed(row, at_once, rate, burst))


def reset(database: Database, name: str) -> LimitRow:
    """Makes a limit go by the code alone again. Returns it as it is then. Raises as :func:`change` does."""
    return _override(database, name, lambda row: row._replace(set_at_once=None, set_period=None, set_burst=None))


def _override(database: Database, name: str, change: Callable[[Row], Row]) -> LimitRow:
    def write(transaction: Transaction) -> None:
        row = change(_chosen(transaction, name))
        said = row.set_at_once, row.set_period, row.set_burst
        transaction.call("FBTASKS_LIMITS_ADMIN.OVERRIDE_LIMIT", row.id, *said)

    def work(session: Session) -> LimitRow:
        session.run(write)
        row = _chosen(session, name)
        shown = show(row, admission.loads(session).get(row.id), admission.closed(session))
        return replace(shown, says=says(admission.said_twice(session).get(row.id)))

    return database.use(work)


def _changed(row: Row, at_once: int | None, rate: str | None, burst: int | None) -> Row:
    kind = kind_of(row)
    if kind in ("ordered", "unique"):
        raise ConfigurationError(f"{row.name!r} lets in one task of a key at a time: there is nothing to set.")
    if kind == "batch":
        raise ConfigurationError(f"{row.name!r} is of a task with batch=, which its code alone says: nothing to set.")
    if kind == "at_once" and (rate is not None or burst is not None):
        raise ConfigurationError(f"{row.name!r} limits how many tasks run at once: give --at-once.")
    if kind == "rate" and at_once is not None:
        raise ConfigurationError(f"{row.name!r} limits how often tasks begin: give --rate or --burst.")
    if at_once is not None:
        row = row._replace(set_at_once=LimitOptions(at_once=at_once).at_once)
    if rate is None and burst is None:
        return row
    _, period, _ = row.in_force
    whole = rate or (None if period is None else rate_text(period))
    if whole is None:
        raise ConfigurationError(f"{row.name!r} has no rate: give --rate as well.")
    said = define_limit(row.name, LimitOptions(rate=whole, burst=burst))
    if rate is None:
        return row._replace(set_burst=said.burst)
    return row._replace(set_period=said.period, set_burst=said.burst)


def resume(database: Database, name: str, key: Sequence[str] = (), *, task: int | None = None) -> list[int]:
    """Opens the key of a limit that a failed task has closed. Returns the tasks that had closed it.

    The key is named by its values, or by that *task*; without either, it is the one key of all calls. What was closed
    goes on with the next task; the one that failed stays as it is. Raises :class:`ConfigurationError` when that key is
    not closed.
    """

    def work(session: Session) -> list[int]:
        row = _chosen(session, name)
        closed = [each for each in admission.closed(session) if each.limit == row.id]
        lane = lane_of(row.name, tuple(key)) if key else 0
        found = [each for each in closed if (each.lane == lane if task is None else each.task == task)]
        if not found:
            raise ConfigurationError(_not_closed(row.name, key, task, closed))

        def write(transaction: Transaction) -> None:
            for each in found:
                transaction.call("FBTASKS_LIMITS_ADMIN.RESUME_GATE", each.limit, each.lane, each.task)

        session.run(write)
        return [each.task for each in found]

    return database.use(work)


def _not_closed(name: str, key: Sequence[str], task: int | None, closed: Sequence[Closed]) -> str:
    if task is not None:
        what = f"key of {name!r} that task {task} closed"
    else:
        what = f"closed key {' '.join(key)!r} of {name!r}" if key else f"closed line of all calls of {name!r}"
    if not closed:
        return f"there is no {what}: none of its keys is closed."
    shown = ", ".join(str(each.task) for each in closed[:5]) + (", ..." if len(closed) > 5 else "")
    command = command_line("fbtasks limits resume {} --task ID", name)
    tasks = "task" if len(closed) == 1 else "the tasks"
    return f"there is no {what}. Its keys are closed by {tasks} {shown}: {command}"


def describe_closed(name: str, key: ClosedKey | Closed) -> str:
    """Describes a closed key of the limit *name*, with the command that opens it."""
    return (
        f"a key is closed since task {key.task} failed; tasks that wait behind it: {key.waiting}. Retry that task, or "
        f"pass it by: {command_line('fbtasks limits resume {} --task {}', name, key.task)}"
    )


def describe_said(says: Mapping[str, str]) -> str:
    """Describes a limit of which several apps say something else: the first of *says* counts."""
    (app, first), *others = says.items()
    also = "".join(f"; the app {other} says {words}" for other, words in others)
    return (
        f"the app {app} says {first}, and that counts{also}. That of the app counts whose worker started last. Say the "
        "same in all of them, or give the limits names of their own"
    )


def find_problems(session: Session) -> Iterator[Problem]:
    """Returns what is wrong with limits. A task that waits for its turn is no problem."""
    rows = admission.read(session)
    names = {row.id: row.name for row in rows}
    for each in admission.closed(session):
        name = names.get(each.limit, "")
        yield Problem(describe_closed(name, each), f"limit {name}", id="limit-closed")
    for number, said in admission.said_twice(session).items():
        yield Problem(describe_said(says(said)), f"limit {names.get(number, '')}", is_wrong=False, id="limit-disputed")
    # All that is held is counted only where something waits for what nobody has defined.
    unknown = undefined(rows, admission.loads(session)) if admission.loads(session, 1).keys() - names.keys() else {}
    for load in unknown.values():
        tasks = f"{count(load.waiting, 'task')} {'waits' if load.waiting == 1 else 'wait'}"
        yield Problem(f"{tasks} for a limit that no app has defined (fbtasks inspect held)", id="limit-undefined")


def describe_queues(session: Session, rows: dict[str, QueueRow]) -> None:
    """Puts into *rows* what their limits let in, in words, and adds queues with limits that have no row."""
    said = {
        row.name.removeprefix(QUEUE): in_words(*row.in_force[:2])
        for row in admission.read(session)
        if row.name.startswith(QUEUE)
    }
    for name in {*rows, *said}:
        row, limit = rows.get(name) or QueueRow(queue=name), said.get(name)
        shown = {**row.shown, "LIMIT": limit} if limit else row.shown
        rows[name] = replace(row, facts={**row.facts, "limit": limit}, shown=shown)


# Why a task waits


def describe(session: Session, holds: Sequence[Hold], queue: QueueRow) -> Told:
    """Returns what shuts the limit that a held task waits for first, and why the limit of its queue lets nothing in."""
    why = list(_at_limit(session, holds[0])) if holds and holds[0].stage >= 0 else []
    return Told(why, list(_at_queue(session, queue.queue)) if queue.workers and queue.facts["limit"] else [])


def _at_queue(session: Session, queue: str) -> Iterator[str]:
    for at_once, running, now, opens in session.read("queue_room", queue):
        if at_once is not None and running >= at_once:
            run = "runs" if running == 1 else "run"
            yield (
                f"{count(running, 'task')} of its queue {queue} {run}, as many as its limit lets in. To let in more: "
                f"{command_line('fbtasks limits set {} --at-once N', QUEUE + queue)}"
            )
        elif opens is not None and opens > now:
            yield _next_at(f"{QUEUE}{queue}", opens)


def _next_at(limit: str, moment: datetime) -> str:
    return f"{limit} lets in the next one at {moment:%Y-%m-%d %H:%M:%S} UTC"


def _at_limit(session: Session, hold: Hold) -> Iterator[str]:
    limit = next((each for each in admission.read(session) if each.id == hold.owner), None)
    if limit is None:
        yield "no app defines the limit that it waits for. Cancel it, and call it anew"
        return
    found = gate(session, hold)
    if found.halted:
        yield (
            f"its key of {limit.name} is closed since task {found.holder} failed. Retry that task, or pass it by: "
            f"{command_line('fbtasks limits resume {} --task {}', limit.name, found.holder)}"
        )
    elif found.wakes is not None:
        yield _next_at(limit.name, found.wakes)
    elif kind_of(limit) not in ("at_once", "ordered"):
        return
    elif running := let_in(session, hold, "lane_runs"):
        yield f"{limit.name} is taken by {_tasks(running, 'which runs', 'which run')}"
    elif found.used and (keeping := let_in(session, hold, "lane_keeps")):
        who = _tasks(keeping, "which waits for another try, or is parked", "which wait for another try, or are parked")
        yield f"{limit.name} is taken by {who}"
    elif found.used:
        yield f"{limit.name} is taken by a task that does not run now: it waits for another try, or for a worker"


def _tasks(numbers: list[int], one: str, several: str) -> str:
    shown = ", ".join(map(str, numbers[:4])) + (", ..." if len(numbers) > 4 else "")
    return f"task {shown}, {one}" if len(numbers) == 1 else f"tasks {shown}, {several}"


def _chosen(reader: Session | Transaction, name: str) -> Row:
    return choose("limit", name, {row.name: row for row in admission.read(reader)})
