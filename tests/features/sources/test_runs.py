"""Runs without anything that runs: which calls are made of changes, and what is left when they end early."""

import json

import pytest
from support.recorded import change, event, inserts

from fbtasks.errors import CaptureError, SerializationError
from fbtasks.features.sources.coalescing import join
from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.runs import FedRun, Rest, pieces
from fbtasks.features.sources.subscription import Delivery, EventSource, Subscription
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, Crashed, Failed, Reason, Requeue, reason_of

FAILED = Failed("builtins.ValueError", "no")
RETRY = Requeue(Reason.RETRY, 1.0, "no")


def subscription(*, key=None, event_name=None, order="key", **delivery):
    if event_name is not None:
        source = EventSource(event=event_name, order=order)
    else:
        source = ChangeSource(table="T", insert=True, update=True, delete=True, key=key, order=order)
    return Subscription(source, Delivery(**delivery))


def run(members, *, tries=0, crashes=0, key=None, event_name=None, order="key", **delivery):
    numbered = [{"i": number, **each} for number, each in enumerate(members, 1)]
    claim = Claim(1, 2, "t", try_count=tries, crash_count=crashes, payload=json.dumps([numbered, {}]).encode())
    return FedRun("t", subscription(key=key, event_name=event_name, order=order, **delivery), claim, numbered)


def numbers(payload):
    """The numbers of the changes in a payload."""
    return None if payload is None else [each["i"] for each in json.loads(payload)[0]]


def ends(run, outcome, step, **options):
    """What is left: the numbers of the task's own, and of the next one's."""
    rest = run.ended(outcome, step, **options).extra
    return None if rest is None else (numbers(rest.own), numbers(rest.next))


def joined(*members, key=None):
    """What changes of one key come to."""
    found = subscription(key=key)
    return join(found.source, [found.source.read({"i": number, **each}) for number, each in enumerate(members, 1)])


INSERT, UPDATE, DELETE = (
    change("I", new={"N": 1}),
    change("U", old={"N": 1}, new={"N": 2}),
    change("D", old={"N": 2}),
)
OUT = change("U", 2, former={"ID": 1}, old={"N": 2}, new={"N": 2}, moved="out")
IN = change("U", 1, former={"ID": 3}, old={"N": 8}, new={"N": 9}, moved="in")


@pytest.mark.parametrize(
    ("parts", "op", "old", "new", "moved"),
    [
        ([INSERT, UPDATE], "insert", None, 2, None),
        ([UPDATE, UPDATE], "update", 1, 2, None),
        ([UPDATE, DELETE], "delete", 1, None, None),
        ([DELETE, INSERT], "update", 2, 1, None),
        ([DELETE, INSERT, DELETE], "delete", 2, None, None),
        ([INSERT, DELETE, INSERT], "insert", None, 1, None),
        ([UPDATE, OUT], "update", 1, 2, "out"),
        ([DELETE, IN], "update", 2, 9, None),
        ([OUT, INSERT], "update", 2, 1, None),
        ([OUT, IN], "update", 2, 9, None),
        ([IN, UPDATE], "update", 8, 2, "in"),
        ([IN, UPDATE, UPDATE], "update", 8, 2, "in"),
    ],
)
def test_changes_of_a_row_come_to_their_net_change(parts, op, old, new, moved):
    found = joined(*parts)
    assert (found.op, found.moved, found.count, found.id) == (op, moved, len(parts), len(parts))
    assert (found.old and found.old["N"], found.new and found.new["N"]) == (old, new)
    assert found.key == {"ID": 1}


@pytest.mark.parametrize("parts", [[INSERT, DELETE], [INSERT, UPDATE, DELETE], [INSERT, OUT], [IN, DELETE], [IN, OUT]])
def test_a_row_that_came_and_went_is_nothing(parts):
    assert joined(*parts) is None
    (step,) = run(parts, coalesce=True).steps
    assert (step.argument, step.error, len(step.numbers)) == (None, None, len(parts))


def test_several_rows_may_have_a_key_that_is_not_the_primary_one():
    """The insert may be of another row than the delete: they do not cancel each other out."""
    found = joined(INSERT, DELETE, key="ID")
    assert (found.op, found.old, found.new, found.count) == ("update", None, None, 2)
    assert joined(INSERT, INSERT, key="ID").op == "insert"


def test_coalescing_keeps_each_key_at_the_place_of_its_last_change():
    parts = [change("U", 1), change("U", 2), change("U", 1), change("U", 3)]
    steps = run(parts, coalesce=True).steps
    assert [(step.argument.key["ID"], step.argument.count, step.argument.id) for step in steps] == [
        (2, 1, 2), (1, 2, 3), (3, 1, 4),
    ]  # fmt: skip


def test_events_are_joined_by_their_order_keys():
    parts = [event(data=1, key="a"), event(data=2, key="b"), event(data=3, key="a"), event(data=4), event(data=5)]
    steps = run(parts, event_name="paid", coalesce=True).steps
    assert [(step.argument.order_key, step.argument.data, step.argument.count) for step in steps] == [
        ("b", 2, 1), ("a", 3, 2), (None, 5, 2),
    ]  # fmt: skip


def test_what_could_not_be_recorded_or_read_is_not_called():
    steps = run([*inserts(1), change("U", 5, error="division by zero"), {"k": {}}, *inserts(1)]).steps
    assert [step.argument is None for step in steps] == [False, True, True, False]
    assert isinstance(steps[1].error, CaptureError)
    for said in ("'t'", "ID=5", "division by zero", "ANN"):
        assert said in str(steps[1].error)
    assert isinstance(steps[2].error, SerializationError)


def test_what_was_written_by_hand_is_no_error_outside_of_its_call():
    odd = {**change("U"), "k": {"ID": [1]}}
    assert [step.argument.count for step in run([odd, odd], coalesce=True).steps] == [2]
    (step,) = run([{**change(error="x"), "k": [1]}], coalesce=True).steps
    assert "key: unknown" in str(step.error)


def test_a_batch_is_one_call_and_taken_apart_when_it_is_tried_again():
    parts = [*inserts(2), change(error="x"), *inserts(1)]
    first, second = run(parts, batch=10).steps
    assert ([each.id for each in first.argument], first.numbers, second.numbers) == ([1, 2, 4], (0, 1, 3), (2,))
    steps = run(parts, batch=10, tries=1).steps
    assert [step.argument and [each.id for each in step.argument] for step in steps] == [[1], [2], None, [4]]


def test_what_is_left_when_a_call_fails():
    of = run(inserts(4), tries=2)
    assert ends(of, RETRY, 0) is None
    assert of.ended(RETRY, 2).extra == Rest(of.ended(RELEASED, 2).extra.own, tries=0)
    assert ends(of, RETRY, 2) == ([3, 4], None)
    assert ends(of, FAILED, 0) == ([1], [2, 3, 4])
    assert of.ended(FAILED, 0).extra.tries is None  # as many as it has had
    assert ends(of, FAILED, 2) == ([3], [4])
    assert of.ended(FAILED, 2).extra.tries == 0
    assert ends(of, FAILED, 3) == ([4], None)
    assert ends(run(inserts(1)), FAILED, 0) is None


def test_what_is_left_of_joined_changes():
    of = run([change("U", 1), change("U", 2), change("U", 1), change("U", 2), change("U", 3)], coalesce=True)
    assert ends(of, FAILED, 1) == ([2, 4], [5])
    assert ends(of, RETRY, 1) == ([2, 4, 5], None)


def test_what_is_left_when_the_calls_before_are_undone():
    of = run(inserts(3))
    assert ends(of, FAILED, 1, undone=True) == ([2], [1, 3])
    assert ends(of, RETRY, 1, undone=True) is None
    assert of.ended(RELEASED, 1, undone=True) == RELEASED


def test_what_is_left_when_a_run_is_given_back_or_stopped():
    of = run(inserts(3))
    assert of.ended(RELEASED, 0) == RELEASED
    assert reason_of(of.ended(RELEASED, 1)) is Reason.CONTINUE
    assert ends(of, RELEASED, 1) == ([2, 3], None)
    assert ends(of, Cancelled("stopped"), 2) == ([3], None)


def test_a_crash_is_charged_to_the_change_that_was_handled():
    def crash(crashes, step, *, charged=True, **options):
        return ends(run(inserts(3), crashes=crashes), Crashed("died", charged, 3), step, **options)

    assert crash(0, 0) is None
    assert crash(2, 1) == ([2, 3], None)  # its first crash
    assert crash(2, 0) == ([1], [2, 3])  # its last: it fails alone
    assert crash(2, 0, charged=False) is None
    assert crash(2, 1, undone=True) == ([2], [1, 3])


def test_those_behind_a_failed_batch_have_had_a_try():
    of = run(inserts(3), batch=10, tries=2)
    assert [of.tries(step) for step in range(3)] == [2, 1, 1]
    rest = of.ended(FAILED, 1).extra
    assert (numbers(rest.own), numbers(rest.next), rest.tries, rest.next_tries) == ([2], [3], 1, 1)
    assert ends(run(inserts(3), batch=10), FAILED, 0) is None  # all of it


def test_pieces_are_the_text_that_was_there():
    text = ' [ [ {"a": "x\ty, [] \\u00e9"} ,\n{"b":1.10}, 3 ],{}]'
    assert list(pieces(text.encode())) == ['{"a": "x\ty, [] \\u00e9"}', '{"b":1.10}', "3"]
    assert list(pieces(b"[[],{}]")) == []
