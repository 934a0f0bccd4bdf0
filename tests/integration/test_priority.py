"""The order in which tasks run: by priority, then by time, and queues in turn."""

from support.draining import drain


def test_priority_then_time(app):
    order = []
    note = app.task(name="note")(order.append)
    note.delay(2)
    note.apply_async((3,), priority=-1)
    note.apply_async((1,), priority=5)
    note.delay(2)
    drain(app)
    assert order == [1, 2, 2, 3]


def test_several_queues_are_served_fairly(app):
    """A backlog of 300 does not starve three tasks of another queue, and both get their turns."""
    order = []
    note = app.task(name="note")(order.append)
    note.delay_many([("big",)] * 300, queue="big")
    note.delay_many([("small",)] * 3, queue="small")
    drain(app, ["big", "small"])
    assert len(order) == 303
    assert [place for place, queue in enumerate(order) if queue == "small"][-1] < 10
