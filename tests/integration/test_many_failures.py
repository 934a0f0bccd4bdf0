"""Operators' commands on many tasks that have failed: one statement does some hundred of them."""

from contextlib import closing

from depth.counter import Counter

from fbtasks.tasks.call import Failed

COUNT = 300


def test_retrying_all_failed_tasks_takes_few_statements(app, project, claim, end):
    add = app.task(name="add", max_retries=0)(lambda n: n)
    add.delay_many([(number,) for number in range(COUNT)])
    end(claim(COUNT), Failed("builtins.ValueError", "no"))
    with closing(Counter(project.url)) as counter, counter.counting():
        count = counter.of(lambda: project.run("retry", "--all-failed"))
    print(count)
    assert len(claim(COUNT)) == COUNT
    assert count.statements <= COUNT / 10
