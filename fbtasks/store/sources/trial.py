"""Whether the engine takes the condition of a definition, tried before the trigger is made."""

from __future__ import annotations

import uuid

from fbtasks.errors import StatementRefused
from fbtasks.firebird.session import INSERT, Session
from fbtasks.store.sources.capture import Capture
from fbtasks.store.sources.triggers import does_not_compile, trial


def check_condition(session: Session, capture: Capture) -> None:
    """Raises :class:`TaskDefinitionError`, with the engine's message, for a ``when`` that does not compile.

    A trigger with nothing else in it is made, inactive, in a transaction that is rolled back. The session's user must
    be allowed to make triggers for the table.
    """
    if capture.source.when is None:
        return
    statement = trial(capture, f"QUEUE_TRIAL_{uuid.uuid4().hex}")
    try:
        with session.transaction(INSERT) as transaction:
            transaction.script(statement)
            raise _Compiled
    except _Compiled:
        pass
    except StatementRefused as error:
        raise does_not_compile(capture, error) from error


class _Compiled(Exception):
    """Ends the transaction of a trial that went well."""
