"""Brings the schedules of an app into the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from fbtasks.database.migrate import deploying
from fbtasks.database.values import now as now_in
from fbtasks.errors import ConfigurationError
from fbtasks.features.schedules import store as schedules
from fbtasks.features.schedules.definition import Schedule
from fbtasks.features.schedules.store import Row
from fbtasks.features.schedules.ticking import timing
from fbtasks.firebird.session import Session, Transaction
from fbtasks.system.showing import command_line
from fbtasks.tasks.call import Batch, Owner

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


def sync_schedules(session: Session, app: FBTasks, definitions: Mapping[str, Schedule]) -> list[str]:
    """Brings into the database what *app* says of its schedules: the last one stands. Returns what changed, in words.

    What operators said stays, and so does when each ticks next, unless the code says anew when. One that the code has
    no more is orphaned. Raises :class:`ConfigurationError` when a schedule is another app's.
    """
    if dict(session.read("schedule_hashes", app.name)) == {name: each.hash for name, each in definitions.items()}:
        return []
    owners: dict[str, Owner] = {}
    for each in definitions.values():
        batch = Batch([each.call])
        app.enqueuer.make_ready(batch)
        owners |= batch.owners
    with deploying(session):
        return session.run(lambda transaction: _sync(transaction, app.name, definitions, owners))


def _sync(
    transaction: Transaction, app: str, definitions: Mapping[str, Schedule], owners: Mapping[str, Owner]
) -> list[str]:
    rows = {row.name: row for row in schedules.read(transaction)}
    now = now_in(transaction)
    changed = []
    for definition in definitions.values():
        row = rows.get(definition.name)
        _check_owner(row, app)
        if row is None:
            changed.append(f"new: {definition.name}")
        elif row.hash != definition.hash or row.orphaned or row.app != app:
            changed.append(f"changed: {definition.name}")
        else:
            continue
        schedules.put(transaction, row and row.id, app, definition, owners, _next(row, definition, now))
    for row in rows.values():
        if row.app == app and not row.orphaned and row.name not in definitions:
            transaction.call("FBTASKS_SCHEDULES.ORPHAN_SCHEDULE", row.id)
            changed.append(f"orphaned: {row.name}")
    return changed


def _check_owner(row: Row | None, app: str) -> None:
    if row is not None and row.app != app and not row.orphaned:
        raise ConfigurationError(
            f"the schedule {row.name!r} is of the app {row.app!r}, and the app {app!r} defines it as well. Give one of "
            f"them another name=, or when {row.app!r} is gone, run: "
            f"{command_line('fbtasks schedules remove {}', row.name)}"
        )


def _next(row: Row | None, definition: Schedule, now: datetime) -> datetime | None:
    """Returns when the schedule ticks next; None: when it was to."""
    if row is None:
        return timing(definition.cron, definition.every_ms, definition.tz).begin(now, None)
    said: Row = row._replace(cron=definition.cron, every_ms=definition.every_ms, tz=definition.tz)
    if said.when == row.when and not row.orphaned and row.next is not None:
        return None
    return said.timing.begin(now, row.last)
