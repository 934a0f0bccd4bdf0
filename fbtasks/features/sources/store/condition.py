"""The condition of a definition, which is the user's SQL: whether the engine takes it, and what rights it needs."""

from __future__ import annotations

import uuid
from typing import Final

from fbtasks.errors import AuthenticationError, StatementRefused, TaskDefinitionError
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.poll_statements import Statements
from fbtasks.features.sources.store.polls import Poll
from fbtasks.features.sources.store.tables import quoted
from fbtasks.features.sources.store.texts import TOKEN
from fbtasks.features.sources.store.triggers import (
    does_not_compile,
    trial,
    trigger_name,
    why_not_compiled,
    without_place,
)
from fbtasks.firebird.driver.translate import is_wrong_text
from fbtasks.firebird.session import READ, Session, Transaction
from fbtasks.system.showing import brief

_RIGHTS: Final = {
    0: "SELECT ON TABLE",
    1: "SELECT ON TABLE",
    5: "EXECUTE ON PROCEDURE",
    14: "USAGE ON SEQUENCE",
    15: "EXECUTE ON FUNCTION",
    18: "EXECUTE ON PACKAGE",
}
"""What is needed for each kind of RDB$DEPENDENCIES.RDB$DEPENDED_ON_TYPE."""


def find_imbalance(when: str) -> str | None:
    """Returns why the condition *when* would reach beyond the parentheses that it is put into; None: it does not."""
    open_ = 0
    for match in TOKEN.finditer(when):
        token = match[0]
        open_ += (token == "(") - (token == ")")  # noqa: S105  # a token of SQL
        if open_ < 0:
            return "a ')' has no '(' before it"
        if token in ("'", '"', "/*"):
            return f"the {token} has no end"
    return "a '(' has no ')' behind it" if open_ else None


def check_condition(session: Session, capture: Capture) -> None:
    """Raises :class:`TaskDefinitionError`, with the engine's message, for a ``when`` that does not compile.

    So is one with unbalanced parentheses, which might compile together with what is around it. A trigger with nothing
    else in it is made, inactive, in a transaction that is rolled back. Raises :class:`AuthenticationError` when the
    session's user may not make triggers for the table.
    """
    if capture.source.when is None:
        return
    if (reason := find_imbalance(capture.source.when)) is not None:
        raise does_not_compile(capture, reason)
    statement = trial(capture, f"QUEUE_TRIAL_{uuid.uuid4().hex}")

    def attempt(transaction: Transaction) -> None:
        transaction.script(statement)
        raise _Compiled

    try:
        session.run(attempt)
    except _Compiled:
        pass
    except StatementRefused as error:
        if not is_wrong_text(error):
            raise
        raise does_not_compile(capture, why_not_compiled(error)) from error


def check_poll(session: Session, poll: Poll) -> None:
    """Raises :class:`TaskDefinitionError`, with the engine's message, for a ``when`` that does not compile.

    The statement that takes rows is compiled, and not run. Raises :class:`AuthenticationError` when the session's user
    may not do to the table what that does.
    """
    source = poll.source
    if source.when is None:
        return
    if (reason := find_imbalance(source.when)) is not None:
        raise _poll_does_not_compile(poll, reason)
    try:
        with session.transaction(READ) as transaction:
            transaction.compile(Statements(0, poll, 0, session.generation).take)
    except AuthenticationError:
        raise
    except StatementRefused as error:
        reason = without_place(brief(error).removeprefix(f"{session.url}: "))
        raise _poll_does_not_compile(poll, reason) from error


def _poll_does_not_compile(poll: Poll, reason: str) -> TaskDefinitionError:
    return TaskDefinitionError(
        f"poll_table({poll.source.table!r}): when={poll.source.when!r:.500} does not compile ({reason}). "
        f"Give a condition in SQL that names columns of {poll.table.name!r}."
    )


def rights_of_condition(session: Session, subscription: int) -> list[str]:
    """Returns the statements that grant a trigger what its condition reads and calls.

    They are for a trigger that has been committed and is not active yet. The engine looks at the rights before the
    trigger begins, where no handler in it helps: the statement of a user who may not read a table that a subquery of
    the condition reads would be refused.
    """
    trigger = trigger_name(subscription)
    return [
        f"GRANT {_RIGHTS[kind]} {quoted(name)} TO TRIGGER {trigger}"
        for name, kind in session.read("source_trigger_needs", trigger)
        if kind in _RIGHTS
    ]


class _Compiled(Exception):
    """Ends the transaction of a trial that went well."""
