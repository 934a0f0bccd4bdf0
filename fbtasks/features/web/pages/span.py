"""The span of time that charts show."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from fbtasks.features.web import store
from fbtasks.queue import results

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context
    from fbtasks.firebird.session import Session
    from fbtasks.sheet import Spark

SPANS: Final = {"1h": (1, 60), "3h": (3, 180), "24h": (24, 1800)}
"""Hours, and the seconds of a point, by what addresses have."""


def chosen(context: Context) -> str:
    """Returns the span that the address names."""
    found = context.request.args.get("span", "")
    return found if found in SPANS else "1h"


def bounds(session: Session, name: str) -> tuple[datetime, datetime, int]:
    """Returns start and end of a span, and the seconds of its points. The point of now is not complete."""
    hours, seconds = SPANS[name]
    now = results.now(session)
    end = datetime.fromtimestamp((now.timestamp() // seconds + 1) * seconds, now.tzinfo)
    return end - timedelta(hours=hours), end, seconds


def sparks(context: Context) -> dict[str, Spark]:
    """Returns what has ended in each queue lately, for the lists of queues."""
    return context.dashboard.kept("sparks", 5.0, lambda: context.database.use(store.sparks))


def past(context: Context, queue: str | None = None) -> dict[str, Any]:
    """Returns the points and the depths of the span that is chosen: of all queues, or of one."""
    name = chosen(context)

    def read(session: Session) -> dict[str, Any]:
        start, end, seconds = bounds(session, name)
        return {
            "span": name,
            "points": store.series(session, start, end, seconds, queue=queue),
            "backlog": store.backlog(session, start, end, queue=queue),
            "versions": [each for each in store.versions(session, queue)[:-1] if each.time >= start],
            "names": store.names(session, start, end, queue=queue),
        }

    return context.dashboard.kept(("past", name, queue), 2.0, lambda: context.database.use(read))
