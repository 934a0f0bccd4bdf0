"""The account of what sources feed must be able to fail: hand-made ledgers that each hold one kind of violation."""

from dataclasses import replace

import pytest

from soak.accounting import Row, Rows, Rules
from soak.report import of_handlers
from soak.source_accounting import LANES, account_sources, too_long
from soak.sources import HANDLERS, MAX_LENGTH, Said, SourceRows, read, refs
from soak.stories import Story

FIRST, SECOND = Said("sources-1-000001", "change", "7", 1), Said("sources-1-000002", "change", "7", 2)
CHANGES = [handler for handler, what in HANDLERS.items() if what == "change"]


def database(*said, history=(), live=(), **given):
    """A database in which *said* was committed, with one effect of each change."""
    changes = [each for each in said if each.what == "change"]
    given.setdefault("counted", {"7": len(changes)})
    given.setdefault("effects", [each.ref for each in changes])
    given.setdefault("inbox", {each.ref: "D" for each in said if each.what == "row"})
    return Rows(history=history, live=live, sources=SourceRows(said=said, **given))


def handled(*said, handlers=HANDLERS):
    """A ledger in which each was handled once, one after the other."""
    story = Story().add(0, "said", refs=[each.ref for each in said])
    for n, each in enumerate(said):
        for handler in handlers:
            if HANDLERS[handler] == each.what:
                story.called(handler, each.ref, n + 1, n + 1.5)
    return story


def rules(story, rows, **given):
    """The rules that the account finds broken."""
    return sorted({v.rule for v in account_sources(story.records, rows, Rules(**given))[0]})


BOTH = database(FIRST, SECOND)


def test_nothing_is_wrong_with_what_was_handled_once_in_its_order():
    assert rules(handled(FIRST, SECOND), BOTH) == []
    shown = of_handlers(handled(FIRST, SECOND).records, BOTH).splitlines()
    assert [line.split() for line in shown if line.startswith("effect")] == [["effect", "(change)", *"222000"]]


@pytest.mark.parametrize(("event", "rows", "rule"), [
    ("committed", database(), "a committed change is lost"),
    ("undone", database(FIRST), "a change is there that was rolled back"),
])  # fmt: skip
def test_the_database_against_what_the_producer_saw(event, rows, rule):
    story = handled(*rows.sources.said).add(9, event, refs=[FIRST.ref])
    assert rules(story, rows) == [rule]


def test_a_row_that_was_changed_more_or_less_often_than_was_committed():
    for count in (1, 3):
        rows = database(FIRST, SECOND, counted={"7": count})
        assert rules(handled(FIRST, SECOND), rows) == ["a row was not changed as often as was committed"]


@pytest.mark.parametrize("missing", HANDLERS)
def test_a_call_that_was_never_made(missing):
    said = replace(FIRST, what=HANDLERS[missing])
    story = handled(said, handlers=HANDLERS.keys() - {missing})
    assert rules(story, database(said)) == [f"a committed {said.what} was not handled"]
    assert rules(story.called(missing, said.ref, 5, 6, outcome="raised"), database(said)) != []


def test_what_waits_in_the_log_at_the_end_is_stuck():
    assert rules(Story(), database(waiting=2)) == ["changes or polled rows are stuck"]
    row = Row(id=1, state=0, kind="unordered", refs=(FIRST.ref,))
    assert rules(handled(FIRST), database(FIRST, live=[row])) == ["a task is stuck in QUEUE_TASK"]


def test_a_call_and_a_task_for_what_was_not_committed():
    assert rules(handled(FIRST), database()) == ["a handler was called for what was not committed"]
    row = Row(id=1, state=12, kind="by_key", refs=(FIRST.ref,))
    assert "the database holds a task for what was not committed" in rules(Story(), database(history=[row]))


@pytest.mark.parametrize("handler", CHANGES)
def test_a_second_call_needs_a_reason(handler):
    story = handled(FIRST).called(handler, FIRST.ref, 3, 4)
    assert rules(story, database(FIRST)) == ["a second run has no explanation"]
    assert rules(story.fault(2), database(FIRST)) == []


def test_a_run_may_have_gone_on_with_other_calls_when_its_worker_died():
    story = handled(FIRST).called("by_key", FIRST.ref, 6, 7)
    assert rules(story.fault(4.9), database(FIRST)) == []
    assert rules(handled(FIRST).called("by_key", FIRST.ref, 6, 7).fault(5.2), database(FIRST)) != []


@pytest.mark.parametrize("handler", CHANGES)
def test_a_change_that_overtakes_another_one_of_its_key(handler):
    story = handled(FIRST, SECOND, handlers=set(CHANGES) - {handler})
    story.called(handler, SECOND.ref, 1, 2).called(handler, FIRST.ref, 3, 4)
    assert rules(story, BOTH) == (["a call was made before its turn"] if handler in LANES else [])


def test_a_change_that_is_handled_before_the_former_one_was_tried_again():
    story = handled(FIRST, SECOND, handlers=set(CHANGES) - {"by_key"})
    story.called("by_key", FIRST.ref, 1, 2, outcome="raised").called("by_key", SECOND.ref, 3, 4)
    assert rules(story.called("by_key", FIRST.ref, 5, 6), BOTH) == ["a call was made before its turn"]


def test_what_an_operator_puts_back_may_come_later():
    story = handled(FIRST, SECOND, handlers=set(CHANGES) - {"by_key"})
    story.called("by_key", SECOND.ref, 3, 4).operator(5, "retry", "done").called("by_key", FIRST.ref, 6, 7)
    assert rules(story, BOTH) == []


def test_only_in_total_order_the_changes_of_two_keys_keep_the_order_of_the_program_that_made_them():
    other = replace(SECOND, lane="8", n=1)
    story = Story()
    for handler in CHANGES:
        story.called(handler, other.ref, 1, 2).called(handler, FIRST.ref, 3, 4)
    rows = database(FIRST, other, counted={"7": 1, "8": 1})
    assert {v.subject[:8] for v in account_sources(story.records, rows, Rules())[0]} == {"in_total"}
    assert rules(story, rows) == ["a call was made before its turn"]


def test_two_calls_of_one_lane_at_once():
    story = handled(FIRST, SECOND, handlers=set(CHANGES) - {"by_key"})
    story.called("by_key", FIRST.ref, 1, 3).called("by_key", FIRST.ref, 2, 2.5, pid=21, worker=20)
    story.called("by_key", SECOND.ref, 4, 5)
    assert "two calls of one lane at once" in rules(story, BOTH, lease=3)
    assert rules(story.fault(0.5, "SIGSTOP", until=3.5), BOTH, lease=3) == []


def test_a_killed_call_is_over():
    story = handled(FIRST, SECOND, handlers=set(CHANGES) - {"by_key"})
    story.called("by_key", FIRST.ref, 1).called("by_key", FIRST.ref, 5, 6, pid=21, worker=20)
    story.called("by_key", SECOND.ref, 7, 8, pid=21, worker=20)
    assert "two calls of one lane at once" in rules(story, BOTH)
    assert rules(story.fault(2), BOTH) == []


@pytest.mark.parametrize(("effects", "rule"), [
    ([FIRST.ref], "a change's effect is not there exactly once"),
    ([FIRST.ref, SECOND.ref, SECOND.ref], "a change's effect is not there exactly once"),
    ([FIRST.ref, SECOND.ref, "sources-1-000003"], "an effect of what was not committed"),
])  # fmt: skip
def test_effects(effects, rule):
    assert rules(handled(FIRST, SECOND), database(FIRST, SECOND, effects=effects)) == [rule]


def test_a_cancelled_change_needs_a_request_and_has_no_effect():
    row = Row(id=1, state=12, kind="effect", refs=(FIRST.ref,))
    story = handled(FIRST, handlers=set(CHANGES) - {"effect"})
    assert rules(story, database(FIRST, history=[row], effects=[])) == ["a task was cancelled without a request"]
    story.operator(2, "cancel", "cancelled")
    assert rules(story, database(FIRST, history=[row], effects=[])) == []
    assert rules(story, database(FIRST, history=[row])) == ["a change's effect is not there exactly once"]


def test_a_failure_that_should_not_be():
    row = Row(id=1, state=11, kind="by_key", refs=(FIRST.ref,), error_type="fbtasks.errors.CaptureError")
    assert rules(handled(FIRST), database(FIRST, history=[row])) == ["a task failed that should not"]
    row = replace(row, error_type="fbtasks.errors.WorkerLost", crashes=3)
    assert rules(handled(FIRST), database(FIRST, history=[row])) == [
        "a task was given up to which nothing had happened"
    ]
    row = replace(row, state=10, error_type=None)
    assert rules(handled(FIRST), database(FIRST, history=[row])) == ["a success is kept that no program wants"]


def test_the_status_of_a_polled_row():
    said = replace(FIRST, what="row", lane=None)
    assert rules(handled(said), database(said)) == []
    assert rules(handled(said), database(said, inbox={said.ref: "T"})) == ["a polled row does not have its status"]
    failed = Row(id=1, state=11, kind="polled", refs=(said.ref,), error_type="soak.tasks.Refusal")
    assert rules(handled(said), database(said, history=[failed], inbox={said.ref: "E"})) == []
    assert rules(handled(said), database(said, history=[failed])) == ["a polled row does not have its status"]


def test_bounded_queues():
    rows = [Row(id=number, state=0, queue="waiting") for number in range(MAX_LENGTH + 1)]
    assert list(too_long(Rows(live=rows[1:]))) == []
    assert [v.rule for v in too_long(Rows(live=rows))] == ["a bounded queue holds too many"]
    assert rules(Story(), database(places={"waiting": MAX_LENGTH})) == []
    assert rules(Story(), database(places={"waiting": 9})) == ["a bounded queue has not all of its places"]


def test_a_queue_without_any_place_is_read_as_such():
    found = read(lambda sql: [(0, 0)] if "COUNT(*) FROM QUEUE_CHANGE" in sql else [], whole=True)
    assert set(found.places.values()) == {0}


def test_what_payloads_belong_to():
    assert refs("by_key", [{"n": {"REF": "a"}}, {"n": {"REF": "b"}}]) == ("a", "b")
    assert refs("heard", [{"d": '{"ref": "a", "n": 1}'}]) == ("a",)
    assert refs("polled", [{"v": {"REF": "a"}}]) == ("a",)
