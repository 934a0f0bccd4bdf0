"""Schedules in the database: what each goes by, its ticks, and what operators have set."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, NamedTuple

from fbtasks.database.values import as_naive_utc, as_utc
from fbtasks.features.schedules.definition import Schedule
from fbtasks.features.schedules.ticking import Missed, Timing, timing
from fbtasks.firebird.session import Session, Transaction
from fbtasks.queue import codec
from fbtasks.sheet import Spark
from fbtasks.states import State
from fbtasks.tasks.call import Owner

_ENDS: Final = ("succeeded", "failed", "cancelled")


class Row(NamedTuple):
    """A schedule as the database has it."""

    id: int
    name: str
    app: str
    task: str
    cron: str | None
    every_ms: int | None
    tz: str | None
    missed: Missed
    queue: str
    priority: int
    expire_ms: int | None
    paused: bool
    content_type: str
    payload: bytes
    set_cron: str | None
    set_every_ms: int | None
    set_tz: str | None
    set_payload: bytes | None
    set_paused: int | None
    orphaned: bool
    error: str | None
    state: str
    next: datetime | None
    last: datetime | None
    version: int
    hash: str | None
    runs: str

    @property
    def tasks(self) -> list[int]:
        """The last tasks that it has made, the newest first."""
        return [int(each) for each in self.runs.split(";") if each]

    @property
    def when(self) -> tuple[str | None, int | None, str | None]:
        """The cron expression, the milliseconds and the zone that it goes by."""
        if self.set_cron is None and self.set_every_ms is None:
            cron, every_ms = self.cron, self.every_ms
        else:
            cron, every_ms = self.set_cron, self.set_every_ms
        return cron, every_ms, None if cron is None else self.set_tz or self.tz or "UTC"

    @property
    def timing(self) -> Timing:
        """When it ticks."""
        return timing(*self.when)


def read(reader: Session | Transaction) -> list[Row]:
    """Returns all schedules, in the order in which they were made."""
    rows = reader.read("schedules") if isinstance(reader, Session) else reader.rows("schedules")
    return [_row(Row._make(row)) for row in rows]


def sparks(session: Session, first: str, last: str) -> dict[int, Spark]:
    """Returns how the last tasks of the schedules from the name *first* to *last* have ended, by ids of schedules."""
    found: dict[int, dict[str, list[float]]] = {}
    for id, state, elapsed_ms in session.read("schedule_runs", first, last):
        if elapsed_ms is not None:
            for name, seconds in found.setdefault(id, {each: [] for each in _ENDS}).items():
                seconds.append(max(elapsed_ms, 1) / 1000 if State(state).name.lower() == name else 0)
    return {id: Spark("Seconds of the last runs", parts) for id, parts in found.items()}


def _row(row: Row) -> Row:
    return row._replace(
        paused=bool(row.paused),
        payload=bytes(row.payload),
        set_payload=None if row.set_payload is None else bytes(row.set_payload),
        orphaned=bool(row.orphaned),
        state=row.state.rstrip(),
        next=as_utc(row.next),
        last=as_utc(row.last),
    )


def put(
    transaction: Transaction,
    id: int | None,
    app: str,
    schedule: Schedule,
    owners: Mapping[str, Owner],
    next: datetime | None,
) -> None:
    """Writes what an app says of a schedule, of which *id* is there already. *next*: see :func:`hold`.

    *owners* are those whose lanes its calls have to pass.
    """
    call = schedule.call
    gates = codec.pack_gates(call.gates, owners).decode("ascii") or None
    transaction.call(
        "FBTASKS_SCHEDULES.PUT_SCHEDULE", id, schedule.name, app, call.name, schedule.cron, schedule.every_ms,
        schedule.tz, schedule.missed, call.queue, call.priority, schedule.expire_ms, int(schedule.paused),
        call.content_type, call.payload, gates, schedule.text, schedule.hash, as_naive_utc(next),
    )  # fmt: skip


def hold(transaction: Transaction, id: int, *, held: bool, next: datetime | None = None) -> None:
    """Pauses a schedule, or has it go on: at *next*, or without one when it was to tick."""
    transaction.call("FBTASKS_SCHEDULES_ADMIN.HOLD_SCHEDULE", id, int(held), as_naive_utc(next))


class Active(NamedTuple):
    """A schedule that ticks, as far as its next tick goes."""

    id: int
    name: str
    version: int
    cron: str | None
    every_ms: int | None
    tz: str | None
    missed: Missed
    next: datetime

    @property
    def timing(self) -> Timing:
        """When it ticks."""
        return timing(self.cron, self.every_ms, self.tz)


def due(session: Session, most: int) -> tuple[list[Active], datetime | None]:
    """Up to *most* schedules that are to tick, and behind them the one that is to tick next.

    With the database's clock at that moment (None: nothing ticks).
    """
    found, now = [], None
    for *row, next, moment in session.read("ticks", most):
        found.append(Active._make([*row, as_utc(next)]))
        now = as_utc(moment)
    return found, now


class Done(IntEnum):
    """What became of a tick."""

    CHANGED = 0
    """It was done by another worker, or the schedule was changed."""
    DONE = 1
    HELD = 2
    """Another transaction is at it."""


def tick(
    transaction: Transaction, schedule: Active, at: datetime, tick: datetime | None, next: datetime | None
) -> Done:
    """Ticks a schedule that is due *at*: enqueues its task for *tick*, or none, and moves on to *next*."""
    moments: tuple[Any, ...] = (as_naive_utc(at), as_naive_utc(tick), as_naive_utc(next))
    return Done(transaction.call("FBTASKS_SCHEDULES.TICK", schedule.id, schedule.version, *moments))
