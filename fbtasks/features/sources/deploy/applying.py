"""Brings subscriptions in line with definitions, one transaction after another. After each of them it can be gone on.

A statement that was prepared before a trigger was as it is goes on without it, or with the former one, until its
connection prepares another on that table. So a new trigger is made inactive, with its rights, and then activated. One
that is to go is made inactive, keeps its rights, and is dropped when no connection is left that may still fire it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Final, NamedTuple

from fbtasks.database.values import as_naive_utc
from fbtasks.errors import (
    AuthenticationError,
    ConflictError,
    FBTasksError,
    StatementRefused,
    TaskDefinitionError,
)
from fbtasks.features.sources.deploy.comparing import Comparison, Found, Wanted, compare, refuse_taken, replaces, steps
from fbtasks.features.sources.deploy.comparing import Step as Step
from fbtasks.features.sources.feeds import Definition, digest
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.store import condition, ddl, polling, subscriptions, triggers
from fbtasks.features.sources.store.capture import Capture, resolve
from fbtasks.features.sources.store.ddl import Connection as Connection
from fbtasks.features.sources.store.ddl import Trigger
from fbtasks.features.sources.store.subscriptions import Row
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.features.sources.subscription import EventSource
from fbtasks.firebird.session import Session, Transaction
from fbtasks.system.showing import brief


class Resolved(NamedTuple):
    """The definitions that the database can have, and what is wrong with the others."""

    wanted: list[Wanted]
    problems: dict[str, str]
    """By the names of tasks."""


class Remains(NamedTuple):
    """What keeps a dropped subscription from being gone."""

    connections: list[Connection]
    """Those that may still fire its trigger."""
    tasks: bool
    """Whether tasks of it run."""

    def __bool__(self) -> bool:
        """Whether it is not gone."""
        return bool(self.connections) or self.tasks


def resolved(session: Session, definitions: Iterable[Definition]) -> Resolved:
    """Brings definitions together with their tables."""
    found, catalog = Resolved([], {}), Catalog(session)
    for definition in definitions:
        try:
            found.wanted.append(_resolve(catalog, definition))
        except TaskDefinitionError as error:
            found.problems[definition.name] = str(error)
    return found


def _resolve(catalog: Catalog, definition: Definition) -> Wanted:
    source = definition.source
    if isinstance(source, EventSource):
        return Wanted(definition, source.event)
    if isinstance(source, PollSource):
        poll = polling.describe(catalog, source)
        return Wanted(definition, poll.table.name, poll=poll)
    capture = resolve(source, catalog.describe(source.table))
    return Wanted(definition, capture.table.name, capture)


def text_hashes(wanted: Iterable[Wanted], rows: Iterable[Row]) -> dict[str, str]:
    """Returns the hashes of the texts of which triggers that exist would be made now, by the names of tasks."""
    ids = {row.name: row.id for row in rows if row.is_live}
    return {
        each.definition.name: _text_hash(ids[each.definition.name], each)
        for each in wanted
        if each.capture is not None and each.definition.name in ids
    }


def _text_hash(subscription: int, wanted: Wanted) -> str:
    assert wanted.capture is not None
    return digest(triggers.trigger(subscription, wanted.definition.name, wanted.definition.feed.queue, wanted.capture))


def apply(session: Session, app: str, definitions: Iterable[Definition]) -> tuple[list[Step], dict[str, str]]:
    """Brings the subscriptions of *app* in line with *definitions*, under the lock. Returns what was done.

    With it what is wrong with those that were left as they are, by the names of tasks. Raises
    :class:`AuthenticationError` when the session's user may not do it.
    """
    rows, triggers = subscriptions.read(session), ddl.found(session)
    plan, problems = planned(session, app, definitions, rows, triggers)
    done = steps(plan)
    for want, found in [(each, None) for each in plan.create.values()] + list(plan.change.values()):
        name = want.definition.name
        ending = [row for row in rows if row.name == name and row.ends and _fires(triggers.get(row.id))]
        try:
            _put(session, want, _placement(want, found, ending))
        except (AuthenticationError, ConflictError):
            raise
        except StatementRefused as error:
            problems[name] = str(error)
    _hand_on_events(session, plan)
    for has in plan.orphans.values():
        if has.row.state != "orphaned":
            session.call("FBTASKS_SOURCES_OWNER.ORPHAN", has.row.id)
    return [step for step in done if step.name not in problems], problems


def planned(
    session: Session, app: str, definitions: Iterable[Definition], rows: list[Row], triggers: Mapping[int, Trigger]
) -> tuple[Comparison, dict[str, str]]:
    """Returns what is to be done for *app*, and what is wrong with definitions, by the names of tasks."""
    wanted, problems = resolved(session, definitions)
    plan = compare(app, wanted, rows, triggers, text_hashes(wanted, rows))
    for each in [*plan.create.values(), *(each for each, _ in plan.change.values())]:
        if (problem := _condition_problem(session, each)) is not None:
            problems[each.definition.name] = problem
    for name in problems:
        plan.create.pop(name, None)
        plan.change.pop(name, None)
        plan.orphans.pop(name, None)  # what the code has is no orphan
    return plan, problems


def refusals(session: Session, definitions: Iterable[Definition]) -> dict[str, str]:
    """Returns what is wrong with those *definitions* that the database cannot have, by the names of tasks."""
    wanted, problems = resolved(session, definitions)
    for each in wanted:
        if (problem := _condition_problem(session, each)) is not None:
            problems[each.definition.name] = problem
    return problems


def _condition_problem(session: Session, wanted: Wanted) -> str | None:
    """Returns why the condition of a definition does not compile. Nothing of the attempt is left."""
    try:
        if wanted.capture is not None:
            condition.check_condition(session, wanted.capture)
        if wanted.poll is not None:
            condition.check_poll(session, wanted.poll)
    except AuthenticationError:  # of a user who may look and not apply, which then says so
        return None
    except (TaskDefinitionError, StatementRefused) as error:
        return str(error)
    return None


def _fires(trigger: Trigger | None) -> bool:
    return trigger is not None and trigger.active


class _Placement(NamedTuple):
    """Where a definition goes: to a new subscription, into one that is there, or into the place of one that ends."""

    changes: int | None = None
    """The subscription that has it from now on; None: a new one."""
    succeeds: int | None = None
    """The one that the new one takes the place of."""
    silent: bool = False
    """Whether an operator wants its trigger inactive."""
    has_trigger: bool = False
    """Whether its trigger is finished, and is changed while statements may fire it."""
    ending: tuple[Row, ...] = ()
    """Those that end and whose trigger still fires: until that of this one does."""


def _placement(wanted: Wanted, found: Found | None, ending: Iterable[Row]) -> _Placement:
    if found is None:
        return _Placement(ending=tuple(ending))
    row, trigger = found
    silent = row.held == "silent"
    if replaces(wanted, row):
        former = (row,) if _fires(trigger) else ()
        return _Placement(succeeds=row.id, silent=silent, ending=(*ending, *former))
    # One that is active stays so, also where an earlier apply ended before it had noted since when.
    finished = trigger is not None and (trigger.active or row.active_time is not None)
    return _Placement(changes=row.id, silent=silent, has_trigger=finished, ending=tuple(ending))


def _put(session: Session, wanted: Wanted, place: _Placement) -> None:
    """Makes a subscription, or brings it in line with its definition."""
    if wanted.capture is None:
        session.run(lambda t: _put_row(t, wanted, place))
    else:
        number = (_change_trigger if place.has_trigger else _make_trigger)(session, wanted, wanted.capture, place)
        session.run(lambda t: subscriptions.note_active(t, number, _text_hash(number, wanted)))
    for each in place.ending:
        _note(session, each)


def _subscribe(transaction: Transaction, wanted: Wanted, place: _Placement) -> int:
    return subscriptions.subscribe(transaction, wanted.definition, wanted.source, place.changes, place.succeeds)


def _put_row(transaction: Transaction, wanted: Wanted, place: _Placement) -> None:
    _subscribe(transaction, wanted, place)
    _activate(transaction, None, place.ending)


def _make_trigger(session: Session, wanted: Wanted, capture: Capture, place: _Placement) -> int:
    """First inactive, then with its rights, and then active. Returns the number of its subscription."""
    number = session.run(lambda t: _put_trigger(t, wanted, capture, place, active=False))
    rights = condition.rights_of_condition(session, number)
    session.run(lambda t: _activate(t, None if place.silent else number, place.ending, rights))
    return number


def _change_trigger(session: Session, wanted: Wanted, capture: Capture, place: _Placement) -> int:
    """First its new rights, then its new text: statements go on firing it. Returns the number of its subscription."""
    assert place.changes is not None
    rights = _rights_for(session, place.changes, capture)
    return session.run(lambda t: _put_trigger(t, wanted, capture, place, rights, active=not place.silent))


def _hand_on_events(session: Session, plan: Comparison) -> None:
    """Gives the events that are kept since they had no handler to the new ones, when all of them are registered.

    Where they are many, these are the first: the others are handed on in steps, with other work between them.
    """
    if any(each.definition.kind == "event" for each in plan.create.values()):
        session.call("FBTASKS_SOURCES_UPKEEP.HAND_ON_EVENTS", subscriptions.EVENTS)


def _rights_for(session: Session, subscription: int, capture: Capture) -> list[str]:
    """Returns the statements that grant a trigger what its new condition needs, as an inactive one shows."""
    if capture.source.when is None:
        return []
    number = session.run(lambda t: t.value("subscription_number"))
    own, trial = ddl.trigger_name(subscription), ddl.trigger_name(number)
    session.run(lambda t: t.script(triggers.trial(capture, trial)))  # inactive, with nothing but the condition
    try:
        found = condition.rights_of_condition(session, number)
    finally:
        ddl.drop(session, number)
    return [f"{each.removesuffix(trial)}{own}" for each in found]


def _put_trigger(
    transaction: Transaction,
    wanted: Wanted,
    capture: Capture,
    place: _Placement,
    rights: Iterable[str] = (),
    *,
    active: bool,
) -> int:
    definition = wanted.definition
    number = _subscribe(transaction, wanted, place)
    for statement in rights:
        transaction.script(statement)
    ddl.put(transaction, number, definition.name, definition.feed.queue, capture, active=active)
    return number


def _activate(transaction: Transaction, number: int | None, ending: Iterable[Row], rights: Iterable[str] = ()) -> None:
    """One trigger in the place of others, at once: no statement fires both, or none."""
    for statement in rights:
        transaction.script(statement)
    if number is not None:
        ddl.activate(transaction, number)
    for row in ending:
        _change(transaction, row, active=False)


def _change(transaction: Transaction, row: Row, *, active: bool) -> None:
    """Activates the trigger of *row*, or has it inactive. Since when is to be noted after the commit."""
    transaction.execute("subscription_changing", row.id)
    ddl.activate(transaction, row.id, active=active)


def _note(session: Session, row: Row) -> None:
    """Notes since when the trigger of *row* is as it is."""
    session.run(lambda t: subscriptions.note_active(t, row.id, row.text_hash or ""))


def hold(session: Session, found: Found, held: subscriptions.Held | None) -> None:
    """Has a subscription pause, be silent, or with None go on."""
    row, trigger = found
    active = held != "silent" and row.is_live
    changes = trigger is not None and trigger.active != active

    def work(transaction: Transaction) -> None:
        transaction.call("FBTASKS_SOURCES_ADMIN.HOLD", row.id, held)
        if changes:
            _change(transaction, row, active=active)

    session.run(work)
    if changes:
        _note(session, row)


def begin_drop(session: Session, found: Found) -> None:
    """Has a subscription note nothing more, as far as that can be at once, and give out nothing."""
    row, trigger = found

    def work(transaction: Transaction) -> None:
        transaction.call("FBTASKS_SOURCES_OWNER.UNSUBSCRIBE", row.id)
        if _fires(trigger):
            _change(transaction, row, active=False)

    session.run(work)
    if _fires(trigger):
        _note(session, row)


def finish(session: Session) -> dict[int, Remains]:
    """Goes on with what is to go: what was dropped, and what another one has replaced and is done.

    Returns what keeps those that remain, by their ids.
    """
    found: dict[int, Remains] = {}
    triggers, rows = ddl.found(session), subscriptions.read(session)
    for number in triggers.keys() - {row.id for row in rows}:
        if not triggers[number].active:  # a trial that was broken off
            ddl.drop(session, number)
    for row in rows:
        trigger = triggers.get(row.id)
        if row.is_live:
            continue
        older = [] if trigger is None else ddl.older_connections(session, _since(session, row))
        if row.state != "dropped":
            # One that still fires has no successor yet: that was broken off.
            if _fires(trigger) or older:
                continue
            # A transaction may still see the handler of an event that another one has replaced.
            if row.kind == "event" and session.read("source_transactions", as_naive_utc(_since(session, row))):
                continue
            if not subscriptions.is_done(session, row.id):
                continue
            begin_drop(session, Found(row, trigger))
        erased = subscriptions.erase(session, row.id)
        if older or not erased:
            found[row.id] = Remains(older, not erased)
            continue
        if trigger is not None:
            ddl.drop(session, row.id)
        while not session.call("FBTASKS_SOURCES_OWNER.FORGET_SUBSCRIPTION", row.id):
            if not subscriptions.erase(session, row.id):
                found[row.id] = Remains([], True)
                break
    return found


def _since(session: Session, row: Row) -> datetime:
    """Returns since when the trigger of *row* is as it is: since now, when it was changed and that was not noted."""
    if row.active_time is not None:
        return row.active_time
    _note(session, row)
    noted = next(each.active_time for each in subscriptions.read(session) if each.id == row.id)
    assert noted is not None
    return noted


REGISTERED: Final = ("event", "poll")
"""The kinds that a worker may register: rows alone, without a trigger."""


def register(session: Session, app: str, definitions: Iterable[Definition], *, alone: bool = False) -> dict[str, str]:
    """Brings the handlers of events and the polls of *app* in line with *definitions*, as a worker may, under the lock.

    With *alone* what is not in *definitions* is left as it is. Returns what is wrong with those that were left as they
    are, by the names of tasks.
    """
    plan, problems = compare_registered(session, app, definitions, alone=alone)
    for want in plan.create.values():
        _handle(session, want)
    for want, found in plan.change.values():
        replaced = replaces(want, found.row)
        _handle(session, want, *((None, found.row.id) if replaced else (found.row.id, None)))
    _hand_on_events(session, plan)
    for found in plan.orphans.values():
        if found.row.state != "orphaned":
            session.call("FBTASKS_SOURCES.UNHANDLE", found.row.id, found.row.app)
    return problems


def _handle(session: Session, want: Wanted, former: int | None = None, succeeds: int | None = None) -> None:
    given = want.definition, want.source, former, succeeds
    session.run(lambda t: subscriptions.subscribe(t, *given, as_worker=True))


def compare_registered(
    session: Session, app: str, definitions: Iterable[Definition], *, alone: bool = False
) -> tuple[Comparison, dict[str, str]]:
    """Returns what is to be done for what a worker may register alone, and what is wrong with definitions of it.

    Raises :class:`ConfigurationError` for a task of another app, also for one whose table has a trigger.
    """
    definitions, rows = list(definitions), subscriptions.read(session)
    if alone:
        names = {each.name for each in definitions}
        rows = [row for row in rows if row.name in names]
    refuse_taken(app, [each.name for each in definitions], [row for row in rows if row.is_live])
    others = {row.name for row in rows if row.app == app and row.kind not in REGISTERED and not row.ends}
    given = [each for each in definitions if each.kind in REGISTERED and each.name not in others]
    return planned(session, app, given, [row for row in rows if row.kind in REGISTERED or row.app != app], {})


def refused(session: Session, what: str, error: FBTasksError) -> AuthenticationError:
    """Returns the error for what the session's user may not do, which names who may."""
    owner = session.read("database_owner")[0][0]
    return AuthenticationError(
        f"{session.url}: the user may not {what} ({brief(error.__cause__ or error)}). Run the command as the owner "
        f"of the database, {owner}, or as SYSDBA."
    )
