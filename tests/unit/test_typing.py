"""What type checkers know of options. mypy reads this file with the package: an unused ``type: ignore`` is an error."""

from __future__ import annotations

from datetime import timedelta, tzinfo
from typing import assert_type

import pytest

from fbtasks import AsyncResult, ConfigurationError, EnqueueError, FBTasks, TaskDefinitionError, task
from fbtasks.url import DatabaseURL

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


def test_a_task_keeps_the_types_of_its_function() -> None:
    assert_type(double.delay(1), AsyncResult[int])
    assert_type(double.apply_async((1,), countdown=5).get(), int)
    assert_type(halve.delay_many([(1,)], expires=timedelta(1)), list[AsyncResult[float]])
    assert_type(name(1), str)


def test_what_is_kept_has_another_type_than_what_is_given() -> None:
    assert_type(app.settings.url, DatabaseURL)
    assert_type(app.settings.queues, frozenset[str] | None)
    assert_type(app.settings.timezone, tzinfo | None)
    assert_type(double.options.max_retries, int | None)
    assert double.options.autoretry_for == (OSError,)


def test_what_is_refused_is_known_before() -> None:
    with pytest.raises(EnqueueError):
        double.delay(nmber=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        FBTasks("a", pool_sise=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError):
        FBTasks("a", pool_size="5")  # type: ignore[arg-type]
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
