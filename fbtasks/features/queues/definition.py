"""Queues as an app defines them: how much each may hold, when its tasks may run, and how they age."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks import windows
from fbtasks.tasks.declare import check_fields
from fbtasks.tasks.windows import Window, check_window_options, window_of

WhenFull = Literal["wait", "reject", "drop_oldest", "drop_newest"]
_when_full: Final = checks.one_of(
    {
        "wait": "the call waits",
        "reject": "it raises QueueFull",
        "drop_oldest": "of the lowest priority, the task that is ready for longest is cancelled",
        "drop_newest": "the new one is cancelled",
    }
)
WAIT_FOR: Final = 30.0
"""Seconds for which a call waits that is not told for how long."""
LONGEST: Final = 1_000_000


@dataclass(frozen=True, kw_only=True)
class QueueOptions:
    """The options of ``app.queue()``. Raises :class:`ConfigurationError` for a value that cannot be used."""

    max_length: Annotated[int | None, optional(partial(checks.number, least=1, most=LONGEST, unit="tasks"))] = None
    """Tasks that have not ended which the queue may hold; None: any number."""
    when_full: Annotated[WhenFull, _when_full] = "wait"
    wait_for: Annotated[float | None, optional(checks.seconds)] = None
    """Seconds for which a call waits when the queue is full; None: 30."""
    run_between: Annotated[tuple[str, str] | None, optional(windows.hours)] = None
    days: Annotated[str | None, optional(windows.day_names)] = None
    tz: Annotated[str | None, optional(windows.zone)] = None
    """The zone of the window; None: the app's timezone, or UTC when it names none."""

    age: Annotated[float | None, optional(partial(checks.seconds, zero=False))] = None
    """Seconds for which a ready task waits until it is on a level with one that comes then and whose priority is one
    higher; None: for ever."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_window_options(self.run_between, self.days, self.tz)
        if self.max_length is None and (self.when_full != "wait" or self.wait_for is not None):
            raise ConfigurationError("when_full= and wait_for= are of a queue with a limit: give max_length= as well.")
        if self.wait_for is not None and self.when_full != "wait":
            raise ConfigurationError(f"wait_for= is of when_full='wait', and not of {self.when_full!r}.")


@dataclass(frozen=True, slots=True)
class QueueDefinition:
    """A queue as its app defines it."""

    queue: str
    max_length: int | None
    when_full: str | None
    wait_for: float
    window: Window | None
    age: float | None

    @property
    def age_ms(self) -> int | None:
        """The age in milliseconds, as the database has it."""
        return None if self.age is None else max(1, round(self.age * 1000))

    @property
    def text(self) -> str:
        """The definition as JSON, as the database keeps it."""
        window = self.window
        found: dict[str, Any] = {}
        if self.max_length is not None:
            found |= {"max_length": self.max_length, "when_full": self.when_full}
        if window is not None:
            found |= {"run_between": window.run_between, "days": window.days, "tz": window.tz}
        found["age"] = self.age
        return json.dumps({name: value for name, value in found.items() if value is not None}, sort_keys=True)

    @property
    def hash(self) -> str:
        """What tells it from another one."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def define_queue(queue: str, options: QueueOptions, default_tz: str) -> QueueDefinition:
    """Returns the definition that *options* make of *queue*."""
    return QueueDefinition(
        queue,
        options.max_length,
        None if options.max_length is None else options.when_full,
        WAIT_FOR if options.wait_for is None else options.wait_for,
        window_of(options.run_between, options.days, options.tz, default_tz),
        options.age,
    )


def describe_window(found: Mapping[str, Any]) -> str:
    """Returns the window of a definition, for people: ``22:00-06:00 mon-fri Europe/Berlin``."""
    parts = ("-".join(found.get("run_between") or ()), found.get("days") or "", found.get("tz") or "")
    return " ".join(part for part in parts if part)


def window_from(text: str) -> Window | None:
    """Returns the window of a definition in JSON. Raises :class:`ConfigurationError` for a zone not known here."""
    found = json.loads(text)
    between = found.get("run_between")
    return window_of(tuple(between) if between else None, found.get("days"), found.get("tz"), "UTC")
