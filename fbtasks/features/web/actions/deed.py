"""A deed asks first, by GET, or is done at once, by POST. It is written into the audit, and answered with 303."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from werkzeug.exceptions import Forbidden
from werkzeug.wrappers import Response

from fbtasks.errors import ConfigurationError, DatabaseUnavailable, FBTasksError
from fbtasks.features.web import store
from fbtasks.firebird.session import Transaction, also_doing
from fbtasks.sheet import Field

if TYPE_CHECKING:
    from fbtasks.features.web.context import Context

Values = Mapping[str, str]
OF_CALL: Final = ("args", "kwargs")
"""Kinds of fields with arguments of a call, of which the audit has no values."""


class Button(NamedTuple):
    """An action that can be taken now."""

    label: str
    url: str
    asks: bool
    """Whether a page asks first; else it is done by a click."""
    harms: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """One action on one thing."""

    action: str
    """As the callable ``authorize`` is asked: ``retry``, ``limits.set-rate``."""
    what: str
    """What it is done to: ``task 17``."""
    label: str
    back: str
    """The address that the browser is sent to."""
    do: Callable[[Values], str | tuple[str, str]]
    """Does it with the values of the fields. Returns what was done, as a sentence; and another address than *back*."""
    queue: str | None = None
    ask: str = ""
    """The question before it is done."""
    fields: Sequence[Field] = ()
    said: Callable[[Values], str] | None = None
    """What the audit has of the values; None: all of them but arguments."""
    did: Callable[[Any], object] = lambda _: True
    """Returns something true when a transaction that has returned this has changed something."""
    harms: bool = False
    hidden: Sequence[tuple[str, str]] = ()
    """What the form has beside its fields."""


def perform(context: Context, deed: Deed) -> Response:
    """Shows a deed, or does it."""
    if not context.may(deed.action, deed.queue):
        why = "This dashboard is read-only" if context.options.read_only else "You may not do that"
        raise Forbidden(f"{why}: {deed.action} {deed.what}.")
    if context.request.method != "POST":
        title = f"{deed.label} {deed.what}"
        return context.page(
            "ask.html", title, label=deed.label, what=deed.what, ask=deed.ask, fields=deed.fields,
            hidden=deed.hidden, back=deed.back, harms=deed.harms,
        )  # fmt: skip
    context.options.seal.check_post(context.request, context.who)
    values = {each.name: context.request.form.get(each.name, "").strip() for each in deed.fields}
    said = _said(deed.fields, values) if deed.said is None else deed.said(values)
    with _noting(context, deed, said):
        done = deed.do(values)
    told, back = (done, deed.back) if isinstance(done, str) else done
    return context.redirect(back, told)


def _said(fields: Sequence[Field], values: Values) -> str:
    given = [each for each in fields if values[each.name]]
    return ", ".join(each.name if each.kind in OF_CALL else f"{each.name}={values[each.name]}" for each in given)


@contextmanager
def _noting(context: Context, deed: Deed, said: str) -> Iterator[None]:
    """For the block, which changes something: the audit has a line of it, written in the first of its transactions.

    What is refused has one that says so.
    """
    line: int | None = None

    def note(transaction: Transaction, done: object) -> None:
        nonlocal line
        if deed.did(done):
            line = store.note(transaction, line, context.who, deed.action, deed.what, said)

    def write(said: str) -> None:
        given = None, context.who, deed.action, deed.what, said
        context.database.use(lambda session: session.run(lambda transaction: store.note(transaction, *given)))

    try:
        with also_doing(note):
            yield
    except (ConfigurationError, DatabaseUnavailable):  # a value was wrong, or nothing can be written
        raise
    except FBTasksError as error:
        with suppress(FBTasksError):  # the first error is the one to tell
            write(f"refused: {error}" + (f" ({said})" if said else ""))
        raise
    if line is None:  # it was not done by a transaction of a session's
        write(said)
