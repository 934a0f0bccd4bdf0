"""What `inspect task` and `inspect held` say of a task that waits: what keeps it from running, and what to do."""

import json
import re

import pytest
from support.feeding import change, subscribe
from support.listing import tasks_in
from support.programs import command_line
from support.registering import register
from support.sql import execute, one

from fbtasks import Ordered, Unique, debounce
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing
from fbtasks.queue.operations import tasks as service
from fbtasks.states import State
from fbtasks.tasks.call import Failed, Finished, Reason, Requeue

pytestmark = pytest.mark.emptied

FAILED = Failed("E", "m", "")


@pytest.fixture
def served(app):
    """Registers a worker that serves the queue, knows the task `known`, and sends no heartbeat."""
    app.migrate()
    register(app, tasks=["known"])
    return app


def why(app, task):
    return service.get_task(app.database, str(task)).why


def waits_for(app):
    return {each.id: each.waits_for for each in tasks_in(app, State.HELD)[0]}


def test_a_parked_task_says_whether_its_name_is_paused_or_unknown(served, claim, session):
    app = served
    mail, known = (app.task(name=name)(lambda: None) for name in ("mail", "known"))
    first, second = mail.delay(), known.delay()
    assert why(app, first.id) == why(app, second.id) == []
    pausing.pause(app.database, names=["mail"])
    remedy = "To go on: fbtasks resume --task mail"
    assert why(app, first.id) == [f"the task name mail is paused, and it is parked. {remedy}"]
    later = mail.delay()
    assert why(app, later.id) == [f"the task name mail is paused, and it will be parked when its turn comes. {remedy}"]
    (other,) = claim()
    assert why(app, later.id) == [f"the task name mail is paused, and it is parked. {remedy}"]
    session.run(lambda t: tasks.finish(t, 1, 0, [Finished(other, Requeue(Reason.PARKED))]))
    assert why(app, second.id) == [
        "a worker took it that does not know its name, and it is parked. One that knows it takes it in a moment"
    ]
    execute(app, "UPDATE QUEUE_RULE SET PAUSED = 0")
    parked, start = "no worker knows a task of this name, and it is parked.", "Start one of an app that has it: "
    start += "fbtasks worker -A MODULE -Q default"
    assert why(app, first.id) == [f"{parked} {start}"]
    register(app, tasks=["email"])
    assert why(app, first.id) == [f"{parked} Did you mean 'email'? {start}"]


def test_a_queue_that_is_paused_closed_or_not_served_is_named(served):
    app = served
    task = app.task(name="known")(lambda: None)
    first = task.delay()
    pausing.pause(app.database, ["default"])
    assert why(app, first.id) == ["its queue default is paused. To go on: fbtasks resume default"]
    pausing.resume(app.database, ["default"])
    assert why(app, first.id) == []
    execute(app, "UPDATE QUEUE_POLICY SET WINDOWED = 1")
    assert why(app, first.id) == ["its queue default is closed"]
    execute(app, "INSERT INTO QUEUE_SHIFT (QUEUE, OPEN_TIME, CLOSE_TIME) VALUES ('default', '2990-1-1', '2991-1-1')")
    assert why(app, first.id) == ["its queue default is closed until 2990-01-01 00:00 UTC"]
    execute(app, "DELETE FROM QUEUE_PROCESS")
    assert why(app, first.id)[1:] == [
        "no worker serves its queue default. Start one: fbtasks worker -A MODULE -Q default"
    ]
    execute(app, "UPDATE QUEUE_POLICY SET WINDOWED = 0")
    later = task.apply_async(countdown=3600)
    assert why(app, later.id) == []


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"rate": "1/h"}, r"queue:default lets in the next one at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"),
        (
            {"at_once": 1},
            "1 task of its queue default runs, as many as its limit lets in. To let in more: "
            "fbtasks limits set queue:default --at-once N",
        ),
    ],
    ids=["rate", "at_once"],
)
def test_the_limit_of_a_queue_is_named_when_it_is_full(served, claim, limit, said):
    app = served
    app.queue("default", **limit)
    task = app.task(name="known")(lambda: None)
    _, second = task.delay(), task.delay()
    assert why(app, second.id) == []
    claim()
    assert re.fullmatch(said, *why(app, second.id))


def test_a_held_task_says_which_tasks_have_the_places(served, claim):
    app = served
    app.limit("customer", at_once=2)
    app.limit("sms", rate="1/h")
    task = app.task(name="bill", limits={"customer": "n", "sms": None})(lambda n: None)
    *_, last = [task.delay(1) for _ in range(3)]
    execute(app, "UPDATE QUEUE_LIMIT SET SET_BURST = 9 WHERE NAME = 'sms'")
    assert len(claim() + claim()) == 2
    assert why(app, last.id) == ["customer is taken by tasks 1, 2, which run"]


def test_an_order_says_what_closed_its_key_and_a_lone_task_what_has_its_place(served, claim, end):
    app = served
    move = app.task(name="move", ordered=Ordered("key", stop_on_failure=True))(lambda key: None)
    first, second = move.delay(1), move.delay(1)
    running = claim()
    assert why(app, second.id) == [f"ordered:move is taken by task {first.id}, which runs"]
    end(running, FAILED)
    assert claim() == []
    assert why(app, second.id) == [
        f"its key of ordered:move is closed since task {first.id} failed. Retry that task, or pass it by: "
        f"fbtasks limits resume ordered:move --task {first.id}"
    ]


def test_a_task_that_keeps_its_place_for_another_try_is_told(served, claim, end):
    app = served
    move = app.task(name="move", ordered="key")(lambda key: None)
    first, second = move.delay(1), move.delay(1)
    end(claim(), Requeue(Reason.RETRY, 60.0, "later"))
    assert claim() == []
    assert why(app, second.id) == [
        f"ordered:move is taken by task {first.id}, which waits for another try, or is parked"
    ]


def test_a_rate_and_a_debounce_say_when(served, claim):
    app = served
    app.limit("sms", rate="1/h")
    sms = app.task(name="sms", limits="sms")(lambda: None)
    quiet = app.task(name="quiet", unique=Unique(conflict=debounce(60)))(lambda: None)
    _, second, third = sms.delay(), sms.delay(), quiet.delay()
    claim()
    assert re.fullmatch(r"sms lets in the next one at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", *why(app, second.id))
    assert re.fullmatch(r"unique:quiet lets in the next one at \d{4}-.* UTC", *why(app, third.id))
    execute(app, "DELETE FROM QUEUE_LIMIT WHERE NAME = 'sms'")
    assert why(app, second.id) == ["no app defines the limit that it waits for. Cancel it, and call it anew"]


def test_a_step_leads_to_its_workflow(served):
    app = served
    step = app.task(name="step")(lambda *given: None)
    last = (step.s() | step.s()).apply_async()
    assert why(app, last.id) == [f"a step that it follows has not ended: fbtasks inspect workflow {last.id}"]


@pytest.mark.parametrize("stops", [0, 1])
def test_a_held_task_of_a_source_names_its_lane_and_what_has_it(served, claim, end, session, url, capsys, stops):
    app = served
    app.task(name="known")(len)
    subscribe(app, "known", most=1, stops=stops)
    change(app, 1)
    (first,) = claim()
    end([first], FAILED)
    if stops:
        claim()
        execute(app, "UPDATE QUEUE_GATE SET HOLDER_ID = 77")  # another one has failed since
    else:
        change(app, 1)
        (second,) = claim()
    assert session.call("FBTASKS_OPERATOR.RETRY", first.id)
    assert not claim()
    assert waits_for(app) == {first.id: ["lane of known"]}
    assert why(app, first.id) == [
        "its lane stands still since task 77 failed. Discard that task, or put it back: fbtasks retry 77"
        if stops
        else f"task {second.id} of its lane has not ended: fbtasks inspect task {second.id}"
    ]
    app.close()
    assert command_line("inspect", "held", "--url", url) == 0
    assert " lane of known " in capsys.readouterr().out
    assert command_line("inspect", "task", str(first.id), "--url", url) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^WAITS FOR +lane of known \(for ", shown, re.MULTILINE)
    assert (
        "It waits: its lane" in shown or f"of its lane has not ended:\n    fbtasks inspect task {second.id}\n" in shown
    )
    assert command_line("inspect", "task", str(first.id), "--url", url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["why"] == why(app, first.id)


def test_a_task_of_a_source_waits_for_its_lane_before_its_limits(served, claim, end, session):
    app = served
    app.limit("one", at_once=1)
    app.task(name="other", limits="one")(lambda: None).delay()
    running = claim()
    gates = Requeue(Reason.HELD, message=f"-{one(app, 'SELECT ID FROM QUEUE_LIMIT'):11}{0:20}")
    subscribe(app, "known", id=77, most=1)
    change(app, 1, id=77)
    (first,) = claim()
    end([first], gates)
    assert waits_for(app) == {first.id: ["one"]}
    assert why(app, first.id) == [f"one is taken by task {running[0].id}, which runs"]
    end(running)
    end(claim(), FAILED)
    change(app, 1, id=77)
    (second,) = claim()
    assert session.call("FBTASKS_OPERATOR.RETRY", first.id)
    assert waits_for(app) == {first.id: ["lane of known", "one"]}  # as its note tells
    assert not claim()
    assert waits_for(app) == {first.id: ["lane of known", "one"]}  # as its ticket tells
    assert why(app, first.id) == [f"task {second.id} of its lane has not ended: fbtasks inspect task {second.id}"]
