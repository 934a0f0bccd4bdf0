"""Periodic tasks as an app defines them: the options of ``app.periodic`` and ``app.add_periodic``."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

from fbtasks.errors import TaskDefinitionError
from fbtasks.features.schedules.ticking import Missed, cron_text, every_ms
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import windows
from fbtasks.tasks.call import Call
from fbtasks.tasks.declare import check_fields

_missed: Final = checks.one_of({"one": "one task for all missed ticks", "skip": "none", "all": "one for each"})


def _every(what: str, value: object) -> object:
    every_ms(what, value)
    return value


@dataclass(frozen=True, kw_only=True)
class TickOptions:
    """When a task is called, and with what. Raises :class:`ConfigurationError` and :class:`TaskDefinitionError`."""

    cron: Annotated[str | None, optional(cron_text)] = None
    """Minute, hour, day of the month, month, day of the week; or ``@daily`` and its like."""
    every: Annotated[float | timedelta | None, optional(_every)] = None
    """A timedelta, or seconds."""
    tz: Annotated[str | None, optional(windows.zone)] = None
    """The zone whose wall clock *cron* reads; None: the app's timezone, or UTC when it names none."""
    missed: Annotated[Missed, _missed] = "one"
    """What becomes of ticks at which no worker was there."""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    paused: Annotated[bool, checks.flag] = False
    """Whether it does not tick before an operator resumes it."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.cron is not None and self.every is not None:
            raise TaskDefinitionError(f"cron={self.cron!r} and every={self.every!r} both say when: give one of them.")
        if self.cron is None and self.every is None:
            raise TaskDefinitionError(
                "it is not said when the task is called: give cron='*/5 * * * *' or every=timedelta(hours=1)."
            )
        if self.tz is not None and self.cron is None:
            raise TaskDefinitionError(f"tz={self.tz!r} is the zone of cron=, and every= has none: leave it out.")


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions(TickOptions):
    """The options of ``app.add_periodic()``."""

    name: Annotated[str | None, optional(partial(checks.name, most=255))] = None
    """The name of the schedule; None: that of its task."""
    queue: Annotated[str | None, optional(checks.queue_name)] = None
    priority: Annotated[int | None, optional(checks.priority)] = None
    """None, as for the queue: as the task says."""


class Schedule(NamedTuple):
    """A periodic task as its app defines it."""

    name: str
    cron: str | None
    every_ms: int | None
    tz: str | None
    missed: Missed
    paused: bool
    call: Call

    @property
    def expire_ms(self) -> int | None:
        """Milliseconds after which a task that has not begun is cancelled."""
        expires = self.call.expires
        return expires // timedelta(milliseconds=1) if isinstance(expires, timedelta) else None

    @property
    def text(self) -> str:
        """The definition as JSON, as the database keeps it."""
        call = self.call
        found = {
            "task": call.name, "cron": self.cron, "every_ms": self.every_ms, "tz": self.tz, "missed": self.missed,
            "paused": self.paused, "queue": call.queue, "priority": call.priority, "expire_ms": self.expire_ms,
            "content_type": call.content_type, "payload": hashlib.sha256(call.payload).hexdigest(),
            "gates": [[gate.limit, gate.lane, gate.keeps] for gate in call.gates] or None,
        }  # fmt: skip
        return json.dumps({name: value for name, value in found.items() if value is not None}, sort_keys=True)

    @property
    def hash(self) -> str:
        """What tells it from another one."""
        return hashlib.sha256(self.text.encode()).hexdigest()
