"""Chords in the database: each part counts once, and one of them goes on to the body."""

import threading

import pytest
from celery import Celery, states
from celery.app.task import Context
from celery.result import AsyncResult, GroupResult
from celery.utils.functional import regen
from support.sql import one

import fbtasks.kombu
from fbtasks.config import Settings
from fbtasks.contrib.celery import results as backends
from fbtasks.contrib.celery.chords import shape_of
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import chords
from fbtasks.contrib.celery.store.chords import Part
from fbtasks.firebird.session import INSERT
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.emptied


class Store:
    """The functions of ``chords`` for one chord, each in a transaction of its own."""

    def __init__(self, shared):
        self.shared = shared

    def begin(self, shape=None, expires=60.0):
        return self.use(chords.begin, shape, expires)

    def size(self, parts, more=False):
        return self.shared.use(lambda t: t.call("FBTASKS_CELERY_API.CHORD_SIZE", "chord", parts, int(more)), INSERT)

    def ended(self, task_id, index=0, value=b"v", final=True, expires=60.0):
        return self.use(chords.ended, Part(task_id, index, value), final=final, expires=expires)

    def end(self, number):
        return self.shared.use(lambda t: t.call("FBTASKS_CELERY.CHORD_END", "chord", number), INSERT)

    def use(self, function, *arguments, **options):
        return self.shared.use(lambda t: function(t, "chord", *arguments, **options), INSERT)

    def prune(self):
        return self.shared.use(lambda t: t.call("FBTASKS_CELERY.PRUNE", 100))


@pytest.fixture
def store(url):
    shared = SharedDatabase(Settings("test", url=DatabaseURL.parse(url)))
    yield Store(shared)
    shared.close()


def test_the_last_part_gets_all_in_the_order_of_the_header(store):
    number = store.begin()
    assert store.ended("c", 2, b"3") == (True, None)
    assert store.ended("a", 0, b"x" * 9000) == (True, None)
    store.size(3)
    known, complete = store.ended("b", 1, b"2")
    assert known
    assert complete.id == number
    assert [(part.task_id, part.value) for part in complete.parts] == [("a", b"x" * 9000), ("b", b"2"), ("c", b"3")]
    assert store.end(number)
    assert store.ended("b", 1) == (True, None)


def test_a_part_that_runs_twice_counts_once_and_its_success_stays(store):
    store.begin()
    store.size(2)
    store.ended("a", 0, b"failed", final=False)
    assert store.ended("a", 0, b"done") == (True, None)
    assert store.ended("a", 0, b"failed again", final=False) == (True, None)
    _, complete = store.ended("b", 1)
    assert [part.value for part in complete.parts] == [b"done", b"v"]


def test_the_same_id_at_two_places_is_two_parts(store):
    store.begin()
    store.size(2)
    assert store.ended("a", 0) == (True, None)
    assert store.ended("a", 1)[1] is not None


def test_the_body_is_in_one_hand_also_when_that_ones_worker_dies(store):
    number = store.begin()
    store.size(2)
    store.ended("a", 0)
    assert store.ended("b", 1)[1] is not None
    assert store.ended("a", 0)[1] is None
    assert store.ended("b", 1)[1] is not None  # delivered again: its worker died before the body was sent
    store.end(number)
    assert store.ended("b", 1)[1] is None


def test_a_part_that_is_added_is_waited_for_and_comes_last(store):
    store.begin()
    store.size(1)
    store.size(1, more=True)
    assert store.ended("added", None)[1] is None
    assert [part.task_id for part in store.ended("a", 0)[1].parts] == ["a", "added"]


def test_a_chord_that_begins_anew_counts_from_nothing(store):
    old = store.begin()
    store.size(2)
    store.ended("a", 0)
    new = store.begin(b"shape")
    store.size(2)
    assert not store.end(old)
    assert store.ended("b", 1)[1] is None
    complete = store.ended("a", 0)[1]
    assert (complete.id, complete.shape) == (new, b"shape")


def test_an_unknown_chord(store):
    assert store.ended("a") == (False, None)
    assert not store.size(1)


def test_of_parts_that_end_at_once_one_goes_on(store):
    store.begin()
    store.size(8)
    start = threading.Barrier(8)
    found = []

    def end(index):
        start.wait()
        found.append(store.ended(f"task{index}", index)[1])

    threads = [threading.Thread(target=end, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(complete is not None for complete in found) == [False] * 7 + [True]
    complete = next(filter(None, found))
    assert [part.index for part in complete.parts] == list(range(8))


def test_expired_chords_are_deleted(store, app):
    store.begin()
    store.ended("a", expires=-1.0)
    assert store.prune() == 1
    for table in ("QUEUE_CELERY_CHORD", "QUEUE_CELERY_CHORD_PART"):
        assert one(app, f"SELECT COUNT(*) FROM {table}") == 0


def test_a_header_from_a_generator_is_not_run_ahead_of():
    def header():
        raise AssertionError("asked for a task before its time")
        yield

    assert shape_of(regen(header())) is None
    single, group = AsyncResult("a"), GroupResult("g", [AsyncResult("b"), AsyncResult("c")])
    assert shape_of([single]) is None
    assert shape_of([single, group]) == b'["a", ["b", "c"]]'


def test_parts_with_ids_of_every_length_and_spaces_at_their_ends(app, url):
    """The backend counts them, nested as they are, and sends the body what they returned."""
    celery = Celery("chords", broker=url, backend=url, set_as_current=False)
    ids = ["p", "p ", "p" * 300, "p" * 300 + " "]
    results = [AsyncResult(task_id, app=celery) for task_id in ids]
    with celery.connection_for_write() as connection:
        queue = celery.amqp.queues["celery"](connection.default_channel)
        queue.declare()
        celery.backend.apply_chord(("c " * 200, [results[0], GroupResult("g", results[1:], app=celery)]), None)
        celery.backend.set_chord_size("c " * 200, len(ids))
        for index, task_id in enumerate(ids):
            body = celery.signature("body", app=celery)
            request = Context(id=task_id, group="c " * 200, group_index=index, chord=body)
            celery.backend.on_chord_part_return(request, states.SUCCESS, index)
            celery.backend.store_result(task_id, index, states.SUCCESS)
        message = queue.get(no_ack=True)
    assert message.payload[0] == [[0, [1, 2, 3]]]
    assert [result.get(timeout=5) for result in results] == [0, 1, 2, 3]
    fbtasks.kombu.close_all()
    backends.close_all()
