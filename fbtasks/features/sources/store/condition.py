"""The condition of a definition, which is the user's SQL: whether the engine takes it."""

from __future__ import annotations

import re
import uuid
from contextlib import suppress
from typing import Final

from fbtasks.errors import AuthenticationError, StatementRefused, TaskDefinitionError
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.store import triggers
from fbtasks.features.sources.store.capture import Capture
from fbtasks.features.sources.store.poll_statements import Statements
from fbtasks.features.sources.store.polls import Poll
from fbtasks.features.sources.store.texts import TOKEN
from fbtasks.firebird.driver.translate import is_wrong_text
from fbtasks.firebird.session import Session, Transaction
from fbtasks.system.showing import brief

_PLACE: Final = re.compile(r" -?(?:At|-) line \d+, column \d+")
"""Where in a generated statement the engine has found an error."""


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


def check(session: Session, subject: Capture | Poll) -> None:
    """Raises :class:`TaskDefinitionError`, with the engine's message, for a ``when`` that does not compile.

    So is one with unbalanced parentheses, which might compile together with what is around it. Raises
    :class:`AuthenticationError` when the session's user may not make triggers for the table, or not poll it.
    """
    when = subject.source.when
    if when is None:
        return
    if (reason := find_imbalance(when)) is not None:
        raise _does_not_compile(subject, reason)
    try:
        with suppress(_Compiled):
            session.run(lambda t: _try(t, subject, session.generation))
    except StatementRefused as error:
        if isinstance(error, AuthenticationError) or (isinstance(subject, Capture) and not is_wrong_text(error)):
            raise
        message = brief(error).removeprefix(f"{session.url}: ")
        reason = _PLACE.sub("", message.partition(" failed -")[2] or message)
        raise _does_not_compile(subject, reason) from error


def _try(transaction: Transaction, subject: Capture | Poll, generation: int) -> None:
    if isinstance(subject, Capture):
        transaction.script(triggers.trigger(uuid.uuid4().int >> 66, "", "", subject))
    else:
        transaction.compile(Statements(0, subject, 0, generation).take)
    raise _Compiled


def _does_not_compile(subject: Capture | Poll, reason: str) -> TaskDefinitionError:
    source, where, columns = subject.source, "poll_table", ""
    if isinstance(source, ChangeSource):
        new, old = source.insert or source.update, source.update or source.delete
        named = [f"{row}.COLUMN" for row, there in (("new", new), ("old", old)) if there]
        where, columns = "on_change", f" as {' and '.join(named)}"
    return TaskDefinitionError(
        f"{where}({source.table!r}): when={source.when!r:.500} does not compile ({reason}). Give a condition in SQL "
        f"that names columns of {subject.table.name!r}{columns}."
    )


class _Compiled(Exception):
    """Ends the transaction of a trial that went well."""
