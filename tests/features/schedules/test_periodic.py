"""How an app says which tasks are called again and again: what it can say, and what is refused."""

from datetime import timedelta

import pytest

from fbtasks import FBTasks, TaskDefinitionError, task
from fbtasks.errors import ConfigurationError


@pytest.fixture
def app():
    return FBTasks("a", "firebird:///nosuch/queue.fdb", timezone="Europe/Vienna")


def test_a_task_has_any_number_of_schedules(app):
    @app.periodic(every=timedelta(hours=1), args=(7,), name="hourly-7", queue="slow", priority=3)
    @app.periodic(cron="30 2 * * *", kwargs={"n": 8})
    @app.task(name="report", queue="reports", expires=60)
    def report(n):
        return n

    daily, hourly = app.schedules["report"], app.schedules["hourly-7"]
    assert report(1) == 1
    assert (daily.cron, daily.every_ms, daily.tz, daily.missed) == ("30 2 * * *", None, "Europe/Vienna", "one")
    assert (daily.call.queue, daily.call.priority, daily.call.payload) == ("reports", 0, b'[[],{"n":8}]')
    assert (hourly.cron, hourly.every_ms, hourly.tz, hourly.expire_ms) == (None, 3_600_000, None, 60_000)
    assert (hourly.call.queue, hourly.call.priority, hourly.call.payload) == ("slow", 3, b"[[7],{}]")
    assert app.queues_served() == ["default", "reports", "slow"]


def test_a_plain_function_becomes_a_task(app):
    @app.periodic(cron="@daily", tz="UTC", queue="q", priority=2, max_retries=1, name="tidy", paused=True)
    def clean():
        return 5

    assert clean() == 5
    assert clean.name == "test_periodic.test_a_plain_function_becomes_a_task.<locals>.clean"
    assert (clean.options.queue, clean.options.priority, clean.options.max_retries) == ("q", 2, 1)
    assert app.schedules["tidy"].paused
    assert app.schedules["tidy"].call[:2] == (clean.name, "q")


def test_one_zone_is_that_of_the_wall_clock_and_of_the_window(app):
    app.periodic(cron="@hourly", tz="Asia/Tokyo", days="mon-fri", name="a")(lambda: 1)
    made = app.periodic(every=60, tz="Asia/Tokyo", run_between=("01:00", "02:00"), name="b")(test_one_zone)
    assert app.schedules["a"].tz == "Asia/Tokyo"
    assert (made.options.tz, app.schedules["b"].tz) == ("Asia/Tokyo", None)


def test_one_zone():
    pass


def test_without_a_decorator(app):
    @task(name="free")
    def free(n):
        return n

    app.add_periodic(free, every=90, args=[1])
    assert app.tasks["free"] is free
    app.add_periodic("free", cron="@hourly", args=[2], name="by name")
    app.add_periodic("of.another.app", cron="@weekly", queue="theirs")
    assert [each.call.name for each in app.schedules.values()] == ["free", "free", "of.another.app"]
    with pytest.raises(TaskDefinitionError, match="cannot be called like that"):
        app.add_periodic("free", cron="@hourly", name="known by its name")


def test_the_same_twice_is_once_and_another_one_is_refused(app):
    report = app.task(name="report")(print)
    first = app.add_periodic(report, every=60)
    assert app.add_periodic(report, every=60) == first
    with pytest.raises(
        TaskDefinitionError, match=r"two schedules are named 'report'.*Give one of them a name= of its own"
    ):
        app.add_periodic(report, every=61)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "it is not said when the task is called: give cron='*/5 * * * *' or every=timedelta(hours=1)."),
        ({"cron": "@daily", "every": 5}, "cron='@daily' and every=5 both say when: give one of them."),
        ({"every": 5, "tz": "UTC"}, "tz='UTC' is the zone of cron=, and every= has none: leave it out."),
        ({"cron": "@daily", "tz": "Europe/Wien"}, "there is no tz 'Europe/Wien'. Did you mean 'Europe/Vienna'"),
        ({"every": 5, "missed": "some"}, "missed 'some' must be 'one'"),
        ({"every": 5, "args": 7}, "args 7 must be a list or a tuple of the arguments"),
        ({"every": 5, "kwargs": [7]}, "kwargs [7] must be a dict"),
        *(
            (
                {"every": 5, "name": name},
                f"name {name!r} must be text of 1 to 255 printable characters, without spaces at its ends.",
            )
            for name in ("", "nightly ")
        ),
        ({"every": 5, "queue": "a b"}, "'a b' is not a queue name"),
        (
            {"every": 5, "args": (1, 2)},
            "the schedule 'report': 'report' cannot be called like that: too many positional",
        ),
        ({"every": 5, "args": (object(),)}, "the schedule 'report': task 'report': args[0] is an object"),
        ({"every": 5, "cronn": "@daily"}, "unknown option of periodic 'cronn'. Did you mean 'cron'?"),
        ({"every": 5, "max_retries": 1}, "max_retries must be given to the task 'report' itself: to @app.task, below"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_defined(app, options, said):
    report = app.task(name="report")(lambda n=1: n)
    with pytest.raises((TaskDefinitionError, ConfigurationError)) as refused:
        app.periodic(**options)(report)
    assert said in str(refused.value)
    assert not app.schedules


@pytest.mark.parametrize("given", [lambda: 1, 60])
def test_what_is_given_without_a_name_is_refused(app, given):
    """As by ``@app.periodic`` without parentheses."""
    with pytest.raises(TaskDefinitionError) as refused:
        app.periodic(given)
    assert "It must be said when the task is called, by name: @app.periodic(cron=" in str(refused.value)
    assert repr(given)[:20] in str(refused.value)
    assert not app.schedules


def test_only_a_task_or_its_name_is_called_by_the_clock(app):
    with pytest.raises(TaskDefinitionError, match=r"7 is not a task: add_periodic\(\) takes a task, or its name"):
        app.add_periodic(7, every=60)


def test_what_a_source_feeds_is_not_called_by_the_clock(app):
    shipped = app.on_event("order.shipped", name="shipped")(print)
    with pytest.raises(
        TaskDefinitionError, match="the schedule 'shipped': the task 'shipped' is called by workers, for"
    ):
        app.add_periodic(shipped, every=60)
