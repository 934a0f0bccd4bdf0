"""Brings subscriptions in line with definitions, each in one transaction. After each of them it can be gone on.

A statement that was prepared before a trigger was as it is goes on without it, or with the former one, until its
connection prepares another on that table. So the moment is noted from which on connections know it. One that is to go
is made inactive, keeps its rights, and is dropped when no connection is left that may still fire it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress

from fbtasks.database.values import as_naive_utc
from fbtasks.errors import AuthenticationError, ConfigurationError, StatementRefused, TaskDefinitionError
from fbtasks.features.sources.deploy.comparing import (
    Found,
    Planned,
    Step,
    Wanted,
    orphaned,
    planned,
    refuse_taken,
    replaces,
    trigger_problems,
)
from fbtasks.features.sources.feeds import Feed, digest
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import condition, ddl, polling, subscriptions
from fbtasks.features.sources.store.capture import describe
from fbtasks.features.sources.store.ddl import Connection as Connection
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.features.sources.subscription import EventSource
from fbtasks.firebird.session import Session, Transaction


def _resolve(catalog: Catalog, definition: Feed) -> Wanted:
    source = definition.source
    if isinstance(source, EventSource):
        return Wanted(definition, source.event)
    subject = polling.describe(catalog, source) if isinstance(source, PollSource) else describe(catalog, source)
    return Wanted(definition, subject.table.name, subject)


def compared(
    session: Session, app: str, definitions: Iterable[Feed], *, as_worker: bool = False, alone: bool = False
) -> tuple[list[Planned], dict[str, str]]:
    """Returns what is to be done so that the database has what the code of *app* says.

    With it what is wrong with definitions, by the names of tasks. *as_worker*: of what a worker may register, which has
    no trigger. With *alone* what is not in *definitions* is left as it is. Raises :class:`ConfigurationError` for a
    task of another app.
    """
    definitions, rows, triggers = list(definitions), subscriptions.live(session), ddl.found(session)
    names = {each.name for each in definitions}
    refuse_taken(app, names, rows)
    left = {
        row.name: Found(row, triggers.get(row.id))
        for row in rows
        if row.app == app and (row.name in names or not alone)
    }
    if as_worker:
        changes = {name for name, found in left.items() if found.row.kind == "change"}
        definitions = [each for each in definitions if each.source.kind != "change" and each.name not in changes]
        left = {name: found for name, found in left.items() if name not in changes}
    catalog = Catalog(session)
    plan: list[Planned] = []
    problems: dict[str, str] = {}
    for definition in definitions:
        found = left.pop(definition.name, None)  # what the code has is no orphan, whatever is wrong with it
        try:
            wanted = _resolve(catalog, definition)
            each = planned(wanted, found)
            if wanted.subject is not None and each.step.action != "none":
                with suppress(AuthenticationError):  # of a user who may look and not apply, which then says so
                    condition.check(session, wanted.subject)
            plan.append(each)
        except (TaskDefinitionError, StatementRefused) as error:
            problems[definition.name] = str(error)
    return plan + [orphaned(found) for found in left.values()], dict(sorted(problems.items()))


def undeployed(session: Session, app: str, definitions: Collection[Feed]) -> dict[str, str]:
    """Returns why the database does not have definitions of *app* as its code has them, by the names of tasks.

    Where it has them two statements tell. Without definitions it asks nothing.
    """
    if not definitions:
        return {}
    rows = {row.name: row for row in subscriptions.live(session) if row.app == app}
    triggers = ddl.found(session)
    stale = [
        each
        for each in definitions
        if (row := rows.get(each.name)) is None
        or (row.hash, row.state == "orphaned") != (each.hash, False)
        or trigger_problems(Found(row, triggers.get(row.id)))
    ]
    if not stale:
        return {}
    try:
        plan, problems = compared(session, app, stale, alone=True)
    except ConfigurationError as error:  # a task is another app's: nothing of this one is deployed
        return dict.fromkeys((each.name for each in stale), str(error))
    return problems | {
        step.name: step.reason or ("it has no trigger yet" if step.kind == "change" else "it is not registered yet")
        for step, _, _ in plan
        if step.action != "none"
    }


def apply(
    session: Session, app: str, definitions: Iterable[Feed], *, as_worker: bool = False, alone: bool = False
) -> tuple[list[Step], dict[str, str]]:
    """Does that, under the lock. Returns what was done.

    With it what is wrong with definitions that were left as they are, by the names of tasks. Raises
    :class:`AuthenticationError` when the session's user may not do it.
    """
    plan, problems = compared(session, app, definitions, as_worker=as_worker, alone=alone)
    for step, wanted, found in plan:
        if step.action == "none":
            continue
        try:
            if wanted is not None:
                _put(session, wanted, found, as_worker=as_worker)
            elif found is not None and as_worker:
                session.call("FBTASKS_SOURCES.UNHANDLE", found.row.id, app)
            elif found is not None:
                session.call("FBTASKS_SOURCES_OWNER.SET_STATE", found.row.id, "orphaned")
        except AuthenticationError:
            raise
        except StatementRefused as error:
            problems[step.name] = str(error)
    if any(step.kind == "event" and step.action == "create" for step, _, _ in plan):
        # The events that are kept since they had no handler, when all of the new ones are registered. Where they are
        # many, these are the first: the others are handed on in steps, with other work between them.
        session.call("FBTASKS_SOURCES_UPKEEP.HAND_ON_EVENTS", subscriptions.EVENTS)
    return [step for step, _, _ in plan if step.name not in problems], problems


def _put(session: Session, wanted: Wanted, found: Found | None, *, as_worker: bool) -> None:
    """Makes a subscription, or brings it in line with its definition; one takes the place of another at once."""
    row, trigger = found or (None, None)
    succeeds = row.id if row is not None and replaces(wanted, row) else None
    former = None if row is None or succeeds is not None else row.id

    def work(transaction: Transaction) -> None:
        number = subscriptions.subscribe(
            transaction, wanted.definition, wanted.source, former, succeeds, as_worker=as_worker
        )
        if (text := wanted.trigger(number)) is not None:
            ddl.put(transaction, number, text, active=row is None or row.held != "silent")
            transaction.execute("subscription_changing", digest(text), number)
        if succeeds is not None and trigger is not None and trigger.active:
            _switch(transaction, succeeds, active=False)

    session.run(work)
    if not as_worker:
        note_changed(session)


def _switch(transaction: Transaction, subscription: int, *, active: bool) -> None:
    """Activates or deactivates a trigger. Since when is noted after the commit."""
    transaction.execute("subscription_changing", None, subscription)
    ddl.activate(transaction, subscription, active=active)


def note_changed(session: Session) -> None:
    """Notes that the triggers that were changed, also by what was broken off, are as they are since now."""
    session.run(lambda t: t.execute("subscriptions_changed"))


def hold(session: Session, found: Found, held: subscriptions.Held | None) -> None:
    """Pauses or silences a subscription, or with None lets it go on."""
    active = held != "silent" and found.row.is_live
    _change(session, found, lambda t: t.call("FBTASKS_SOURCES_ADMIN.HOLD", found.row.id, held), active=active)


def begin_drop(session: Session, found: Found) -> None:
    """Stops a subscription: it notes nothing more, as far as that can be at once, and gives out nothing."""
    _change(session, found, lambda t: t.call("FBTASKS_SOURCES_OWNER.SET_STATE", found.row.id, "dropped"), active=False)


def _change(session: Session, found: Found, write: Callable[[Transaction], object], *, active: bool) -> None:
    """Writes the row of a subscription by *write*, and switches its trigger in the same transaction."""
    row, trigger = found
    changes = trigger is not None and trigger.active != active

    def work(transaction: Transaction) -> None:
        write(transaction)
        if changes:
            _switch(transaction, row.id, active=active)

    session.run(work)
    if changes:
        note_changed(session)


def finish(session: Session) -> dict[int, tuple[list[Connection], bool]]:
    """Goes on with what is to go: what was dropped, and what another one has replaced and is done.

    Returns of those that remain, by their ids, the connections that may still fire the trigger, and whether tasks run.
    """
    note_changed(session)
    found: dict[int, tuple[list[Connection], bool]] = {}
    triggers = ddl.found(session)
    for row in subscriptions.read(session):
        trigger = triggers.get(row.id)
        if row.is_live:
            continue
        older = ddl.older_writers(session, [row] if trigger is not None else [])
        if row.state != "dropped":
            # A transaction may still see the handler of an event that another one has replaced.
            seen = row.kind == "event" and session.read("source_transactions", as_naive_utc(row.active_time))
            if older or seen or not subscriptions.is_done(session, row.id):
                continue
            begin_drop(session, Found(row, trigger))
        erased = subscriptions.erase(session, row.id)
        if older or not erased:
            found[row.id] = older, not erased
            continue
        if trigger is not None:
            ddl.drop(session, row.id)
        while not session.call("FBTASKS_SOURCES_OWNER.FORGET_SUBSCRIPTION", row.id):
            if not subscriptions.erase(session, row.id):
                found[row.id] = [], True
                break
    return found
