"""Pruning: finished tasks are deleted by age and by outcome."""

from support.draining import drain
from support.programs import command_line
from support.sql import execute, rows


def test_pruning_goes_by_age_and_by_outcome(app, url, capsys):
    good = app.task(name="good")(lambda: 1)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)
    old, older, new = good.delay(), good.apply_async(task_id="order-1"), good.delay()
    failed, ancient = bad.delay(), bad.delay()
    waiting = good.apply_async(countdown=3600)
    drain(app)
    for result, days in ((old, 1.01), (older, 3), (new, 0.99), (failed, 29.9), (ancient, 30.1)):
        by_name = rows(app, "SELECT ID FROM QUEUE_TASK_ID WHERE TASK_ID = ?", result.id)
        number = by_name[0][0] if by_name else int(result.id)
        execute(app, "UPDATE QUEUE_HISTORY SET FINISH_TIME = DATEADD(? SECOND TO FINISH_TIME) WHERE ID = ?",
            -int(days * 86400), number)  # fmt: skip
    assert command_line("prune", "--url", url) == 0
    assert capsys.readouterr().out == "3 finished tasks deleted.\n"
    assert [old.ready(), older.ready(), new.ready()] == [False, False, True]
    assert [failed.failed(), ancient.ready(), waiting.status] == [True, False, "PENDING"]
    assert not good.apply_async(task_id="order-1").duplicate  # with its outcome the id is forgotten
