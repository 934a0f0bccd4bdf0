"""Celery's queues in dashboards: how many messages each holds, and the processes that consume them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fbtasks.contrib.celery.store.messages import QueueLength, lengths
from fbtasks.contrib.celery.store.names import kept
from fbtasks.database.values import as_utc
from fbtasks.firebird.session import READ
from fbtasks.sheet import MOST, SHOWN, Detail, Line, Ref, Sheet, behind, counted

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session


class CelerySheet(Sheet):
    """The queues of Celery's applications, by their names; those of its remote control and its events are left out."""

    name = "celery"
    title = "Celery"
    empty = "No application of Celery has queues in this database."

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the queues."""
        rows = {row.name: row for row in session.run(lambda t: lengths(t, None, MOST + 1), READ)}
        return [_line(rows[name]) for name in behind([*rows], after, most)]

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns the processes that consume a queue."""
        found = super().detail(session, key)
        if found is None:
            return None
        consumers = [
            {
                "Host": host,
                "Process": pid,
                "Since": as_utc(start),
                "Heartbeat": as_utc(heartbeat),
                "Alive": alive,
                "Claimed messages": counted(claimed, MOST),
            }
            for host, pid, start, heartbeat, alive, claimed in session.read("msg_consumers", MOST + 1, kept(key), SHOWN)
        ]
        return Detail(line=found.line, tables={"Consumers": consumers})


def _line(row: QueueLength) -> Line:
    wrong = []
    if row.ready and not row.consumers:
        wrong.append("messages wait, and no process consumes them")
    if row.dead:
        wrong.append("messages came back too often, and wait for an operator")
    return Line(
        key=row.name,
        cells={
            "Queue": Ref("celery", row.name, row.name),
            "Ready": counted(row.ready, MOST),
            "Withheld": counted(row.withheld, MOST),
            "Claimed": counted(row.claimed, MOST),
            "Came back too often": counted(row.dead, MOST),
            "Consumers": row.consumers,
        },
        wrong="; ".join(wrong),
    )
