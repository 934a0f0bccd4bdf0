"""What type checkers know of options. mypy reads this file with the package: an unused ``type: ignore`` is an error."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, assert_type

import pytest

from fbtasks import (
    AsyncResult,
    Change,
    ConfigurationError,
    EnqueueError,
    Event,
    FBTasks,
    GroupResult,
    Row,
    TaskDefinitionError,
    group,
    task,
)
from fbtasks.features.queues.definition import QueueDefinition

app = FBTasks("a", url="firebird:///nosuch/queue.fdb", queues=["default", "mail"], always_eager=True)


@app.task(queue="mail", autoretry_for=[OSError], max_retries=None)
def double(number: int) -> int:
    return 2 * number


@app.task
def halve(number: int) -> float:
    return number / 2


@task(priority=5)
def name(number: int) -> str:
    return str(number)


@app.task
async def later(seconds: float) -> float:
    return seconds


@app.periodic(every=60)
async def often() -> str:
    return "again"


@app.on_change("ORDERS", update="STATUS", columns=["TOTAL"], key="ID", batch=10, queue="mail", max_retries=None)
def ship(changes: list[Change]) -> int:
    return len(changes)


@app.on_event("order.paid", order=None, autoretry_for=[OSError])
def mail(event: Event) -> str:
    return event.name


@app.poll_table("INBOX", key=["ID"], delete=True, every=(1, 5), priority=3)
def row(row: Row) -> None: ...


@app.periodic(every=timedelta(hours=1), args=(7,), name="hourly-7")
@app.periodic(cron="@daily", kwargs={"number": 7}, tz="UTC", missed="skip", paused=True)
@app.task(queue="mail")
def report(number: int) -> float:
    return number / 2


@app.periodic(cron="30 2 * * *", queue="mail", max_retries=None, autoretry_for=[OSError])
def clean() -> int:
    return 1


def test_a_periodic_task_keeps_the_types_of_its_function() -> None:
    assert_type(report(1), float)
    assert_type(clean.delay(), AsyncResult[int])
    assert_type(app.add_periodic(clean, every=60.5, name="often").name, str)
    assert_type(app.add_periodic("other", cron="@hourly", args=[1], priority=5).paused, bool)


def test_what_is_refused_of_a_schedule_is_known_before() -> None:
    with pytest.raises(ConfigurationError):
        app.periodic(every="1h")  # type: ignore[arg-type]
    with pytest.raises(TaskDefinitionError):
        app.periodic(every=60, quue="mail")  # type: ignore[call-arg]
    with pytest.raises(TaskDefinitionError):
        app.add_periodic(clean, every=60, max_retries=3)  # type: ignore[call-arg]


def test_a_fed_task_keeps_the_types_of_its_function() -> None:
    assert_type(ship([]), int)
    assert_type(row.name, str)
    assert [task.options.ignore_result for task in (ship, mail, row)] == [True, True, True]


def test_what_is_refused_of_a_source_is_known_before() -> None:
    with pytest.raises(TaskDefinitionError):
        app.on_change("ORDERS", insert=True, quue="mail")  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        app.on_change("ORDERS", insert="yes")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        app.on_event("paid", order="none")  # type: ignore[arg-type]
    with pytest.raises(TaskDefinitionError):
        app.on_event("paid", insert=True)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        app.poll_table("INBOX", key="ID", delete=True, max_retries="3")  # type: ignore[arg-type]


def test_a_task_keeps_the_types_of_its_function() -> None:
    assert_type(double.delay(1), AsyncResult[int])
    assert_type(double.apply_async((1,), countdown=5).get(), int)
    assert_type(halve.delay_many([(1,)], expires=timedelta(1)), list[AsyncResult[float]])
    assert_type(name(1), str)
    assert_type(double.options.max_retries, int | None)


def test_a_coroutine_function_is_a_task_with_the_result_of_its_coroutine() -> None:
    """And what the task itself returns, called here, is to be awaited."""
    assert_type(later.delay(1.5), AsyncResult[float])
    assert_type(later.apply_async((1.5,), priority=5).get(), float)
    assert_type(later.delay_many([(1.5,)]), list[AsyncResult[float]])
    assert_type(later.using(object()).delay(1.5), AsyncResult[float])
    assert_type(often.delay(), AsyncResult[str])
    assert_type(asyncio.run(later(1.5)), float)
    with pytest.raises(EnqueueError):
        later.delay(second=1.5)  # type: ignore[call-overload]


def test_the_results_of_groups_and_signatures_are_known() -> None:
    assert_type(group(double.s(1), later.s(1.5)).delay(), GroupResult)
    assert_type(group(double.s()).apply_async((1,), priority=5), GroupResult)
    assert_type(double.s(1).delay(), AsyncResult[Any])
    assert group(double.s(1), later.s(1.5)).delay().get() == [2, 1.5]


def test_the_options_of_a_queue_are_known() -> None:
    definition = app.queue("mail", max_length=10, when_full="drop_oldest", run_between=("22:00", "06:00"), tz="UTC")
    assert_type(definition, QueueDefinition)
    assert definition is not app.queue(name="default")
    with pytest.raises(ConfigurationError):
        app.queue("mail", max_length="10")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        app.queue("mail", max_lenght=10)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        app.queue(max_length=10)  # type: ignore[call-arg]


def test_what_is_refused_is_known_before() -> None:
    with pytest.raises(EnqueueError):
        double.delay(nmber=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        FBTasks("a", pool_sise=5)  # type: ignore[call-arg]
    with pytest.raises(TaskDefinitionError):
        app.task(quue="mail")  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError):
        task(priority="5")  # type: ignore[call-overload]
    with pytest.raises(EnqueueError):
        double.apply_async((1,), countdwn=5)  # type: ignore[call-arg]
    with pytest.raises(EnqueueError):
        double.delay_many([(1,)], countdown="5")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        app.send_task("other", priority="5")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError):
        double.retry(eta=5)  # type: ignore[call-arg]
