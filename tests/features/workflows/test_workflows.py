"""Workflows: what follows what, exactly once, whatever ends and however it ends."""

import gc
import json
import tracemalloc
from contextlib import closing, contextmanager
from datetime import UTC, datetime

import pytest
from support.draining import drain
from support.programs import command_line
from support.results import failure
from support.sql import execute, one, rows, table_reads
from support.steps import Steps, claim, finish

from fbtasks import (
    AsyncResult,
    ChordError,
    EnqueueError,
    FBTasks,
    GroupResult,
    QueueFull,
    ResultTimeout,
    TaskNotFound,
    TaskRevoked,
    UnknownTaskError,
    chain,
    chord,
    group,
)
from fbtasks.features.workflows import canvas
from fbtasks.features.workflows import operations as workflows
from fbtasks.firebird.session import UPDATE
from fbtasks.queue import codec, tasks
from fbtasks.queue.operations import tasks as services
from fbtasks.states import State
from fbtasks.tasks.call import Cancelled, Failed, Reason, Requeue

pytestmark = pytest.mark.emptied


@pytest.fixture
def steps(app):
    return Steps(app)


def test_each_step_is_given_the_result_of_the_one_before_it(run, steps):
    add = steps.add
    result = run(add.s(1, 2) | add.s(3) | add.si(10, 20) | add.s(other=5))
    assert isinstance(result, AsyncResult)
    assert result.get(timeout=10) == 35
    assert result.parent.parent.get(timeout=10) == 6
    assert result.parent.parent.parent.parent is None
    assert run(chain(add.s(i) for i in (1, 2, 3))).get(timeout=10) == 6
    assert run(chain(add.s(1), add.s(2)), args=(5,)).get(timeout=10) == 8


def test_a_group_is_followed_with_the_list_of_its_results_in_its_order(run, steps):
    add, text = steps.add, steps.text
    result = run(group(add.s(i, i) for i in range(3)))
    assert isinstance(result, GroupResult)
    assert result.get(timeout=10) == result.join(timeout=10) == [0, 2, 4]
    assert (len(result), result.completed_count(), result.ready(), result.successful()) == (3, 3, True, True)
    assert run(group(add.s(1), add.s(2)) | steps.total.s()).get(timeout=10) == 3
    result = run(chord([add.s(1), add.s(2)], steps.total.s()) | add.s(10))
    assert result.get(timeout=10) == 13
    assert result.parent.parent.get(timeout=10) == [1, 2]
    nested = add.s(1) | group(add.s(1), add.s(2) | add.s(3), group(add.s(5), group(add.s(6), add.s(7)))) | text.s()
    assert run(nested).get(timeout=10) == "[2, 6, [6, [7, 8]]]"
    assert run(group(add.s(1), add.s(2)) | group(text.s(), steps.total.s())).get(timeout=10) == ["[1, 2]", 3]
    inner = group(chord([add.s(1), add.s(2)], steps.total.s()), add.s(4)) | text.s()
    assert run(inner).get(timeout=10) == "[3, 4]"


def test_empty_groups_have_empty_results_and_those_of_one_have_one(run, steps):
    add, text = steps.add, steps.text
    assert run(group([])).get() == []
    assert run(group([]) | text.s()).get(timeout=10) == "[]"
    assert run(add.s(1) | group([]) | text.s()).get(timeout=10) == "[]"
    assert run(add.s(1) | group([])).get() == []
    assert run(group(add.s(1), group([]), group(group([]))) | text.s()).get(timeout=10) == "[1, [], [[]]]"
    assert run(group(add.s(1)) | group([])).get() == []
    assert len(run(group(add.s(1)))) == 1
    assert run(group(group(add.s(2))) | text.s()).get(timeout=10) == "[[2]]"


def test_what_follows_a_failure_does_not_run(run, steps):
    add, boom, note = steps.add, steps.boom, steps.note
    result = run((boom.s(1) | add.s(1) | note.s()).link_error(note.s()))
    error = failure(result)
    assert isinstance(error, TaskRevoked)
    assert "ValueError: boom" in str(error)
    ((failed, given),) = steps.seen
    assert repr(given) == "ValueError('boom')"
    if "-" not in failed:
        assert failed == result.parent.parent.id
        assert f"task {failed} (boom) failed" in str(error)
    steps.seen.clear()
    result = run(chord([add.s(1), boom.s()], note.s()).link_error(note.si("told")) | note.s())
    assert isinstance(failure(result), TaskRevoked)
    assert isinstance(failure(result.parent), ChordError)
    assert "ValueError: boom" in str(failure(result.parent))
    assert steps.seen == [("told",)]


def test_what_is_linked_runs_after_success_and_errbacks_do_not(run, steps):
    note = steps.note
    result = run(steps.add.s(1, 2).link(note.s("a")).link(note.si("b") | note.s("c")).link_error(note.s("never")))
    assert result.get(timeout=10) == 3
    assert sorted(steps.seen, key=str) == [("b", "c"), ("b",), (3, "a")]


def test_a_body_may_collect_exceptions(run, steps):
    add, boom = steps.add, steps.boom
    members = [add.s(1), boom.s(), boom.s() | add.s(1), group(add.s(2), boom.s())]
    got = run(chord(members, steps.text.s(), on_error="collect")).get(timeout=10)
    assert got.startswith("[1, ValueError('boom'), TaskRevoked(")
    assert got.endswith("[2, ValueError('boom')]]")


def test_a_group_without_a_body_waits_for_none(app, steps):
    result = group(steps.add.s(1), steps.boom.s(), group(steps.add.s(2))).delay()
    assert (result.ready(), result.waiting(), result.failed()) == (False, True, False)
    with pytest.raises(ResultTimeout, match="3 of 3 tasks"):
        result.get(timeout=0)
    drain(app)
    with pytest.raises(ValueError, match="boom"):
        result.get(timeout=10)
    values = result.get(timeout=10, propagate=False)
    assert (values[0], repr(values[1]), values[2]) == (1, "ValueError('boom')", [2])
    assert (result.completed_count(), result.ready(), result.successful(), result.failed()) == (2, True, False, True)
    assert steps.structure() == (0, 0, 0)


def test_all_of_it_is_there_from_the_beginning_and_nothing_is_left(app, steps):
    result = (steps.add.s(1) | group(steps.add.s(i) for i in range(3)) | steps.total.s()).delay()
    assert rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_TASK GROUP BY STATE ORDER BY STATE") == [(0, 1), (5, 4)]
    assert [bytes(payload) for (payload,) in rows(app, "SELECT PAYLOAD FROM QUEUE_TASK ORDER BY ID")] == [
        b"[[1],{}]", b"[[0],{}]", b"[[1],{}]", b"[[2],{}]", b"[[],{}]",
    ]  # fmt: skip
    assert result.status == "PENDING"
    assert services_count(app) == 4
    drain(app)
    assert result.get(timeout=10) == 6
    assert steps.left() == (0, 0)
    execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = FINISH_TIME - 100")
    assert sum(services.prune(app.database)) == 5
    assert steps.structure() == (0, 0, 0)


def services_count(app):
    return one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 5")


def test_results_are_kept_until_they_have_been_given(app, steps):
    """With ignore_result too, and not pruned; and the run of one that has lost them says so."""
    result = (steps.note.s(7) | steps.add.s(1).set(countdown=3600)).delay()
    group(steps.note.s(1), steps.note.s(2)).link_error(steps.note.s())  # is followed by nothing
    waiting = (group(steps.note.s(1), steps.note.s(2)) | steps.total.s().set(countdown=3600)).delay()
    drain(app)
    execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = FINISH_TIME - 100")
    assert sum(services.prune(app.database)) == 0
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = START_TIME - 1")
    drain(app)
    assert (result.get(timeout=10), waiting.get(timeout=10)) == (8, 3)
    assert sum(services.prune(app.database)) == 3
    lost = (steps.add.s(1) | steps.add.s(1).set(countdown=3600)).delay()
    drain(app)
    assert lost.parent.forget()
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = START_TIME - 1")
    drain(app)
    with pytest.raises(TaskNotFound, match="not there any more"):
        lost.get(timeout=10)


def test_times_of_a_step_count_from_when_it_is_ready(app, session, steps):
    result = (steps.add.s(1) | steps.add.s(1).set(countdown=60, expires=600)).delay()
    execute(
        app,
        "UPDATE QUEUE_TASK SET RAISE_TIME = RAISE_TIME - 1, START_TIME = START_TIME - 1, EXPIRE_TIME = EXPIRE_TIME - 1",
    )
    assert session.run(lambda t: tasks.expire(t, 0))[0] == 0  # it is not its time yet
    drain(app)
    sql = (
        "SELECT STATE, DATEDIFF(SECOND FROM QUEUE_NOW() TO START_TIME), "
        "DATEDIFF(SECOND FROM START_TIME TO EXPIRE_TIME) FROM QUEUE_TASK"
    )
    ((state, starts, expires),) = rows(app, sql)
    assert (state, 50 <= starts <= 60, expires) == (1, True, 540)
    assert result.status == "PENDING"


def test_large_results_and_many(app, steps):
    big = app.task(name="big")(lambda n: "x" * n)
    length = app.task(name="length")(
        lambda *given: [len(each) for each in given[0]] if isinstance(given[0], list) else len(given[0])
    )
    results = [(big.s(n) | length.s()).delay() for n in (10, 2_500, 100_000)]
    several = (group(big.s(n) for n in (1, 3_000, 1_900, 50_000)) | length.s()).delay()
    many = (group(steps.add.s(i) for i in range(400)) | steps.total.s()).delay()
    drain(app)
    assert [each.get(timeout=10) for each in results] == [10, 2_500, 100_000]
    assert several.get(timeout=10) == [1, 3_000, 1_900, 50_000]
    assert many.get(timeout=10) == sum(range(400))
    with closing(FBTasks("signed", app.settings.url, serializer="cloudpickle", signing_key=b"k")) as other:
        pickled = Steps(other)
        result = (pickled.add.s(1) | group(pickled.add.s(i) for i in range(3)) | pickled.total.s()).delay()
        drain(other)
        assert result.get(timeout=10) == 6


@contextmanager
def sessions(app, number):
    with app.database.session() as first:
        if number == 1:
            yield [first]
        else:
            with sessions(app, number - 1) as others:
                yield [first, *others]


def ready(app):
    return one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'text' AND STATE = 0")


@pytest.mark.parametrize(
    "outcomes", [(None, None), (None, Failed("E", "m")), (Failed("E", "m"), None), (Failed("E", "m"),) * 2]
)
def test_of_two_members_that_end_at_once_one_decides(app, steps, outcomes):
    """Neither transaction sees the other's; a claim looks at what was noted."""
    result = (group(steps.add.s(1), steps.add.s(2)) | steps.text.s()).delay()
    with sessions(app, 3) as (one_session, other_session, third):
        first, second = claim(one_session)
        with one_session.transaction() as one_end:
            finish(one_end, [first], outcomes[0])
            with other_session.transaction() as other_end:
                finish(other_end, [second], outcomes[1])
        notes = one(app, "SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0")
        if outcomes[0] is None:  # else the first has decided alone
            assert notes == 1
            assert ready(app) == 0
        claims = claim(third)
        assert len(claims) == (1 if outcomes == (None, None) else 0)
    if outcomes == (None, None):
        assert [each.name for each in claims] == ["text"]
    else:
        assert isinstance(failure(result), ChordError)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0") == 0


def test_a_note_waits_while_its_group_is_locked(app, steps):
    (group(steps.add.s(i) for i in range(3)) | steps.text.s()).delay()
    with sessions(app, 3) as (one_session, other_session, third):
        first, second, last = claim(one_session)
        with one_session.transaction() as one_end:
            finish(one_end, [first])
            with other_session.transaction() as other_end:
                finish(other_end, [second])
            found = claim(third)
            assert (found, found.missed) == ([], True)
        assert claim(third) == []  # one has not ended
        with one_session.transaction() as one_end:
            finish(one_end, [last])
            assert [each.name for each in claim(third)] == []
        assert [each.name for each in claim(third)] == ["text"]


def test_an_end_that_is_rolled_back_or_a_retry_keeps_what_follows_waiting(app, steps):
    (steps.add.s(1) | steps.text.s()).delay()
    with sessions(app, 1) as (session,):
        claims = claim(session)
        with pytest.raises(KeyError), session.transaction() as end:
            finish(end, claims)
            raise KeyError
        assert ready(app) == 0
        session.run(lambda t: finish(t, claims, Requeue(Reason.RETRY, 0, "again")))
        assert ready(app) == 0
        claims = claim(session)
        session.run(lambda t: finish(t, claims))
        assert ready(app) == 1


def archive(app, first, state, error, message):
    """As the procedures do that expire tasks, or fail them."""
    execute(
        app,
        "EXECUTE PROCEDURE FBTASKS_CORE.ARCHIVE(?, ?, NULL, 0, ?, ?, NULL, NULL, NULL)",
        int(first.id), state, error, message,
    )  # fmt: skip


ENDS = {
    "revoked": lambda app, first: first.revoke(),
    "cancelled": lambda app, first: services.cancel(app.database, [first.id]),
    "deleted": lambda app, first: execute(app, f"DELETE FROM QUEUE_TASK WHERE ID = {first.id}"),
    "expired": lambda app, first: archive(app, first, 12, None, "expired before it began"),
    "failed": lambda app, first: archive(app, first, 11, "fbtasks.errors.WorkerLost", "died"),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_follows_is_told_however_a_step_ends(app, steps, end):
    signature = chord([steps.add.s(1) | steps.add.s(1), steps.add.s(2)], steps.note.s()).link_error(
        steps.note.s("told")
    )
    result = (signature | steps.note.s()).delay()
    first = result.parent.parent.results[0].parent
    ENDS[end](app, first)
    assert rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_TASK GROUP BY STATE") == (
        [(0, 2)] if end == "failed" else [(0, 1)]
    )
    error = failure(result)
    assert isinstance(error, TaskRevoked)
    assert f"task {first.id} " in str(error)
    assert type(failure(result.parent)) is (ChordError if end == "failed" else TaskRevoked)
    drain(app)
    assert [given[2:] for given in steps.seen] == ([("told",)] if end == "failed" else [])
    assert steps.left() == (0, 0)


def test_a_failed_member_that_is_retried_reopens_what_followed(app, steps):
    signature = group(steps.boom.s(), steps.boom.s(), steps.add.s(1)) | steps.text.s() | steps.add.s("!")
    result = signature.delay()
    drain(app)
    assert isinstance(failure(result.parent), ChordError)
    members = result.parent.parent.results
    steps.broken = False
    for follower in (result, result.parent):
        refused = services.retry(app.database, [follower.id])
        assert refused.refused
        assert refused.condition.endswith(f"with the task that it follows: fbtasks inspect workflow {follower.id}")
    assert services.retry(app.database, [members[0].id]).count == 1
    assert (result.status, result.parent.status) == ("PENDING", "PENDING")
    drain(app)
    assert isinstance(failure(result.parent), ChordError)  # because of the other one
    assert services.retry(app.database, [members[1].id]).count == 1
    drain(app)
    assert result.get(timeout=10) == "['mended', 'mended', 1]!"
    result = (steps.boom.s() | steps.text.s()).delay()
    steps.broken = True
    drain(app)
    steps.broken = False
    services.retry_failed(app.database, services.Filter())
    drain(app)
    assert result.get(timeout=10) == "'mended'"


def test_a_long_chain_fails_and_is_retried_at_once(app, steps):
    """Without recursion in the database, whose depth is limited."""
    result = chain(steps.boom.s(), *(steps.add.s("!") for _ in range(1_200))).delay()
    drain(app)
    assert isinstance(failure(result), TaskRevoked)
    first = result
    while first.parent is not None:
        first = first.parent
    steps.broken = False
    services.retry(app.database, [first.id])
    assert rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_TASK GROUP BY STATE ORDER BY 2") == [
        (State.READY, 1),
        (State.AWAITING, 1_200),
    ]


def test_a_workflow_is_cancelled_whole(app, session, steps):
    signature = steps.add.s(1) | group(steps.add.s(i) for i in range(1_200)) | steps.total.s() | steps.add.s(1)
    result = signature.delay()
    for _ in range(2):
        claims = claim(session, 3)
        session.run(lambda t, claims=claims: finish(t, claims))
    running = claim(session, 2)
    assert result.cancel(terminate=True) == 1_200 - 3 + 2
    assert result.status == "REVOKED"
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE <> 2") == 0
    assert sorted(row[0] for row in rows(app, "SELECT ID FROM QUEUE_CANCEL")) == sorted(each.id for each in running)
    session.run(lambda t: finish(t, running, Cancelled("stopped")))
    with pytest.raises(TaskRevoked):
        result.parent.parent.get(timeout=10)
    assert isinstance(failure(result), TaskRevoked)
    assert steps.left() == (0, 0)


def test_a_bounded_queue_counts_what_is_awaiting(app, steps):
    app.queue("default", max_length=3, when_full="reject")
    with pytest.raises(QueueFull):
        chain(steps.add.s(1) for _ in range(4)).delay()
    assert steps.left() == (0, 0)
    result = chain(steps.add.s(1) for _ in range(3)).delay()
    with pytest.raises(QueueFull):
        steps.add.delay(1)
    drain(app)
    assert result.get(timeout=10) == 3
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PLACE") == 3


def test_ids_of_steps_are_taken_once(app, steps):
    first = steps.add.s(1).set(task_id="first")
    (first | steps.add.s(2)).delay()
    with pytest.raises(EnqueueError, match="a step has the task_id 'first'"):
        (first | steps.add.s(2)).delay()
    drain(app)
    assert app.AsyncResult("first").get(timeout=10) == 1
    assert one(app, "SELECT COUNT(*) FROM QUEUE_HISTORY") == 2


def test_errors_in_a_signature(app, steps):
    add, note = steps.add, steps.note
    none = app.task(name="none")(lambda: None)
    unique = app.task(name="unique", unique=True)(lambda *given: None)
    for wrong, said in (
        (lambda: chain(add, add.s(1)), r"takes signatures, as in task.s\(1, 2\), .* Give add.s"),
        (lambda: add.s(1) | 7, "takes signatures, as in task.s"),
        (lambda: chain(), "a chain needs a step"),
        (lambda: group(add.s(1)).link(add.s()), "is not for a group: write group"),
        (lambda: add.s(1).link_error(add.s() | add.s()), "the signature of one task"),
        (lambda: chord([add.s(1)], add.s(), on_error="raise"), "must be 'fail' or 'collect'"),
        (lambda: (add.s(1) | none.s()).delay(), "'none' has no room for the result of what it follows"),
        (lambda: add.s(1).link_error(none.s()).delay(), "no room for the id of the task that failed"),
        (lambda: add.s(1).link_error(note.s(colour=3)).delay(), "cannot be called like that"),
        (lambda: add.s(1).set(colour=3), "unknown option of a call 'colour'"),
        (lambda: (add.s(1) | add.s(1)).set(countdown=3), "countdown is for one call"),
        (lambda: (unique.s(1) | note.s()).delay(), "is unique"),
    ):
        with pytest.raises(EnqueueError, match=said):
            wrong()
    with pytest.raises(UnknownTaskError, match="no task named 'nadd'"):
        app.signature("nadd")
    assert (add.s(1) | none.si()).delay()
    assert repr(add.s(1) | group(add.s(other=2), note.s())) == "add(1) | group(add(other=2), note())"
    assert add.s(1)(2) == 3


def test_only_own_tasks_are_made_to_follow(app, session, steps):
    """A caller that speaks to the procedures itself can tie nothing to a task that is there, nor to numbers to come."""
    taken = steps.add.delay(1)
    first, _, _ = session.call("FBTASKS_WORKFLOWS_API.STEP_IDS", 2)
    record = b"L%019d%d%019d%010d%010d"
    for wrong in (record % (first, 0, int(taken.id), 1, 0), record % (first, 0, first + 1, 10, 0)):
        with pytest.raises(EnqueueError, match="the workflow cannot be enqueued"):
            session.call("FBTASKS_WORKFLOWS_API.PUT_NODES", wrong, kind=UPDATE)
    drain(app)
    step = b"%019d0%05d%b" % (int(taken.id), 0, codec.pack_call(steps.add.call((7,), {})))
    with pytest.raises(EnqueueError, match="has the number of a task that has ended"):
        session.run(
            lambda t: t.call("FBTASKS_PRODUCER.ENQUEUE_PACKED", codec.steps_at(datetime.now(UTC)) + step), UPDATE
        )
    assert taken.get(timeout=10) == 1
    assert json.loads(services.get_task(app.database, taken.id).arguments.data) == [[1], {}]


def test_a_workflow_is_shown_as_a_tree(app, url, steps, capsys):
    add, text = steps.add, steps.text
    inner = group(add.s(3), add.s(4)) | text.s()
    body = text.s().link_error(steps.note.s()).link(text.s())
    result = (add.s(1) | group(add.s(2), inner, steps.boom.s()) | body | add.s("!")).delay()

    def shown(id):
        _, nodes = workflows.find_workflow(app.database, id)
        names = [f"{'  ' * level}{node.name} {node.state}" for level, node, _ in workflows.outline(nodes)]
        assert len(names) == len(nodes)
        return names

    before = shown(result.id)
    assert before == [
        "add ready",
        "  add awaiting",
        "    add awaiting",
        "    add awaiting",
        "  None open",
        "  text awaiting",
        "  boom awaiting",
        "None open",
        "text awaiting",
        "  note awaiting",
        "  text awaiting",
        "  add awaiting",
    ]
    drain(app)
    members = result.parent.parent.results
    after = shown(members[0].id)
    assert after[:2] == ["add succeeded", "  add succeeded"]
    assert after[6:10] == ["  boom failed", "None failed", "text failed", "  None gone"]
    assert after[10:] == ["  text cancelled", "  add cancelled"]
    alone = add.delay(1)
    assert command_line("inspect", "workflow", str(result.id), "--url", url) == 0
    assert "on failure" in capsys.readouterr().out
    assert command_line("inspect", "workflow", alone.id, "--url", url, "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(each["id"], each["kind"], each["follows"]) for each in listed] == [(int(alone.id), "task", None)]
    assert command_line("inspect", "workflow", "999", "--url", url) == 1
    assert command_line("inspect", "awaiting", "--url", url) == 0


def test_a_workflow_is_found_by_the_id_of_a_group(app, url, steps, capsys):
    """By that of one that a task follows; and of one that nothing follows, which is saved, with the groups in it."""
    add, boom = steps.add, steps.boom

    def shown(id):
        assert command_line("inspect", "workflow", id, "--url", url) == 0
        return [" ".join(line.split()[1:3]) for line in capsys.readouterr().out.splitlines()[1:]]

    followed = group(add.s(1, 2) | add.s(3), add.s(4, 5)) | steps.total.s()
    result = followed.delay()
    assert sorted(shown(result.parent.id)) == ["add awaiting", "add ready", "add ready", "end of", "total awaiting"]
    plain = group(add.s(1, 2) | add.s(3), boom.s(), group([add.s(4, 5)])).delay()
    assert command_line("inspect", "workflow", plain.id, "--url", url) == 1
    said = capsys.readouterr().err
    assert f"there is no task and no group '{plain.id}'" in said
    assert "save()" in said
    plain.save()
    number, nodes = workflows.find_workflow(app.database, plain.id)
    assert (number, {each.state for each in nodes if each.kind == "group"}) == (int(plain.id), {"open"})
    drain(app)
    _, nodes = workflows.find_workflow(app.database, plain.id)
    groups = {each.id: (each.state, each.group) for each in nodes if each.kind == "group"}
    assert groups == {int(plain.id): ("failed", None), int(plain.results[2].id): ("done", int(plain.id))}
    lines = [f"{'  ' * level}{node.name}" for level, node, _ in workflows.outline(nodes)]
    assert lines == ["  add", "  add", "  boom", "  add", "  None", "None"]
    numbers = sorted(each.number for each in nodes if each.group == int(plain.id))
    assert numbers == [0, 1, 2]
    assert command_line("inspect", "workflow", "999999", "--url", url) == 1
    assert command_line("inspect", "workflow", "order-1", "--url", url) == 1


def test_equal_members_are_shown_as_one_line(app, url, steps, capsys):
    """Of many that are equal with what follows them the first two are shown, and the one that was asked for."""

    def shown(id, *options):
        assert command_line("inspect", "workflow", str(id), "--url", url, *options) == 0
        printed = capsys.readouterr()
        return [" ".join(line.split()[1:]) for line in printed.out.splitlines()[1:]], printed.err

    add, boom, text = steps.add, steps.boom, steps.text
    members = (
        [add.s(n, 0) for n in range(20)] + [boom.s() for _ in range(12)] + [add.s(0) | add.s(1) for _ in range(15)]
    )
    result = (group(members) | text.s()).delay()
    ids = [each.id for each in result.parent.results]
    lines, _ = shown(result.id)
    each = ["add ready", "add ready", "more: add ready", "add awaiting", "add awaiting", "more: add awaiting"]
    more = ["boom ready", "boom ready", "more: boom ready", "end of the group open", "text awaiting"]
    assert sorted(lines) == sorted([*each, *more])
    drain(app)
    lines, said = shown(ids[7])
    assert said == ""
    assert lines[:4] == ["add succeeded", "add succeeded", "more: add succeeded", "add succeeded"]
    assert lines.count("more: boom failed") == 1
    assert lines[-2] == "end of the group failed"
    assert lines[-1].startswith("text failed")
    _, nodes = workflows.find_workflow(app.database, result.id)
    folded = workflows.fold(workflows.outline(nodes))
    assert sum(line.more or 1 for line in folded) == len(nodes)
    lines, said = shown(result.id, "--limit", "3")
    assert len(lines) == 3
    assert "Only the first 3 lines" in said
    assert command_line("inspect", "workflow", result.id, "--url", url, "--json") == 0
    assert len(json.loads(capsys.readouterr().out)) == len(nodes)


def test_a_large_group_runs_in_its_order_beside_an_old_transaction(app, steps):
    """What an old transaction keeps of members that have ended is not read again for each that ends."""
    (group(steps.add.s(i) for i in range(1_000)) | steps.total.s()).delay()
    reads = []
    with app.connect() as old, sessions(app, 1) as (session,):
        old.cursor().execute("SELECT COUNT(*) FROM QUEUE_NODE").fetchall()
        ids = []
        while claims := claim(session, 200):
            before = table_reads(session, "QUEUE_NODE")[1]
            session.run(lambda t, claims=claims: finish(t, claims))
            reads.append(table_reads(session, "QUEUE_NODE")[1] - before)
            ids += [each.id for each in claims]
    assert ids == sorted(ids)
    assert max(reads[:-2]) <= 2 * 200 + 10


def test_a_step_takes_little_memory_in_the_caller(app, steps):
    """Bytes at the peak, and while the result of the group is kept: before its members are asked for, and after."""

    def enqueue(count):
        return group(chain(steps.add.s(i), steps.add.s(1)) for i in range(1_000, 1_000 + count)).delay()

    enqueue(1_000)  # what the first ones need is not counted
    tracemalloc.start()
    try:
        result = enqueue(1_000)
        peak = tracemalloc.get_traced_memory()[1]
        gc.collect()
        kept = tracemalloc.get_traced_memory()[0]
        ends = list(result)
        looked = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert peak / 2_000 < 560
    assert kept / 2_000 < 80
    assert looked / 2_000 < 260
    numbers = [int(each.id) for each in ends]
    assert [int(each.parent.id) for each in ends] == [number - 1 for number in numbers]
    assert numbers == list(range(numbers[0], numbers[0] + 2_000, 2))


def test_members_of_a_group_in_a_transaction_are_known_once_it_is_committed(app, steps):
    """They are made when they are asked for, here after the connection is gone."""
    with closing(app.connect()) as connection:
        signature = group(steps.add.s(1), steps.add.s(2).set(task_id="two"), group(steps.note.s(3)))
        result = signature.using(connection).delay()
        connection.commit()
    drain(app)
    assert result.get(timeout=10) == [1, 2, [None]]
    assert (result[1].id, result.parent, len(result.tasks())) == ("two", None, 3)


def test_a_signature_is_changed_by_its_attributes(app, steps):
    """Also one that has had neither arguments by name nor options."""
    one, other = steps.add.s(1), steps.add.s(1)
    one.kwargs["other"], one.options["priority"] = 2, 7
    other.kwargs, other.options = {"other": 3}, {"priority": 8}
    other.args = (2,)
    results = group(one, other, steps.add.s(1)).delay()
    assert rows(app, "SELECT PRIORITY FROM QUEUE_TASK ORDER BY ID") == [(7,), (8,), (0,)]
    drain(app)
    assert results.get(timeout=10) == [3, 5, 1]


NESTED = {
    "chords in headers": lambda add, inner: chord([inner, add.s(2)], add.s()),
    "chords in bodies": lambda add, inner: chord([add.s(1)], inner),
    "groups": lambda add, inner: group(inner, add.s(1)),
    "chains": lambda add, inner: chain(add.s(1), group(inner, add.s(1)), add.s()),
}


@pytest.mark.parametrize("shape", NESTED)
def test_what_is_nested_too_deep_is_refused_in_words(app, steps, shape):
    signature = steps.add.s(1)
    for _ in range(1000):
        signature = NESTED[shape](steps.add, signature)
    with app.connect() as connection:
        for go in (
            signature.delay, lambda: signature.delay(5), signature.clone, lambda: signature.set(priority=5),
            lambda: signature.using(connection), lambda: canvas.replacement(app, signature),
        ):  # fmt: skip
            with pytest.raises(EnqueueError, match="signatures are nested more than 300 levels deep: "):
                go()
    assert len(repr(signature)) < 1000
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0


def test_what_follows_each_other_by_links_is_refused_when_it_is_too_long(app, steps):
    first = last = steps.add.si(1)
    for number in range(297):
        last.link(following := steps.add.si(number))
        last = following
    last.link(group(steps.add.s(1)))
    first.delay()
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 299
    last.link(group(steps.add.s(1) | steps.add.s(2)))
    with pytest.raises(EnqueueError, match="nested more than 300 levels deep"):
        first.delay()
    first.link(first)
    with pytest.raises(EnqueueError, match="nested more than 300 levels deep"):
        first.delay()


@pytest.mark.parametrize("shape", NESTED)
def test_what_is_nested_as_deep_as_may_be_is_enqueued(app, steps, shape):
    """With as much room on Python's stack as a program has that has used some of it."""
    signature, deeper = None, steps.add.s(1)
    while True:
        signature, deeper = deeper, NESTED[shape](steps.add, deeper)
        try:
            deeper.clone()
        except EnqueueError:
            break
    signature.delay(1)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") > 150
