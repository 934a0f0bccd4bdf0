"""Operations on schedules: list, pause, resume, set, run, remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from fbtasks import timing as clock
from fbtasks.database.database import Database
from fbtasks.database.values import as_naive_utc
from fbtasks.database.values import now as now_in
from fbtasks.errors import ConfigurationError
from fbtasks.feature import Problem
from fbtasks.features.schedules import store as schedules
from fbtasks.features.schedules.store import Row
from fbtasks.features.schedules.ticking import cron_text, every_ms
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue.operations.choosing import choose
from fbtasks.system.showing import command_line
from fbtasks.tasks.serialize import JSON_TYPE
from fbtasks.tasks.windows import zone

_OVERDUE_MS: Final = 60_000
"""Milliseconds by which a tick may be late before that is a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule as the database has it, and as it counts: with what operators said."""

    name: str
    app: str
    task: str
    cron: str | None
    every: float | None
    """Seconds."""
    tz: str | None
    missed: str
    args: list[Any] | None
    """None: they are not in JSON."""
    kwargs: dict[str, Any] | None
    queue: str
    priority: int
    state: str
    next: datetime | None
    """None: it does not tick."""
    last: datetime | None
    error: str | None
    set: list[str]
    """What operators said: ``cron``, ``every``, ``tz``, ``args``, ``paused``."""

    @property
    def when(self) -> str:
        """When it ticks."""
        if self.every is None:
            return f"{self.cron} {self.tz}"
        size, unit = next((size, unit) for size, unit in _SIZES if self.every % size == 0 or unit == "s")
        return f"every {self.every / size:g} {unit}"

    @property
    def call(self) -> str:
        """The call that it makes."""
        if self.args is None or self.kwargs is None:
            return f"{self.task}(...)"
        given = [f"{value!r}" for value in self.args] + [f"{name}={value!r}" for name, value in self.kwargs.items()]
        return f"{self.task}({', '.join(given)})"


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_SIZES: Final = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def seconds(what: str, text: str) -> float:
    """Returns the seconds that *text* names: a number of them, or one of minutes, hours or days with its unit.

    Raises :class:`ConfigurationError`.
    """
    number, unit = (text[:-1], _UNITS[text[-1]]) if text[-1:] in _UNITS else (text, 1)
    try:
        found = float(number) * unit
    except ValueError:
        raise ConfigurationError(f"{what} {text!r} must be seconds, or such as 15m, 2h, 1d.") from None
    if not 1 <= found <= clock.LONGEST.total_seconds():
        raise ConfigurationError(f"{what} {text!r} must be from a second to a hundred years, such as 15m, 2h, 1d.")
    return found


def list_schedules(database: Database) -> list[ScheduleRow]:
    """Returns all schedules."""
    return database.use(lambda session: [show(row) for row in schedules.read(session)])


def show(row: Row) -> ScheduleRow:
    """Returns a schedule as people are shown it."""
    cron, every, tz = row.when
    args, kwargs = _arguments(row)
    said = {"cron": row.set_cron, "every": row.set_every_ms, "tz": row.set_tz, "args": row.set_payload}
    return ScheduleRow(
        name=row.name, app=row.app, task=row.task, cron=cron, every=None if every is None else every / 1000, tz=tz,
        missed=row.missed, args=args, kwargs=kwargs, queue=row.queue, priority=row.priority, state=row.state,
        next=row.next if row.state == "active" else None, last=row.last, error=row.error,
        set=[name for name, value in {**said, "paused": row.set_paused}.items() if value is not None],
    )  # fmt: skip


def _arguments(row: Row) -> tuple[list[Any] | None, dict[str, Any] | None]:
    payload = row.payload if row.set_payload is None else row.set_payload
    if row.set_payload is None and row.content_type != JSON_TYPE:
        return None, None
    try:
        args, kwargs, *_ = json.loads(payload)
    except ValueError:  # written by hand
        return None, None
    return args, kwargs


def pause(database: Database, names: Iterable[str]) -> list[str]:
    """Stops the ticks of schedules. Returns the names of those that changed.

    Raises :class:`ConfigurationError` for names that are not known.
    """

    def hold(transaction: Transaction, row: Row) -> None:
        schedules.hold(transaction, row.id, held=True)

    return [*_each(database, names, hold, lambda row: not _is_paused(row))]


def resume(database: Database, names: Iterable[str]) -> list[str]:
    """Lets schedules tick again. Returns the names of those that changed. Raises as :func:`pause` does.

    Ticks in a pause are not made up for. One that stands still since a task could not be enqueued goes on with that
    tick, as missed ones do.
    """
    now = cache(now_in)  # the clock is read once in a transaction

    def go_on(transaction: Transaction, row: Row) -> None:
        next = row.timing.begin(now(transaction), row.last) if _is_paused(row) else None
        schedules.hold(transaction, row.id, held=False, next=next)

    return [*_each(database, names, go_on, lambda row: _is_paused(row) or row.error is not None)]


def _each(
    database: Database,
    names: Iterable[str],
    change: Callable[[Transaction, Row], Any],
    is_wanted: Callable[[Row], bool] = lambda _: True,
) -> dict[str, Any]:
    """Changes the schedules of *names* that are wanted, in one transaction. Returns what each change returned."""

    def work(transaction: Transaction) -> dict[str, Any]:
        return {row.name: change(transaction, row) for row in _chosen(transaction, names) if is_wanted(row)}

    return database.use(lambda session: session.run(work))


def _is_paused(row: Row) -> bool:
    return bool(row.paused if row.set_paused is None else row.set_paused)


def change(
    database: Database, name: str, *, cron: str | None = None, every: float | None = None, tz: str | None = None,
    args: list[Any] | None = None, kwargs: dict[str, Any] | None = None,
) -> ScheduleRow:  # fmt: skip
    """Sets what a schedule goes by instead of the code (*every*: seconds). Returns it as it is then.

    Raises :class:`ConfigurationError` for what cannot be.
    """
    if cron is not None and every is not None:
        raise ConfigurationError("cron and every both say when: give one of them.")

    def work(transaction: Transaction) -> None:
        (row,) = _chosen(transaction, [name])
        after = row
        if cron is not None:
            after = after._replace(set_cron=cron_text("cron", cron), set_every_ms=None)
        if every is not None:
            after = after._replace(set_cron=None, set_every_ms=every_ms("every", every))
        if tz is not None:
            if after.when[0] is None:
                raise ConfigurationError(f"tz {tz} is the zone of a cron expression, and {name!r} has none.")
            after = after._replace(set_tz=zone("tz", tz))
        if args is not None or kwargs is not None:
            before = _arguments(row)
            call = [args if args is not None else before[0] or [], kwargs if kwargs is not None else before[1] or {}]
            after = after._replace(set_payload=json.dumps(call, separators=(",", ":")).encode())
        _write(transaction, row, after)

    return _changing(database, name, work)


def reset(database: Database, name: str) -> ScheduleRow:
    """Makes a schedule go by the code alone again. Returns it as it is then."""

    def work(transaction: Transaction) -> None:
        (row,) = _chosen(transaction, [name])
        _write(transaction, row, row._replace(set_cron=None, set_every_ms=None, set_tz=None, set_payload=None))

    return _changing(database, name, work)


def _changing(database: Database, name: str, work: Callable[[Transaction], None]) -> ScheduleRow:
    def change(session: Session) -> ScheduleRow:
        session.run(work)
        (row,) = _chosen(session, [name])
        return show(row)

    return database.use(change)


def _write(transaction: Transaction, before: Row, after: Row) -> None:
    next = None if before.when == after.when else after.timing.begin(now_in(transaction), before.last)
    said = after.set_cron, after.set_every_ms, after.set_tz, after.set_payload
    transaction.call("FBTASKS_SCHEDULES_ADMIN.SET_SCHEDULE", after.id, *said, as_naive_utc(next))


def run(database: Database, names: Iterable[str]) -> dict[str, int]:
    """Enqueues the tasks of schedules once, now. Returns their ids by name. Raises as :func:`pause` does."""
    return _each(database, names, lambda t, row: t.call("FBTASKS_SCHEDULES_ADMIN.RUN_SCHEDULE", row.id))


def check(database: Database, names: Iterable[str]) -> None:
    """Raises as :func:`pause` does for a name that no schedule has."""
    database.use(lambda session: _chosen(session, names))


def remove(database: Database, names: Iterable[str]) -> list[str]:
    """Deletes schedules; their tasks stay. Returns the names. Raises as :func:`pause` does."""
    return [*_each(database, names, lambda t, row: t.call("FBTASKS_SCHEDULES_ADMIN.REMOVE_SCHEDULE", row.id))]


def find_problems(session: Session) -> Iterator[Problem]:
    """Returns what is wrong with schedules."""
    for name, error, late_ms in session.read("schedule_problems", _OVERDUE_MS):
        if error is not None:
            problem = f"it stands still: {error} ({command_line('fbtasks schedules resume {}', name)})"
        else:
            problem = f"its tick is {(late_ms or 0) / 1000:.0f} s late: no worker ticks"
        yield Problem(problem, f"schedule {name}", id="schedule", private=error or "")


def _chosen(reader: Session | Transaction, names: Iterable[str]) -> list[Row]:
    rows = {row.name: row for row in schedules.read(reader)}
    return [choose("schedule", name, rows) for name in dict.fromkeys(names)]
