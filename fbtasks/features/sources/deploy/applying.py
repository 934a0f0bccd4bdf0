"""Brings subscriptions in line with definitions, each in one transaction. After each of them it can be gone on.

A statement that was prepared before a trigger was as it is goes on without it, or with the former one, until its
connection prepares another on that table. So the moment is noted from which on connections know it. One that is to go
is made inactive, keeps its rights, and is dropped when no connection is left that may still fire it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from fbtasks.database.values import as_naive_utc
from fbtasks.errors import AuthenticationError, ConflictError, FBTasksError, StatementRefused, TaskDefinitionError
from fbtasks.features.sources.deploy.comparing import Found, Planned, Step, Wanted, compare, refuse_taken, replaces
from fbtasks.features.sources.feeds import Feed, digest
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import condition, ddl, polling, subscriptions
from fbtasks.features.sources.store.capture import resolve
from fbtasks.features.sources.store.ddl import Connection as Connection
from fbtasks.features.sources.store.ddl import Trigger
from fbtasks.features.sources.store.subscriptions import Row
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.features.sources.subscription import EventSource
from fbtasks.firebird.session import Session, Transaction
from fbtasks.system.showing import brief

REGISTERED: Final = ("event", "poll")
"""The kinds that a worker may register: rows alone, without a trigger."""


def _resolve(catalog: Catalog, definition: Feed) -> Wanted:
    source = definition.source
    if isinstance(source, EventSource):
        return Wanted(definition, source.event)
    if isinstance(source, PollSource):
        poll = polling.describe(catalog, source)
        return Wanted(definition, poll.table.name, poll=poll)
    capture = resolve(source, catalog.describe(source.table))
    return Wanted(definition, capture.table.name, capture)


def planned(
    session: Session, app: str, definitions: Iterable[Feed], rows: Iterable[Row], triggers: Mapping[int, Trigger]
) -> tuple[list[Planned], dict[str, str]]:
    """Returns what is to be done for *app*, and what is wrong with definitions, by the names of tasks.

    Raises :class:`ConfigurationError` for a task of another app.
    """
    catalog = Catalog(session)
    wanted: list[Wanted] = []
    problems: dict[str, str] = {}
    for definition in definitions:
        try:
            wanted.append(_resolve(catalog, definition))
        except TaskDefinitionError as error:
            problems[definition.name] = str(error)
    plan = compare(app, wanted, rows, triggers)
    for step, want, _ in plan:
        subject = want and (want.capture or want.poll)
        if subject is not None and step.action != "none":
            try:
                condition.check(session, subject)
            except AuthenticationError:  # of a user who may look and not apply, which then says so
                pass
            except (TaskDefinitionError, StatementRefused) as error:
                problems[step.name] = str(error)
    # What the code has is no orphan, whatever is wrong with it.
    return [each for each in plan if each.step.name not in problems], problems


def compared(
    session: Session, app: str, definitions: Iterable[Feed], *, as_worker: bool = False, alone: bool = False
) -> tuple[list[Planned], dict[str, str]]:
    """Returns the same for what the database has.

    *as_worker*: of what a worker may register. With *alone* what is not in *definitions* is left as it is.
    """
    definitions, rows, triggers = list(definitions), subscriptions.read(session), ddl.found(session)
    names = [each.name for each in definitions]
    if alone:
        rows = [row for row in rows if row.name in names]
    if as_worker:
        refuse_taken(app, names, [row for row in rows if row.is_live])
        others = {row.name for row in rows if row.app == app and row.kind not in REGISTERED and not row.ends}
        definitions = [each for each in definitions if each.kind in REGISTERED and each.name not in others]
        rows = [row for row in rows if row.kind in REGISTERED or row.app != app]
    return planned(session, app, definitions, rows, triggers)


def apply(
    session: Session, app: str, definitions: Iterable[Feed], *, as_worker: bool = False, alone: bool = False
) -> tuple[list[Step], dict[str, str]]:
    """Does that, under the lock. Returns what was done.

    With it what is wrong with definitions that were left as they are, by the names of tasks. Raises
    :class:`AuthenticationError` when the session's user may not do it.
    """
    plan, problems = compared(session, app, definitions, as_worker=as_worker, alone=alone)
    for step, want, found in plan:
        try:
            if want is not None and step.action != "none":
                _put(session, want, found, as_worker=as_worker)
            elif found is not None and step.action == "orphan":
                if as_worker:
                    session.call("FBTASKS_SOURCES.UNHANDLE", found.row.id, app)
                else:
                    session.call("FBTASKS_SOURCES_OWNER.SET_STATE", found.row.id, "orphaned")
        except (AuthenticationError, ConflictError):
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
    is_new = row is None or replaces(wanted, row)
    succeeds = row.id if is_new and row is not None else None

    def work(transaction: Transaction) -> None:
        former = None if is_new or row is None else row.id
        given = wanted.definition, wanted.source, former, succeeds
        number = subscriptions.subscribe(transaction, *given, as_worker=as_worker)
        if wanted.capture is not None:
            text = wanted.trigger(number)
            ddl.put(transaction, number, text, active=row is None or row.held != "silent")
            transaction.execute("subscription_changing", digest(text), number)
        if succeeds is not None and trigger is not None and trigger.active:
            _switch(transaction, succeeds, active=False)

    session.run(work)
    if not as_worker:
        note_changed(session)


def _switch(transaction: Transaction, subscription: int, *, active: bool) -> None:
    """Activates a trigger, or has it inactive. Since when is to be noted after the commit."""
    transaction.execute("subscription_changing", None, subscription)
    ddl.activate(transaction, subscription, active=active)


def note_changed(session: Session) -> None:
    """Notes that the triggers that were changed, also by what was broken off, are as they are since now."""
    session.run(lambda t: t.execute("subscriptions_changed"))


def hold(session: Session, found: Found, held: subscriptions.Held | None) -> None:
    """Has a subscription pause, be silent, or with None go on."""
    active = held != "silent" and found.row.is_live
    _change(session, found, lambda t: t.call("FBTASKS_SOURCES_ADMIN.HOLD", found.row.id, held), active=active)


def begin_drop(session: Session, found: Found) -> None:
    """Has a subscription note nothing more, as far as that can be at once, and give out nothing."""
    _change(session, found, lambda t: t.call("FBTASKS_SOURCES_OWNER.SET_STATE", found.row.id, "dropped"), active=False)


def _change(session: Session, found: Found, write: Callable[[Transaction], object], *, active: bool) -> None:
    """Has *write* write the row of a subscription, and switches its trigger in the same transaction."""
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
        older = [] if trigger is None or row.active_time is None else ddl.older_connections(session, row.active_time)
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


def refused(session: Session, what: str, error: FBTasksError) -> AuthenticationError:
    """Returns the error for what the session's user may not do, which names who may."""
    owner = session.read("database_owner")[0][0]
    return AuthenticationError(
        f"{session.url}: the user may not {what} ({brief(error.__cause__ or error)}). Run the command as the owner "
        f"of the database, {owner}, or as SYSDBA."
    )
