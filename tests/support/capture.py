"""A log of changes without anything that reads it: triggers are made, and what they wrote is looked at."""

from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds import changes
from fbtasks.features.sources.store import condition, triggers
from fbtasks.features.sources.store.capture import resolve
from fbtasks.features.sources.store.tables import Catalog
from fbtasks.tasks import formats

from .sql import execute, rows


def script(app, *statements):
    """Runs DDL, each statement in a transaction of its own."""
    for statement in statements:
        with app.database.session() as session:
            session.run(lambda t, s=statement: t.script(s))


def resolved(app, table, **options):
    """The definition and the table, brought together; its condition compiles."""
    with app.database.session() as session:
        capture = resolve(ChangeSource(table=table, **options), Catalog(session).describe(table))
        condition.check(session, capture)
    return capture


def listen(app, table, *, number=1, task="shop.changed", queue="default", **options):
    """Makes the trigger of a subscription, with its rights."""
    capture = resolved(app, table, **options)
    script(app, triggers.trigger(number, task, queue, capture), *triggers.grants(number))


def logged(app, number=1):
    """The changes in the log of a subscription, in the order of their ids."""
    found = rows(
        app, "SELECT ID, LANE, RAISE_TIME, DATA, LARGE FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = ? ORDER BY ID", number
    )
    return [_change(*row) for row in found]


def lanes(app, number=1):
    """The lanes of the changes, in the order of their ids."""
    found = rows(app, "SELECT LANE FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID = ? ORDER BY ID", number)
    return [lane for (lane,) in found]


def clear(app):
    execute(app, "DELETE FROM QUEUE_CHANGE")


def _change(number, lane, time, data, large):
    assert (data is None) != (large is None)
    if large is not None:
        large = large if isinstance(large, bytes) else large.read()
    change = changes.read(formats.load_json(data or large))
    assert change.id == number
    assert change.time.replace(tzinfo=None) == time
    return change
