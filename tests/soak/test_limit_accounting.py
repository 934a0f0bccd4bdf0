"""The account of limits, unique calls, workflows and schedules must be able to fail: ledgers written by hand."""

import pytest

from fbtasks.states import State
from soak.accounting import Row, Rows, Rules, sort_out
from soak.limit_accounting import account_limits
from soak.limited import BURST, LIMITS, RATE, LimitRows, lanes_of
from soak.report import at_once, of_limits
from soak.stories import Story

TICKS = (10.0, 11.0, 12.0)


class Limits(Story):
    """A ledger with tasks that have limits."""

    def has(self, kind, ref, start, end=None, key="k", **given):
        if not any(r["event"] == "attempt" and r["ref"] == ref for r in self.records):
            self.enqueued(ref=ref, id=ref, kind=kind, t=given.pop("t", 0.0))
        self.ran(start, end, ref=ref, id=ref, kind=kind, **given)
        next(r for r in reversed(self.records) if r["event"] == "start")["lanes"] = lanes_of(kind, key)
        return self

    def flow(self, kind="chain", size=3, fails=None, ref="f"):
        self.add(0, "flow", ref=ref, kind=kind, size=size, fails=fails)
        return self.add(0.1, "flow made", ref=ref, ids=[])

    def steps(self, *starts, kind="step", outcome="returned"):
        for number, start in enumerate(starts):
            self.ran(start, start + 0.5, ref=f"f.{number}", id=str(number), kind=kind, outcome=outcome)
            self.records[-2]["got"] = [f"f.{number - 1}"] if number and kind == "step" else []
        return self


def row(ref, id=1, state=State.SUCCEEDED, **fields):
    return Row(id=id, ref=ref, state=state, **fields)


def rules(story, rows=None, left=None, claims=(), ticks=TICKS):
    rows = rows or Rows()
    rows = Rows(live=rows.live, history=rows.history, limits=LimitRows(claims=claims, ticks=ticks))
    return sorted({v.rule for v in account_limits(story.records, rows, Rules(), left or {})})


@pytest.fixture
def story():
    return Limits()


def test_nothing_is_wrong_with_nothing(story):
    assert rules(story) == []


MANY = ["more tasks at once than the limit says"]


@pytest.mark.parametrize("kind", ["alone", "few", "several", "gated", "ordered"])
def test_one_more_at_once_than_the_limit_says(story, kind):
    most = LIMITS.get(kind, 1)
    for number in range(most):
        story.has(kind, f"t{number}", 1 + number / 100, 5)
    assert rules(story) == []
    assert sum(at_once(sort_out(story.records)).values()) == sum(most for _ in lanes_of(kind, "k"))
    story.has(kind, "other key", 2, 3, key="other")
    assert rules(story) == (MANY if kind == "several" else [])
    story.has(kind, "more", 4.9, 6)
    assert rules(story) == MANY


def test_one_after_the_other_is_not_at_once(story):
    assert rules(story.has("alone", "a", 1, 2).has("alone", "b", 2.01, 3)) == []


def test_a_killed_one_has_its_place_until_it_was_killed_and_again_when_it_runs_again(story):
    story.has("alone", "a", 1).fault(2).has("alone", "a", 4, 5, pid=12, worker=20)
    assert rules(story) == []
    story.has("alone", "b", 1.5, 1.6, pid=30, worker=31)
    assert rules(story) == MANY


def test_a_rescued_one_that_another_overlaps(story):
    story.has("alone", "a", 1).fault(2).has("alone", "a", 4, 5, pid=12, worker=20)
    assert rules(story.has("alone", "b", 4.5, 4.6, pid=30, worker=31)) == MANY


ORDER = ["a task overtook one that it had to follow"]


def test_an_inversion(story):
    story.has("ordered", "a", 3, 4, t=0).has("ordered", "b", 1, 2, t=0.5)
    assert rules(story) == ORDER


def test_no_inversion_where_the_calls_were_made_at_once(story):
    assert rules(story.has("ordered", "a", 3, 4, t=0).has("ordered", "b", 1, 2, t=0.05)) == []


def test_one_that_did_not_wait_for_the_retry_of_the_one_before(story):
    story.has("ordered", "a", 1, 2, t=0, outcome="raised").has("ordered", "b", 2.1, 2.2, t=0.5, pid=14)
    assert rules(story.has("ordered", "a", 3, 4, pid=15, tries=1)) == ORDER


def test_one_that_was_cancelled_and_put_back_may_be_overtaken(story):
    story.has("ordered", "a", 8, 9, t=0).operator(0.2, "cancel", "cancelled", id="a")
    story.operator(5, "retry", "done", id="a", number=2)
    assert rules(story.has("ordered", "b", 1, 2, t=0.5, pid=14)) == []
    assert rules(story.has("ordered", "a", 3, 4, pid=15)) == ORDER


def test_a_rate(story):
    even = [10 + number / RATE for number in range(100)]
    assert rules(story, claims=even) == []
    assert rules(story, claims=sorted([10.0] * BURST + even)) == []
    assert rules(story, claims=[10 + number / RATE / 3 for number in range(200)]) == [
        "more tasks began in a time than the rate lets"
    ]


def asked(story, t, ref="a-k-1"):
    return story.add(t, "asked", ref=ref, key="k").add(t + 0.1, "granted", ref=ref)


UNCOVERED = ["a call that was merged is not covered by a run"]


def test_a_merged_call_is_covered_by_a_run_that_began_after_it(story):
    asked(story, 1)
    assert rules(story) == UNCOVERED
    story.ran(0.5, 3, ref="a-k-1", id="1", kind="once")
    assert rules(story) == UNCOVERED
    assert rules(story.ran(1.5, 3, ref="a-k-1", id="1", kind="once")) == []


def test_a_run_of_another_key_covers_nothing(story):
    asked(asked(story, 1), 1, "a-other-2")
    story.records[-2]["key"] = "other"
    assert rules(story.ran(1.5, 3, ref="a-other-2", id="1", kind="once")) == UNCOVERED


def test_a_unique_task_that_was_never_asked_for(story):
    assert rules(story.ran(1.5, 3, ref="x-k-1", id="1", kind="once")) == ["a task ran that was not enqueued"]


def test_a_unique_task_that_is_stuck(story):
    assert rules(story, Rows(live=[row("a-k-1", state=State.HELD, kind="once")])) == ["a task is stuck in QUEUE_TASK"]


def done(*states, kind="step"):
    return [row(f"f.{number}", number, state, kind=kind) for number, state in enumerate(states)]


WHOLE = Rows(history=done(*[State.SUCCEEDED] * 3))


def test_a_chain(story):
    assert rules(story.flow().steps(1, 2, 3), WHOLE) == []


def test_a_step_that_is_lost_or_stuck(story):
    story.flow().steps(1, 2)
    assert rules(story, Rows(history=WHOLE.history[:2])) == ["a step of a workflow is lost"]
    stuck = Rows(history=WHOLE.history[:2], live=[row("f.2", 2, State.AWAITING, kind="step")])
    assert rules(story, stuck) == ["a step of a workflow is stuck"]


def test_a_step_that_ran_before_the_one_before(story):
    assert rules(story.flow().steps(1, 1.2, 3), WHOLE) == ["a step ran before what it follows"]


def test_a_step_that_was_given_something_else(story):
    story.flow().steps(1, 2, 3)
    story.records[-2]["got"] = ["f.0"]
    assert rules(story, WHOLE) == ["a step was not given what it follows"]


OTHERWISE = ["a step of a workflow ended otherwise than it says"]


def test_what_follows_a_failure_is_cancelled(story):
    story.flow(fails=1).steps(1, 2)
    assert rules(story, Rows(history=done(State.SUCCEEDED, State.FAILED, State.CANCELLED))) == []
    assert rules(story, Rows(history=done(State.SUCCEEDED, State.FAILED, State.SUCCEEDED))) == OTHERWISE


def test_but_not_where_an_operator_was_at_it(story):
    story.flow().steps(1, 2).operator(2, "cancel", "cancelled", id="2")
    assert rules(story, Rows(history=done(State.SUCCEEDED, State.SUCCEEDED, State.CANCELLED))) == []


@pytest.mark.parametrize(
    ("got", "start", "found"),
    [
        (["f.0", "f.1"], 3, []),
        (["f.1", "f.0"], 3, ["a step was not given what it follows"]),
        (["f.0"], 3, ["a step was not given what it follows"]),
        (["f.0", "f.1"], 1.2, ["a step ran before what it follows"]),
    ],
)
def test_the_body_of_a_chord(story, got, start, found):
    story.flow("chord", 2).steps(1, 1.1, kind="member")
    story.ran(start, start + 1, ref="f.body", id="9", kind="body")
    story.records[-2]["got"] = got
    rows = Rows(history=[*done(*[State.SUCCEEDED] * 2, kind="member"), row("f.body", 9, kind="body")])
    assert rules(story, rows) == found


def test_a_refused_workflow_that_is_there(story):
    story.add(0, "flow", ref="f", kind="chain", size=3, fails=None).add(1, "flow refused", ref="f")
    assert rules(story, WHOLE) == ["the database holds steps of a workflow that was refused"]


def test_a_workflow_that_is_there_in_part(story):
    story.add(0, "flow", ref="f", kind="chain", size=3, fails=None).add(1, "flow uncertain", ref="f")
    assert rules(story) == []
    assert rules(story, Rows(history=WHOLE.history[:2])) == ["a step of a workflow is lost"]


def test_a_step_of_a_workflow_that_was_not_made(story):
    assert rules(story.steps(1)) == ["a step ran of a workflow that was not enqueued"]


MISSED = ["a schedule missed a tick"]


@pytest.mark.parametrize(
    ("ticks", "found"),
    [((), MISSED), ((1.0, 3.0), MISSED), ((1.0, 2.0, 2.0), ["a schedule ticked twice for one moment"])],
)
def test_ticks(story, ticks, found):
    assert rules(story, ticks=ticks) == found


def test_what_is_left(story):
    assert rules(story, left={"QUEUE_GATE": 0}) == []
    assert rules(story, left={"QUEUE_GATE": 1}) == ["something is left of tasks that have ended"]


def test_the_summary(story):
    asked(story.has("few", "a", 1, 2).flow().steps(1, 2, 3), 1)
    text = of_limits(story.records, Rows(limits=LimitRows(ticks=TICKS)))
    assert "at once       few 1 of 3" in text
    assert "merged        1 calls in 0 tasks" in text
    assert "workflows     1, with 3 step, 0 member, 0 body" in text
    assert "ticks         3" in text
