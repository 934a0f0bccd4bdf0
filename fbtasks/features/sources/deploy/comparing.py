"""Compares a definition with the row of its subscription and with the trigger. Asks no database."""

from __future__ import annotations

from collections.abc import Iterable
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
from fbtasks.system.showing import command_line

Action = Literal["create", "alter", "replace", "repair", "orphan", "none"]


class Wanted(NamedTuple):
    """A definition that was brought together with its table."""

    definition: Feed
    source: str
    """The real name of the table, or the event."""
    subject: Capture | Poll | None = None
    """None for an event."""

    def trigger(self, subscription: int) -> str | None:
        """Returns the statement that makes its trigger; None for an event and a polled table, which have none."""
        if not isinstance(self.subject, Capture):
            return None
        return triggers.trigger(subscription, self.definition.name, self.definition.queue, self.subject)


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


def planned(wanted: Wanted, found: Found | None) -> Planned:
    """Returns what is to be done so that the database has a definition of the code."""
    definition = wanted.definition
    action: Action = "create"
    said: list[str] = []
    if found is not None:
        said = differences(wanted, found)
        if replaces(wanted, found.row):
            action = "replace"
        elif found.row.hash != definition.hash:
            action = "alter"
        else:
            action = "repair" if said else "none"
    return Planned(Step(definition.name, definition.source.kind, wanted.source, action, "; ".join(said)), wanted, found)


def orphaned(found: Found) -> Planned:
    """Returns what is to be done with a subscription that the code does not have: it is kept until it is dropped."""
    row = found.row
    action: Action = "none" if row.state == "orphaned" else "orphan"
    reason = "its code is gone: what comes for it is kept, and not given out"
    return Planned(Step(row.name, row.kind, row.source, action, reason), None, found)


def refuse_taken(app: str, names: Iterable[str], rows: Iterable[Row]) -> None:
    """Raises :class:`ConfigurationError` when another app has a subscription for one of the tasks *names*."""
    others = {row.name: row.app for row in rows if row.app != app}
    for name in names:
        if name in others:
            raise ConfigurationError(
                f"a source feeds the task {name!r} of the app {app!r}, and already one of {others[name]!r}. Give "
                f"one of them another name=; or, if that app is gone: "
                f"{command_line('fbtasks subscriptions drop {}', name)}"
            )


def differences(wanted: Wanted, found: Found) -> list[str]:
    """Returns how the database does not have a definition as the code has it, in words."""
    row = found.row
    said = []
    if row.state == "orphaned":
        said.append("its code is back")
    if replaces(wanted, row):
        said.append("its rows are known by other marks" if row.kind == "poll" else "it has another source or order")
    elif row.hash != wanted.definition.hash:
        said.append("the definition has changed")
    said += trigger_problems(found)
    text = wanted.trigger(row.id)
    if row.text_hash is not None and text is not None and digest(text) != row.text_hash:
        said.append("its trigger is made in another way, since the definition, the table or fbtasks has changed")
    return said


def replaces(wanted: Wanted, row: Row) -> bool:
    """Returns whether the definition needs a subscription of its own, behind which that of *row* ends.

    What is noted has been noted for that source, in the lanes of that order; of a polled table, by its marks.
    """
    definition = wanted.definition
    if (definition.source.kind, wanted.source, definition.ordering) != (row.kind, row.source, row.ordering):
        return True
    source = definition.source
    return isinstance(source, PollSource) and source.marks != poll_source(row.definition).marks


def trigger_problems(found: Found) -> list[str]:
    """Returns what is wrong with the trigger of a subscription to a table, in words."""
    row, trigger = found
    if row.kind != "change":
        return []
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
