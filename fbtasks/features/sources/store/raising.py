"""Events: raised in a transaction of their own, or in the caller's."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fbtasks.database import guests
from fbtasks.database.settlement import InDoubt
from fbtasks.database.values import as_naive_utc
from fbtasks.errors import EnqueueError, EnqueueUncertain
from fbtasks.features.sources.subscription import event_name
from fbtasks.firebird.fork import refuse_fork
from fbtasks.firebird.session import Transaction
from fbtasks.system import checks
from fbtasks.tasks.options import moment_of

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


def raise_event(
    app: FBTasks, event: str, data: Any, *, using: Any = None, start: object = None, order_key: str | None = None
) -> None:
    """Raises *event* in a transaction of its own, or with *using* in the caller's: see ``app.raise_event``.

    In eager mode it calls the app's handlers instead.
    """
    event_name("event", event)
    if order_key is not None:
        _check_order_key(order_key, start)
    text = app.serializer.dump_json(data, f"event {event!r}", "data").decode()
    when = moment_of("start", start, app.settings.timezone)
    if app.always_eager:
        from fbtasks.features.sources.eager import call_handlers

        call_handlers(app, event, text, order_key)
        return
    delay = when // timedelta(milliseconds=1) if isinstance(when, timedelta) else None
    moment = None if when is None or isinstance(when, timedelta) else as_naive_utc(when)
    key = order_key and order_key.encode()  # bytes: the connection may be of any character set; DATA is JSON in ASCII

    def write(transaction: Transaction) -> tuple[None, int]:
        return None, int(transaction.value("raise_event", event, text, moment, delay, key))

    if using is not None:
        refuse_fork()
        write(guests.transaction(using, app.database))
        return
    app.database.make_ready()
    try:
        app.enqueuer.commit(write)
    except InDoubt as doubt:
        raise EnqueueUncertain(
            f"the connection was lost while the event {event!r} was committed, and whether it was raised cannot be "
            f"told: {doubt}"
        ) from doubt


def _check_order_key(value: object, start: object) -> None:
    """Raises :class:`EnqueueError` for an order key that cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= 255 or "\0" in value or not checks.is_utf8(value):
        raise EnqueueError(f"order_key {checks.shown(value)} must be a string of 1 to 255 characters, such as '7'.")
    if start is not None:
        raise EnqueueError(
            "give start or order_key: events of one key are handled in the order in which they are raised."
        )
