"""The values and chords of Celery's result backend are deleted when they have expired."""

import pytest
from support.sql import one

from fbtasks.config import Settings
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import chords, keyvalues
from fbtasks.contrib.celery.store.chords import Part
from fbtasks.contrib.celery.store.names import key
from fbtasks.firebird.session import INSERT
from fbtasks.url import DatabaseURL


@pytest.fixture
def use(app, url):
    app.migrate()
    shared = SharedDatabase(Settings("test", url=DatabaseURL.parse(url)))
    yield lambda function, *arguments, **options: shared.use(lambda t: function(t, *arguments, **options), INSERT)
    shared.close()


def test_one_prune_deletes_values_and_chords_up_to_its_limit(use, app):
    for number in range(3):
        use(keyvalues.store, f"value{number}", b"x", final=True, expires=0.0)
        use(chords.begin, f"chord{number}", None, 0.0)
        use(chords.ended, f"chord{number}", Part("task", 0, b"x"), final=True, expires=0.0)
    use(keyvalues.store, "kept", b"x", final=True, expires=60.0)
    use(chords.begin, "kept", None, None)
    assert [use(lambda t: t.call("FBTASKS_CELERY.PRUNE", 2)) for _ in range(4)] == [2, 2, 2, 0]
    assert one(app, "SELECT NAME FROM QUEUE_CELERY") == "kept"
    assert one(app, "SELECT NAME FROM QUEUE_CELERY_CHORD") == "kept"
    assert one(app, "SELECT COUNT(*) FROM QUEUE_CELERY_CHORD_PART") == 0


LONG = ["i" * 249 + " ", "i" * 250, "i" * 251, "i" * 250 + " ", "i" * 900]
NAMES = ["id1", "id1 ", "id1  ", "id1\x03", "id1 \x03", *LONG]
"""Names that SQL takes for each other, or that its columns have no room for."""


def test_every_name_has_a_value_of_its_own(use):
    for name in NAMES:
        use(keyvalues.store, name, name.encode(), final=True, expires=None)
    assert [use(keyvalues.fetch, name) for name in NAMES] == [name.encode() for name in NAMES]
    use(keyvalues.delete, "id1 ")
    use(keyvalues.delete, "i" * 251)
    left = [None if name in ("id1 ", "i" * 251) else name.encode() for name in NAMES]
    assert [use(keyvalues.fetch, name) for name in NAMES] == left


def test_a_name_that_reads_as_a_key_of_another_one_has_another_key():
    names = {*NAMES, *map(key, NAMES)}
    assert len({key(name) for name in names}) == len(names)
