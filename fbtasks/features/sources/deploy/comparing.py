"""What differs between a definition, the row of its subscription and the trigger. No database is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from fbtasks.errors import ConfigurationError
from fbtasks.features.sources.feeds import Definition, poll_source
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.ddl import Trigger
from fbtasks.features.sources.store.polls import Poll
from fbtasks.features.sources.store.subscriptions import Row

Action = Literal["create", "alter", "replace", "repair", "orphan", "none"]


class Wanted(NamedTuple):
    """A definition that was brought together with its table."""

    definition: Definition
    source: str
    """The real name of the table, or the event."""
    capture: Capture | None = None
    """None for an event and for a polled table, which have no trigger."""
    poll: Poll | None = None
    """How a polled table is polled."""


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


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is to be done, by the names of tasks, so that the tables say what the code says.

    What has vanished from the code is kept and reported: to drop it is for an operator.
    """

    create: dict[str, Wanted]
    change: dict[str, tuple[Wanted, Found]]
    keep: dict[str, Wanted]
    """What is as it should be."""
    orphans: dict[str, Found]
    """What the code does not have."""

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self.create or self.change or self.orphans)


def compare(
    app: str, wanted: Iterable[Wanted], rows: Iterable[Row], triggers: Mapping[int, Trigger], texts: Mapping[str, str]
) -> Comparison:
    """Returns what is to be done for the definitions of *app*.

    *texts* has, by the names of tasks, the hash of the text that the trigger would be made of now, where that is known.
    Raises :class:`ConfigurationError` for a task of another app.
    """
    wished = {each.definition.name: each for each in wanted}
    rows = [row for row in rows if row.is_live]
    refuse_taken(app, wished, rows)
    plan = Comparison({}, {}, {}, {row.name: Found(row, triggers.get(row.id)) for row in rows if row.app == app})
    for name, want in wished.items():
        has = plan.orphans.pop(name, None)
        if has is None:
            plan.create[name] = want
        elif differences(want, has, texts.get(name)):
            plan.change[name] = want, has
        else:
            plan.keep[name] = want
    return plan


def refuse_taken(app: str, names: Iterable[str], rows: Iterable[Row]) -> None:
    """Raises :class:`ConfigurationError` when another app has a subscription for one of the tasks *names*."""
    others = {row.name: row.app for row in rows if row.app != app}
    for name in names:
        if name in others:
            raise ConfigurationError(
                f"a source feeds the task {name!r} of the app {app!r}, and already one of {others[name]!r}. Give "
                f"one of them another name=; or, if that app is gone: fbtasks subscriptions drop {name}"
            )


def differences(wanted: Wanted, found: Found, text_hash: str | None = None) -> list[str]:
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
        if text_hash is not None and row.text_hash not in (None, text_hash):
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


def steps(plan: Comparison) -> list[Step]:
    """Returns what is to be done, for people and scripts."""
    found = [Step(name, each.definition.kind, each.source, "create") for name, each in plan.create.items()]
    for name, (wanted, has) in plan.change.items():
        action: Action = "repair"
        if replaces(wanted, has.row):
            action = "replace"
        elif has.row.hash != wanted.definition.hash:
            action = "alter"
        reason = (
            "; ".join(differences(wanted, has))
            or "its trigger is made in another way: the table or fbtasks has changed"
        )
        found.append(Step(name, wanted.definition.kind, wanted.source, action, reason))
    for name, has in plan.orphans.items():
        known = has.row.state == "orphaned"
        reason = "its code is gone: what comes for it is kept, and not given out"
        found.append(Step(name, has.row.kind, has.row.source, "none" if known else "orphan", reason))
    found += [Step(name, each.definition.kind, each.source, "none") for name, each in plan.keep.items()]
    return found
