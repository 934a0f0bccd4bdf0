"""The account must be able to fail: hand-made ledgers that each hold one kind of violation."""

import pytest
from support.rules import broken

from soak.accounting import Row, Rows, Rules, account, mistaken_outages, tracebacks
from soak.ledger import Ledger, parse, read_ledger
from soak.report import summary, verdict
from soak.stories import Story


def row(ref="a", id=1, **fields):
    return Row(id=id, ref=ref, **fields)


def rules(story, rows, **given):
    """The rules that the account finds broken."""
    return sorted({v.rule for v in account(story.records, rows, Rules(**given))[0]})


def reasons(story, rows=None, **given):
    return dict(account(story.records, rows or Rows(history=[row()]), Rules(**given))[1])


@pytest.fixture
def story():
    return Story()


DONE = Rows(history=[row()])
UNEXPLAINED = ["a second run has no explanation"]


@pytest.mark.parametrize(("what", "target"), [("throttle", None), ("descriptors", 11)])
def test_a_slow_link_and_closed_descriptors_explain_a_second_run(story, what, target):
    story.enqueued().ran(1, None).fault(1.5, what, target, until=3).ran(4, 5, pid=12)
    assert rules(story, Rows(history=[row(crashes=1)])) == []


@pytest.mark.parametrize("what", ["row lock", "host lock"])
def test_a_lock_that_others_hold_explains_neither_a_second_run_nor_a_crash(story, what):
    story.enqueued().ran(1, 2).fault(1.5, what, None, until=6).ran(7, 8)
    assert rules(story, DONE) == UNEXPLAINED
    assert rules(story, Rows(history=[row(crashes=1)])) == [
        "a second run has no explanation", "a task is charged with crashes it had no part in",
    ]  # fmt: skip


def test_nothing_is_wrong_with_a_task_that_ran_once(story):
    assert rules(story.enqueued().ran(1, 2), DONE) == []


# Lost, stuck, unknown


def test_an_acknowledged_task_that_is_nowhere_is_lost(story):
    assert rules(story.enqueued().ran(1, 2), Rows()) == ["an acknowledged task is lost"]


def test_a_success_that_nobody_wants_leaves_no_row(story):
    assert rules(story.enqueued(kind="ignored").ran(1, 2, kind="ignored"), Rows()) == []


def test_but_it_must_have_returned(story):
    assert rules(story.enqueued(kind="ignored").ran(1, kind="ignored"), Rows()) == ["an acknowledged task is lost"]


def test_a_task_that_is_still_live_is_stuck(story):
    assert rules(story.enqueued(), Rows(live=[row(state=0)])) == ["a task is stuck in QUEUE_TASK"]


def test_also_one_whose_enqueue_was_uncertain(story):
    story.add(0, "attempt", ref="a", kind="quick", how="single").add(1, "uncertain", ref="a", error="cut")
    assert rules(story, Rows(live=[row(state=0)])) == ["a task is stuck in QUEUE_TASK"]


def test_no_task_runs_before_its_countdown_is_over(story):
    story.add(0, "delayed", ref="a", seconds=2.0).enqueued().ran(1.5, 1.6)
    assert rules(story, DONE) == ["a task ran before its time"]


def test_one_that_runs_when_it_is_due_is_in_time(story):
    story.add(0, "delayed", ref="a", seconds=2.0).enqueued().ran(1.95, 2.1)
    assert rules(story, DONE) == []


def test_an_uncertain_enqueue_may_have_happened_or_not(story):
    story.add(0, "attempt", ref="a", kind="quick", how="single").add(1, "uncertain", ref="a", error="cut")
    assert rules(story, Rows()) == []
    assert rules(story.ran(1, 2), DONE) == []


def test_a_run_that_nobody_asked_for(story):
    assert rules(story.ran(1, 2), Rows()) == ["a task ran that was not enqueued"]


def test_a_row_that_nobody_asked_for(story):
    assert "the database holds a task that was not enqueued" in rules(story, DONE)


def test_an_enqueue_that_made_two_tasks(story):
    story.enqueued().ran(1, 2).ran(1, 2, id="2")
    found = rules(story, Rows(history=[row(), row(id=2)]))
    assert "one enqueue made several tasks" in found


@pytest.mark.parametrize(("event", "word"), [("rolledback", "rolled back"), ("refused", "refused")])
def test_what_was_undone_must_not_run(story, event, word):
    story.add(0, "attempt", ref="a", kind="quick", how="transaction").add(0.5, event, ref="a", error="no")
    assert rules(story, Rows()) == []
    assert rules(story, Rows(history=[row(state=12)]))[-1] == f"the database holds a task whose enqueue was {word}"
    assert rules(story.ran(1, 2), Rows()) == [f"a task ran whose enqueue was {word}"]


# Second runs


def test_a_second_run_without_a_reason(story):
    assert rules(story.enqueued().ran(1, 2).ran(3, 4), DONE) == UNEXPLAINED


def test_two_runs_at_once_without_a_reason(story):
    assert rules(story.enqueued().ran(1, 4).ran(2, 3, pid=21, worker=20), DONE) == UNEXPLAINED


@pytest.mark.parametrize("target", [10, 11])
def test_the_death_of_its_worker_or_child_is_a_reason(story, target):
    story.enqueued().ran(1).fault(2, target=target).ran(3, 4, pid=21, worker=20)
    assert rules(story, DONE) == []
    assert reasons(story) == {"SIGKILL": 1}


def test_the_death_of_another_is_none(story):
    assert rules(story.enqueued().ran(1).fault(2, target=30).ran(3, 4), DONE) == UNEXPLAINED


def test_a_death_before_it_began_is_none(story):
    assert rules(story.enqueued().fault(0.5).ran(1, 2).ran(3, 4), DONE) == UNEXPLAINED


def test_a_death_just_after_its_end_may_have_prevented_the_commit(story):
    assert rules(story.enqueued().ran(1, 2).fault(3).ran(5, 6), DONE) == []


def test_but_not_long_after(story):
    assert rules(story.enqueued().ran(1, 2).fault(9).ran(10, 11), DONE) == UNEXPLAINED


def test_unless_everything_was_held_up_meanwhile(story):
    story.enqueued().ran(1, 2).fault(2.5, "SIGSTOP", 30, until=8.5).fault(9).ran(10, 11)
    assert rules(story, DONE, embedded=False, lease=30) == []


def test_a_reason_after_the_second_run_is_none(story):
    assert rules(story.enqueued().ran(1, 9).ran(3, 4, pid=21, worker=20).fault(8), DONE) == UNEXPLAINED


def test_one_death_is_a_reason_for_one_more_run_only(story):
    story.enqueued().ran(1).fault(2).ran(3, 4, pid=21, worker=20).ran(5, 6, pid=21, worker=20)
    assert rules(story, DONE) == UNEXPLAINED
    assert reasons(story) == {"SIGKILL": 1, "unexplained": 1}


def test_a_stop_longer_than_the_lease_is_a_reason_and_a_short_one_is_none(story):
    story.enqueued().ran(1, 8).fault(2, "SIGSTOP", until=7).ran(6, 6.5, pid=21, worker=20)
    assert rules(story, DONE, lease=3) == []
    assert rules(story, DONE, lease=30) == UNEXPLAINED


def test_a_run_that_began_while_its_worker_was_stopped_explains_itself(story):
    """Another worker had the task by then; a child of the stopped one had been sent it before."""
    story.enqueued().fault(2, "SIGSTOP", until=7).ran(5, 5.5, pid=21, worker=20).ran(6, 6.5)
    assert rules(story, DONE, lease=3, embedded=False) == []
    assert reasons(story, lease=3, embedded=False) == {"SIGSTOP before it began": 1}
    assert rules(story, DONE, lease=30, embedded=False) == UNEXPLAINED


def test_but_not_when_it_began_after_the_stop(story):
    story.enqueued().fault(2, "SIGSTOP", until=7).ran(5, 5.5, pid=21, worker=20).ran(7.5, 8)
    assert rules(story, DONE, lease=3, embedded=False) == UNEXPLAINED


def test_a_long_stop_of_another_is_a_reason_only_where_engines_share_locks(story):
    story.enqueued().ran(1, 8).fault(2, "SIGSTOP", 30, until=7).ran(6, 6.5, pid=21, worker=20)
    assert rules(story, DONE, lease=3, embedded=True) == []
    assert rules(story, DONE, lease=3, embedded=False) == UNEXPLAINED


@pytest.mark.parametrize("what", ["cut", "freeze", "refuse"])
def test_a_cut_connection_is_a_reason_for_whoever_ran(story, what):
    story.enqueued().ran(1, 3).fault(2, what, None, until=2.5).ran(4, 5, pid=21, worker=20)
    assert reasons(story) == {"connection": 1}


def test_retries_are_reasons_up_to_their_limit(story):
    story.enqueued(kind="retrying")
    for n in range(4):
        story.ran(n + 1, n + 1.1, kind="retrying", outcome="raised" if n < 3 else "returned", tries=n)
    rows = Rows(history=[row(kind="retrying", tries=4)])
    assert rules(story, rows) == []
    story.records[-1]["outcome"] = "raised"
    assert rules(story.ran(8, 9, kind="retrying", tries=4), rows) == UNEXPLAINED


def test_a_failure_without_retries_is_no_reason(story):
    story.enqueued(kind="failing").ran(1, 2, kind="failing", outcome="raised")
    story.ran(3, 4, kind="failing", outcome="raised")
    assert rules(story, Rows(history=[row(kind="failing", state=11)])) == UNEXPLAINED


def test_an_operators_retry_is_a_reason_once_and_only_if_it_was_done(story):
    story.enqueued(kind="failing").ran(1, 2, kind="failing", outcome="raised").operator(3, "retry", "done")
    story.ran(4, 5, kind="failing", outcome="raised")
    rows = Rows(history=[row(kind="failing", state=11)])
    assert rules(story, rows) == []
    assert rules(Story().enqueued().ran(1, 2).operator(3, "retry", "refused").ran(4, 5), DONE) == UNEXPLAINED
    assert rules(story.ran(6, 7, kind="failing", outcome="raised"), rows) == UNEXPLAINED


# Outcomes


def test_a_success_that_never_returned(story):
    assert rules(story.enqueued().ran(1), DONE) == ["a task succeeded that did not return"]


def test_a_failure_that_should_not_be(story):
    rows = Rows(history=[row(state=11, error_type="ValueError")])
    assert rules(story.enqueued().ran(1, 2, outcome="raised"), rows) == ["a task failed that should not"]


def test_a_task_given_up_before_its_crashes_reached_the_limit(story):
    story.enqueued().ran(1).fault(2)
    rows = Rows(history=[row(state=11, error_type="fbtasks.errors.WorkerLost", crashes=1)])
    assert rules(story, rows) == ["a task failed before its crashes reached the limit"]
    story.ran(3).fault(4).ran(5).fault(6)
    assert rules(story, Rows(history=[row(state=11, error_type="fbtasks.errors.WorkerLost", crashes=3)])) == []


def test_a_crash_that_was_not_its_own(story):
    rows = Rows(history=[row(crashes=1)])
    assert rules(story.enqueued().ran(1, 2), rows) == ["a task is charged with crashes it had no part in"]


def test_a_process_that_was_killed_before_its_task_could_say_that_it_began(story):
    story.enqueued().fault(1, target=77).ran(2, 3)
    assert rules(story, Rows(history=[row(crashes=1)])) == []
    assert rules(story, Rows(history=[row(crashes=2)])) == ["a task is charged with crashes it had no part in"]


def test_too_many_tries(story):
    assert rules(story.enqueued().ran(1, 2), Rows(history=[row(tries=5)])) == ["TRY_COUNT is above its limit"]


def test_a_cancellation_that_nobody_asked_for(story):
    rows = Rows(history=[row(state=12)])
    assert rules(story.enqueued(), rows) == ["a task was cancelled without a request"]
    assert rules(story.operator(1, "cancel", "cancelled"), rows) == []


def test_a_run_after_a_cancellation(story):
    rows = Rows(history=[row(state=12)])
    story.enqueued().operator(1, "cancel", "cancelled").ran(2, 3)
    assert rules(story, rows) == ["a task ran after it had been cancelled"]
    assert rules(story.operator(1.5, "retry", "done", number=2), rows) == []


# Effects


@pytest.mark.parametrize("runs", [[], ["11.2", "11.3"]])
def test_a_success_has_its_effect_exactly_once(story, runs):
    story.enqueued(kind="transactional").ran(1, 2, kind="transactional")
    rows = Rows(history=[row(kind="transactional")], effects=[("a", run) for run in runs])
    assert rules(story, rows) == ["a transactional effect is not there exactly once"]
    assert rules(story, Rows(history=rows.history, effects=[("a", "11.2")])) == []


def test_what_did_not_succeed_has_no_effect(story):
    story.enqueued(kind="transactional").ran(1, 2, kind="transactional").operator(0.5, "cancel", "done")
    rows = Rows(history=[row(kind="transactional", state=12)], effects=[("a", "11.2")])
    assert rules(story, rows) == ["a transactional effect of a task that did not succeed"]


def test_an_effect_of_a_task_that_is_nowhere(story):
    assert rules(story, Rows(effects=[("a", "11.2")])) == ["a transactional effect of a task that has not ended"]


# The database at any moment, processes, logs


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        (Rows(live=[row(state=2, worker_id=7)]), "a running task's worker is not registered"),
        (Rows(live=[row(state=2)]), "a task has a worker and does not run, or runs without"),
        (Rows(live=[row(state=0, worker_id=7)]), "a task has a worker and does not run, or runs without"),
        (Rows(live=[row(state=10)]), "a task in QUEUE_TASK has ended"),
        (Rows(live=[row(state=0, crashes=3)]), "a task goes on whose crashes have reached the limit"),
        (Rows(history=[row(state=0)]), "a task in QUEUE_HISTORY has not ended"),
        (Rows(history=[row(tries=0)]), "a task succeeded without a try"),
        (Rows(history=[row(crashes=3)]), "a task went on whose crashes had reached the limit"),
        (Rows(history=[row(state=12, crashes=4)]), "a task went on whose crashes had reached the limit"),
        (Rows(live=[row(state=0)], history=[row()]), "an id is both in QUEUE_TASK and in QUEUE_HISTORY"),
        (Rows(payloads=frozenset({1})), "a row of QUEUE_PAYLOAD has no task"),
        (Rows(history=[row()], payloads=frozenset({1})), "a row of QUEUE_PAYLOAD is that of a success"),
        (Rows(live=[row(state=0)], results=frozenset({1})), "a row of QUEUE_RESULT has no finished task"),
        (Rows(task_ids=frozenset({1})), "a row of QUEUE_TASK_ID has no task"),
        (Rows(history=[row()], cancels=frozenset({1})), "a row of QUEUE_CANCEL has no live task"),
        (Rows(workers=frozenset({7})), "a worker is registered that is gone"),
    ],
)
def test_the_rules_of_the_tables(rows, rule):
    assert [v.rule for v in broken(rows)] == [rule]


def test_a_worker_that_leaves_may_leave_a_locked_row_for_a_while():
    rows = Rows(live=[row(state=2, worker_id=7)])
    assert broken(rows, at_rest=False, orphans=True) == []
    assert len(broken(rows, at_rest=False)) == len(broken(rows, orphans=True)) == 1


def test_a_running_task_of_a_registered_worker_is_right():
    assert broken(Rows(live=[row(state=2, worker_id=7)], workers=frozenset({7})), at_rest=False) == []


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"what": "ended", "name": "w", "code": 1, "expected": False}, "a worker ended by itself"),
        ({"what": "orphan"}, "a process outlived its worker"),
        ({"what": "hung", "name": "w"}, "a process did not end when asked"),
    ],
)
def test_processes(story, fields, rule):
    assert rules(story.add(1, "worker", target=10, **fields), Rows()) == [rule]


def test_what_was_seen_meanwhile(story):
    assert rules(story.add(1, "sample", violations=["x"]), Rows()) == ["seen while everything ran"]


def test_tracebacks_are_found_with_what_follows():
    log = "fine\nTraceback (most recent call last):\n  File ...\nValueError: x\n"
    (found,) = tracebacks("w", log)
    assert found.evidence[-1] == "ValueError: x"
    assert tracebacks("w", "fine\n") == []
    own = "2027-01-01 00:00:00,000 ERROR Task 1 (soak.tasks.refuse) failed in 0.1 s: soak.tasks.Refusal: x\n"
    assert tracebacks("w", own + "  Traceback (most recent call last):\n    File ...\n") == []
    ended = "2027-01-01 00:00:00,000 ERROR This process can run no more tasks and ends.\n"
    assert len(tracebacks("w", ended + "  Traceback (most recent call last):\n    File ...\n")) == 1
    child = "fbtasks: child process 7 can run no more tasks and ends: an error outside of the tasks.\n"
    trace = "Traceback (most recent call last):\n  File ...\n"
    assert tracebacks("w", child + trace + "OSError: [Errno 9] Bad file descriptor\n") == []
    assert len(tracebacks("w", child + trace + "RuntimeError: x\n")) == 1


def test_a_violation_is_shown_with_the_ledgers_lines(story):
    story.enqueued().ran(1, 2).ran(3, 4)
    violations, explained = account(story.records, DONE, Rules())
    text = verdict(violations)
    assert "a second run has no explanation: a" in text
    assert "'event': 'start'" in text
    assert "unexplained 1" in summary(story.records, DONE, explained, explained, 1.0)
    assert verdict([]) == "Every task is accounted for."


def test_the_ledger_is_read_back_in_order(tmp_path):
    ledgers = [Ledger(tmp_path, role) for role in ("one", "two")]
    for n in range(10):
        ledgers[n % 2].write("note", text=f"{n}")
    for ledger in ledgers:
        ledger.close()
    assert [record["text"] for record in read_ledger(tmp_path)] == [str(n) for n in range(10)]
    with pytest.raises(ValueError, match="Expecting"):
        parse(['{"t": 1, "event": '])


def test_a_conflict_that_was_taken_for_an_outage():
    line = "2026-11-22 09:47:50,434 ERROR The database is away: {} Trying again in 0.1 s."
    text = "\n".join(
        map(line.format, ("deadlock -update conflicts with concurrent update", "db.example cannot be reached."))
    )
    assert [v.rule for v in mistaken_outages("w", text)] == ["a conflict was taken for an outage"]
