"""Workflows in dashboards."""

import pytest
from support.draining import drain
from support.sheets import Shown
from support.sql import execute, one, rows, table_reads
from support.steps import Steps

from fbtasks import chain, group
from fbtasks.features.workflows import sheets
from fbtasks.sheet import Private, Ref, TaskRef
from fbtasks.states import State

pytestmark = pytest.mark.emptied


@pytest.fixture
def steps(app):
    return Steps(app)


@pytest.fixture
def workflows(app):
    return Shown(app, "workflows")


def counts(line):
    return tuple(line.cells[title] for title in ("State", "Not ended", "Succeeded", "Failed", "Cancelled"))


def newest(app):
    return one(app, "SELECT MAX(TO_ID) FROM QUEUE_LINK")


def test_workflows_are_listed_with_what_became_of_their_steps_the_newest_first(app, steps, workflows):
    add = steps.add
    add.delay(1)
    ended = (add.s(1) | group(add.s(n) for n in range(3)) | steps.total.s()).delay()
    failed = (add.s(1) | steps.boom.s() | steps.note.s()).delay()
    drain(app)
    alive = chain(add.s(n) for n in range(4)).delay()
    assert workflows.keys(2) == [alive.id, failed.id, ended.id]
    found = workflows.lines()
    assert counts(found[ended.id]) == ("succeeded", 0, 5, 0, 0)
    assert counts(found[failed.id]) == ("failed", 0, 1, 1, 1)
    assert counts(found[alive.id]) == ("not ended", 4, 0, 0, 0)
    assert [list(found[each.id].actions) for each in (ended, failed, alive)] == [[], ["retry"], ["cancel"]]
    assert found[failed.id].wrong == "1 of its steps failed"
    for each in (ended, failed, alive):
        line = workflows.detail(each.id).line
        assert line == found[each.id]
        assert line.cells["Workflow"] == Ref("workflows", each.id, "add")


def test_the_steps_are_a_graph(app, steps, workflows):
    add = steps.add
    end = (add.s(1) | group(add.s(2), steps.boom.s()) | steps.total.s()).delay()
    drain(app)
    body, members = int(end.id), [int(each.id) for each in end.parent.results]
    head, ends = int(end.parent.parent.id), int(one(app, "SELECT ID FROM QUEUE_GROUP"))
    for key in (end.id, str(head), str(ends), str(members[0])):
        graph = workflows.detail(key).graph
        assert set(graph.arrows) == {(head, each) for each in members} | {(each, ends) for each in members} | {
            (ends, body)
        }
        nodes = {node.id: node for node in graph.nodes}
        assert (nodes[head].label, nodes[head].state, nodes[head].task) == ("add", State.SUCCEEDED, head)
        assert (nodes[ends].state, nodes[ends].task, nodes[ends].detail) == (None, None, "failed")
        assert nodes[members[1]].detail == Private("boom", "builtins.ValueError")
        assert graph.left_out == 0
    cause, effect = workflows.detail(end.id).tables["Failed and cancelled steps"]
    assert (cause["Step"], cause["State"], cause["Why"]) == (
        TaskRef(members[1], "boom"),
        "failed",
        Private("boom", "builtins.ValueError"),
    )
    assert effect["Step"] == TaskRef(body, "total")
    assert effect["Why"] == Private(f"task {members[1]} (boom) failed: ValueError: boom", "fbtasks.errors.ChordError")


def test_a_task_is_shown_with_its_workflow(app, steps, workflows):
    add = steps.add
    end = (add.s(1) | group(add.s(2), add.s(3)) | steps.total.s()).delay()
    first, members = int(end.parent.parent.id), [int(each.id) for each in end.parent.results]
    ends = one(app, "SELECT ID FROM QUEUE_GROUP")
    to_group = Ref("workflows", str(ends), f"group {ends}")

    def whole(task):
        return {"Workflow": Ref("workflows", str(task), "its steps")}

    assert workflows.of_task(first) == {**whole(first), "Followed by": [TaskRef(each) for each in members]}
    assert workflows.of_task(members[0]) == {**whole(members[0]), "Follows": [TaskRef(first)], "Member of": [to_group]}
    assert workflows.of_task(end.id) == {**whole(end.id), "Follows": [to_group]}
    alone = add.delay(1)
    assert workflows.of_task(alone.id) == {}
    assert workflows.detail(alone.id) is None


def test_steps_in_the_place_of_a_task_hide_no_other_workflow(app, workflows):
    @app.task(name="later", bind=True)
    def later(self, value):
        return self.replace(step.s(value) | step.s() | step.s())

    first = app.task(name="first")(lambda: 1)
    step = app.task(name="step", queue="other")(lambda value: value)
    older = (first.s() | later.s() | step.s()).delay()
    younger = (step.s(1) | step.s()).delay()
    drain(app, ["default"])
    placed = newest(app)
    assert workflows.keys(1) == [str(placed), younger.id, older.id]
    found = workflows.lines()
    assert counts(found[str(placed)]) == counts(found[older.id]) == ("not ended", 4, 1, 0, 0)
    assert found[str(placed)].cells["Begins with"] == found[older.id].cells["Begins with"]
    drain(app, ["other"])
    assert counts(workflows.lines()[older.id]) == ("succeeded", 0, 5, 0, 0)


def test_a_workflow_whose_steps_are_not_kept_is_listed_no_longer(app, workflows):
    note = app.task(name="note", ignore_result=True)(lambda *_: None)
    chain(note.si() for _ in range(3)).delay()
    assert len(workflows.lines()) == 1
    drain(app)
    (line,) = workflows.lines().values()
    assert counts(line) == ("succeeded", 0, 2, 0, 0)  # the last one is not kept
    execute(app, "DELETE FROM QUEUE_HISTORY")
    assert workflows.lines() == {}
    assert workflows.detail("2") is None


def test_large_workflows_are_shown_up_to_a_bound(app, steps, workflows, monkeypatch):
    """In the list each costs the same, and of the members of a group those that failed are shown first."""
    monkeypatch.setattr(sheets, "MOST", 20)
    monkeypatch.setattr(sheets, "_NODES", 10)
    members = [steps.boom.si() if n == 50 else steps.add.si(n) for n in range(100)]
    end = (steps.add.s(1) | group(members) | steps.total.s()).delay()
    chain(steps.add.s(n) for n in range(50)).delay()
    with app.database.session() as session:
        before = table_reads(session, "QUEUE_LINK")
        assert len(workflows.sheet.lines(session, None, 50)) == 2
        assert table_reads(session, "QUEUE_LINK") <= (before[0], before[1] + 60)
    drain(app)
    assert counts(workflows.lines()[end.id])[:2] == ("failed", 0)
    assert workflows.lines()[end.id].cells["Succeeded"] == "20 or more"
    detail = workflows.detail(end.id)
    assert len(detail.graph.nodes) == 10
    assert detail.graph.left_out == 11
    assert detail.line.cells["Succeeded"].endswith(" or more")
    assert "boom" in {node.label for node in detail.graph.nodes}


def test_what_has_not_ended_of_a_workflow_is_cancelled(app, steps, workflows):
    end = (steps.add.s(1) | group(steps.add.s(2), steps.add.s(3)) | steps.total.s()).delay()
    drain_one = app.task(name="alone")(lambda: None).delay()
    assert workflows.act("cancel", end.parent.results[0].id) == "4 tasks cancelled, or asked to stop."
    assert {state for name, state in rows(app, "SELECT NAME, STATE FROM QUEUE_TASK")} == {State.READY}
    assert drain_one.state == "PENDING"
    assert counts(workflows.lines()[end.id]) == ("failed", 0, 0, 0, 4)
    assert list(workflows.lines()[end.id].actions) == []


def test_failed_steps_are_put_back_with_what_their_failure_has_ended(app, steps, workflows):
    end = (steps.add.s(1) | group(steps.boom.si(), steps.boom.si()) | steps.text.s()).delay()
    drain(app)
    assert counts(workflows.lines()[end.id]) == ("failed", 0, 1, 3, 0)
    steps.broken = False
    assert workflows.act("retry", end.id) == "2 tasks put back."
    drain(app)
    assert counts(workflows.lines()[end.id]) == ("succeeded", 0, 4, 0, 0)
    assert end.get(timeout=1) == "['mended', 'mended']"


def test_the_cause_that_is_not_there_any_more_leaves_a_step_failed(app, steps, workflows):
    end = (group(steps.boom.si(), steps.add.s(1)) | steps.text.s()).delay()
    drain(app)
    failed = end.parent.results[0].id
    execute(app, "DELETE FROM QUEUE_HISTORY WHERE ID = ?", int(failed))
    said = workflows.act("retry", end.id)
    assert said.startswith("0 tasks put back. 1 task left: only failed and cancelled tasks are put back")


@pytest.mark.parametrize("key", ["", "0", "-1", "9" * 30, "<script>", "1; DROP TABLE QUEUE_LINK", "é" * 300, "\0"])
def test_what_is_no_task_has_no_page(workflows, key):
    assert workflows.detail(key) is None
    assert workflows.lines(key) == {}


def test_a_group_that_was_saved_is_shown_by_its_id(app, steps, workflows):
    result = group(steps.add.s(1), steps.boom.si()).delay()
    result.save()
    drain(app)
    detail = workflows.detail(result.id)
    assert counts(detail.line) == ("failed", 0, 1, 1, 0)
    assert len(detail.graph.nodes) == 3
