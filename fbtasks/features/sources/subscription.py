"""A subscription of a task: a source of the database, and the options of delivery."""

import re
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Final

from fbtasks.errors import ConfigurationError, TaskDefinitionError
from fbtasks.features.sources.definition import ChangeSource, Kind, Order, order_check
from fbtasks.features.sources.kinds import events
from fbtasks.features.sources.kinds.changes import Change
from fbtasks.features.sources.kinds.events import Event
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.kinds.rows import Row
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import declare

RUN: Final = 250
"""The most changes that one task is given when they are handled one by one."""
MOST: Final = 10_000
"""The most changes that one batch may have."""
_above_zero: Final = partial(checks.seconds, zero=False)
_EVENT: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,63}")


def event_name(what: str, value: object) -> str:
    """The name of an event."""
    if not isinstance(value, str) or not _EVENT.fullmatch(value):
        raise ConfigurationError(
            f"{what} {checks.shown(value)} must have 1 to 63 letters, digits or one of '_.:/-', such as 'order.paid'."
        )
    return value


def _batch(what: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise ConfigurationError(f"{what} {checks.shown(value)} must be a whole number from 1 to {MOST:,}.")
    return value


@dataclass(frozen=True, kw_only=True)
class EventSource:
    """The event that a task is called for."""

    kind: ClassVar[Kind] = "event"
    event: Annotated[str, event_name]
    order: Annotated[Order | None, order_check] = "key"

    def __post_init__(self) -> None:
        declare.check_fields(self)

    @property
    def name(self) -> str:
        """The event."""
        return self.event

    def __str__(self) -> str:
        return f"the event {self.event!r}"

    def read(self, members: Any) -> Event:
        """Returns the event of a JSON object of the log. Raises :class:`SerializationError` when it is none."""
        return events.read(members)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The options of delivery from a source to its task."""

    coalesce: Annotated[bool, checks.flag] = False
    """Whether all that wait under one key are made into one."""
    batch: Annotated[int | None, optional(_batch)] = None
    """The function is given a list of up to so many; None: it is called for each."""
    after: Annotated[float, checks.seconds] = 0.0
    """Seconds from the first one until the task begins."""
    quiet: Annotated[float | None, optional(_above_zero)] = None
    """Seconds without another one under the key until the task begins; needs *at_most*."""
    at_most: Annotated[float | None, optional(_above_zero)] = None
    """Seconds from the first one after which it begins in spite of *quiet*."""
    stop_on_failure: Annotated[bool, checks.flag] = False
    """Whether what follows under the key waits until a failed one is retried or discarded."""

    def __post_init__(self) -> None:
        declare.check_fields(self)
        if (self.quiet is None) != (self.at_most is None):
            raise TaskDefinitionError(
                "quiet= and at_most= belong together: quiet=2, at_most=30 waits until there has been none for 2 "
                "seconds, but not longer than 30."
            )
        if self.quiet is not None and self.after:
            raise TaskDefinitionError("give either after= or quiet= with at_most=, not both.")
        if self.quiet is not None and self.at_most is not None and self.quiet >= self.at_most:
            raise TaskDefinitionError(
                f"quiet={self.quiet!r} has no effect: the task begins after at_most={self.at_most!r} seconds at the "
                f"latest. Give a longer at_most=, or after={self.at_most!r} alone."
            )
        if self.coalesce and self.batch == 1:
            raise TaskDefinitionError(
                "coalesce= joins those of one task, and batch=1 gives it one. Give a larger batch=, or leave one out."
            )


Source = ChangeSource | EventSource | PollSource
Occurrence = Change | Event | Row
"""What a function is called for."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A source that feeds a task. Raises :class:`TaskDefinitionError` for what contradicts itself."""

    source: Source
    delivery: Delivery

    def __post_init__(self) -> None:
        delivery, order = self.delivery, self.source.order
        if order != "key" and delivery.quiet is not None:
            raise TaskDefinitionError("quiet= waits for each key on its own, and needs order='key'.")
        if order is None and delivery.stop_on_failure:
            raise TaskDefinitionError("stop_on_failure= stops what follows in order, and needs order='key' or 'total'.")
        if order is None and delivery.coalesce and delivery.batch is None:
            raise TaskDefinitionError("coalesce= joins those of one task: give batch= as well, or order='key'.")

    @property
    def most(self) -> int:
        """The most that one task is given."""
        return self.delivery.batch or (1 if self.source.order is None else RUN)
