"""What differs between a definition, the row of its subscription and the trigger. No database is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fbtasks.errors import ConfigurationError
from fbtasks.features.sources.feeds import Feed, digest, poll_source
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import triggers
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.ddl import Trigger
from fbtasks.features.sources.store.polls import Poll
from fbtasks.features.sources.store.subscriptions import Row

Action = Literal["create", "alter", "replace", "repair", "orphan", "none"]


class Wanted(NamedTuple):
    """A definition that was brought together with its table."""

    definition: Feed
    source: str
    """The real name of the table, or the event."""
    capture: Capture | None = None
    """None for an event and for a polled table, which have no trigger."""
    poll: Poll | None = None
    """How a polled table is polled."""

    def trigger(self, subscription: int) -> str:
        """Returns the statement that makes its trigger, for the subscription of that number."""
        assert self.capture is not None
        return triggers.trigger(subscription, self.definition.name, self.definition.queue, self.capture)


@dataclass(frozen=True, slots=True)
class Step:
    """What is to be done for one task, or was."""

    name: str
    kind: str
    source: str
    action: Action
    reason: str = ""


class Found(NamedTuple):
    """A subscription as the database has it, and its trigger."""

    row: Row
    trigger: Trigger | None


class Planned(NamedTuple):
    """A step, and what it is made from."""

    step: Step
    wanted: Wanted | None
    """None: the code does not have it."""
    found: Found | None
    """None: the database does not have it."""


def compare(app: str, wanted: Iterable[Wanted], rows: Iterable[Row], triggers: Mapping[int, Trigger]) -> list[Planned]:
    """Returns what is to be done so that the tables say what the code of *app* says.

    What has vanished from the code is kept and reported: to drop it is for an operator. Raises
    :class:`ConfigurationError` for a task of another app.
    """
    wished, rows = list(wanted), [row for row in rows if row.is_live]
    refuse_taken(app, [each.definition.name for each in wished], rows)
    known = {row.name: Found(row, triggers.get(row.id)) for row in rows if row.app == app}
    plan = [_planned(each, known.pop(each.definition.name, None)) for each in wished]
    reason = "its code is gone: what comes for it is kept, and not given out"
    for name, found in known.items():
        action: Action = "none" if found.row.state == "orphaned" else "orphan"
        plan.append(Planned(Step(name, found.row.kind, found.row.source, action, reason), None, found))
    return plan


def _planned(wanted: Wanted, found: Found | None) -> Planned:
    action: Action = "create"
    said: list[str] = []
    if found is not None:
        said = differences(wanted, found)
        action = "repair" if said else "none"
        if replaces(wanted, found.row):
            action = "replace"
        elif found.row.hash != wanted.definition.hash:
            action = "alter"
    definition = wanted.definition
    return Planned(Step(definition.name, definition.kind, wanted.source, action, "; ".join(said)), wanted, found)


def refuse_taken(app: str, names: Iterable[str], rows: Iterable[Row]) -> None:
    """Raises :class:`ConfigurationError` when another app has a subscription for one of the tasks *names*."""
    others = {row.name: row.app for row in rows if row.app != app}
    for name in names:
        if name in others:
            raise ConfigurationError(
                f"a source feeds the task {name!r} of the app {app!r}, and already one of {others[name]!r}. Give "
                f"one of them another name=; or, if that app is gone: fbtasks subscriptions drop {name}"
            )


def differences(wanted: Wanted, found: Found) -> list[str]:
    """Returns how what is found is not as it is wanted, in words."""
    row, definition = found.row, wanted.definition
    said = []
    if row.state == "orphaned":
        said.append("its code is back")
    if replaces(wanted, row):
        said.append("its rows are known by other marks" if row.kind == "poll" else "it has another source or order")
    elif row.hash != definition.hash:
        said.append("the definition has changed")
    if row.kind == "change":
        said += trigger_problems(found)
        if wanted.capture is not None and row.text_hash not in (None, digest(wanted.trigger(row.id))):
            said.append("its trigger is made in another way, since the definition, the table or fbtasks has changed")
    return said


def replaces(wanted: Wanted, row: Row) -> bool:
    """Whether the definition needs a subscription of its own, behind which that of *row* ends.

    What is noted has been noted for that source, in the lanes of that order; of a polled table, by its marks.
    """
    definition = wanted.definition
    if (definition.kind, wanted.source, definition.ordering) != (row.kind, row.source, row.ordering):
        return True
    source = definition.source
    return isinstance(source, PollSource) and source.marks != poll_source(row.definition).marks


def trigger_problems(found: Found) -> list[str]:
    """Returns what is wrong with the trigger of a subscription to a table, in words."""
    row, trigger = found
    if row.active_time is None:
        return ["it was not finished"]
    if trigger is None or trigger.table != row.source:
        return ["its trigger is missing"]
    said = []
    if trigger.active == (row.held == "silent"):
        said.append("its trigger is active" if trigger.active else "its trigger is inactive")
    if trigger.hash != row.trigger_hash:
        said.append("its trigger was edited")
    return said
