"""Words of Celery's are answered with what to use here; the table in docs says the same."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

import fbtasks
from fbtasks import AsyncResult, ConfigurationError, EnqueueError, FBTasks, Request, TaskDefinitionError
from fbtasks.app import TaskOptions
from fbtasks.cli import main
from fbtasks.tasks import celery_words
from fbtasks.worker.options import POOLS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "from-celery.md"
app = FBTasks("a", "firebird:///nosuch/queue.fdb")


@app.task(name="add")
def add(a: int, b: int) -> int:
    return a + b


OWNERS = {
    "APP_ATTRIBUTES": app,
    "TASK_ATTRIBUTES": add,
    "SIGNATURE_ATTRIBUTES": add.s(1, 2),
    "RESULT_ATTRIBUTES": AsyncResult("1", app=app),
    "REQUEST_ATTRIBUTES": Request(id="1", task="add", queue="q"),
    "NAMES": fbtasks,
}
OPTIONS = {
    "APP_OPTIONS": (ConfigurationError, lambda **options: FBTasks("a", **options)),
    "TASK_OPTIONS": (TaskDefinitionError, app.task),
    "CALL_OPTIONS": (EnqueueError, lambda **options: add.apply_async((1, 2), **options)),
    "RETRY_OPTIONS": (ConfigurationError, add.retry),
}


def answers(table: str) -> list[Any]:
    return [
        pytest.param(table, word, answer, id=f"{table} {word}") for word, answer in getattr(celery_words, table).items()
    ]


@pytest.mark.parametrize(("table", "word", "answer"), [row for table in OWNERS for row in answers(table)])
def test_an_attribute_that_is_missing(table: str, word: str, answer: str) -> None:
    owner = OWNERS[table]
    with pytest.raises(AttributeError) as caught:
        getattr(owner, word)
    assert str(caught.value).endswith(f"has no attribute {word!r}: {answer}.")
    assert not hasattr(owner, word)
    assert getattr(owner, word, 5) == 5


@pytest.mark.parametrize(("table", "word", "answer"), [row for table in OPTIONS for row in answers(table)])
def test_an_option_that_does_not_exist(table: str, word: str, answer: str) -> None:
    kind, function = OPTIONS[table]
    with pytest.raises(kind) as caught:
        function(**{word: 1})
    assert re.fullmatch(rf"unknown [a-zA-Z ()]+ '{word}': {re.escape(answer)}\.", str(caught.value))


def test_each_of_several_options_is_answered() -> None:
    with pytest.raises(TaskDefinitionError) as caught:
        app.task(acks_late=True, priorty=3)
    assert str(caught.value).startswith(
        "unknown task option 'acks_late': always so: a task stays in the queue until its outcome is recorded. "
        "unknown task option 'priorty'. Did you mean 'priority'? Known options: autoretry_for, "
    )


def test_another_setting_of_celerys() -> None:
    with pytest.raises(ConfigurationError, match=r"unknown option of FBTasks 'worker_state_db': a setting of Celery's"):
        FBTasks("a", worker_state_db="x")


def test_other_attributes_are_missing_as_ever() -> None:
    for owner in OWNERS.values():
        with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
            _ = owner.nosuch
        assert not hasattr(owner, "__nosuch__")
    with pytest.raises(AttributeError, match=r"a task has no attribute 'max_retries': task\.options\.max_retries\."):
        _ = add.max_retries


def test_an_import_says_it_too() -> None:
    with pytest.raises(
        ImportError, match=r"^cannot import name 'current_task' from 'fbtasks': use fbtasks\.current_request"
    ):
        from fbtasks import current_task  # noqa: F401
    with pytest.raises(
        ImportError, match=r"^cannot import name 'Taks' from 'fbtasks'\. Did you mean 'Task' or 'FBTasks'\?$"
    ):
        from fbtasks import Taks  # noqa: F401
    from fbtasks import cli  # a module of the package

    assert cli.main is main


def test_the_words_are_read_only_when_one_is_met() -> None:
    source = """if True:
        import sys
        from fbtasks import FBTasks
        app = FBTasks("a", "firebird:///nosuch/queue.fdb", always_eager=True)
        add = app.task(max_retries=5, name="add")(lambda a, b: a + b)
        assert add.delay(2, 3).get() == 5
        assert add.apply_async((2, 3), expires=60).get() == 5
        assert "fbtasks.tasks.celery_words" not in sys.modules
        assert not hasattr(app, "amqp")
        assert "fbtasks.tasks.celery_words" in sys.modules
    """
    subprocess.run([sys.executable, "-W", "error", "-c", source], check=True, timeout=60)


def test_no_word_is_one_that_exists_here() -> None:
    names = {
        "APP_OPTIONS": inspect.signature(FBTasks.__init__).parameters,
        "TASK_OPTIONS": TaskOptions.__dataclass_fields__,
        "CALL_OPTIONS": inspect.signature(add.apply_async).parameters,
        "RETRY_OPTIONS": inspect.signature(add.retry).parameters,
        "COMMANDS": main.list_commands(click.Context(main)),
        "POOLS": POOLS,
    }
    for table, known in names.items():
        assert getattr(celery_words, table).keys() & set(known) == set(), table
    for command, options in celery_words.COMMAND_OPTIONS.items():
        found = main if command == "fbtasks" else main.get_command(click.Context(main), command)
        assert options.keys() & {name for param in found.params for name in param.opts} == set(), command


HEADINGS = {
    "What is imported": celery_words.NAMES,
    "`Celery(...)` and its settings": celery_words.APP_OPTIONS,
    "Attributes of the app": celery_words.APP_ATTRIBUTES,
    "`@app.task`": celery_words.TASK_OPTIONS,
    "Attributes of a task": celery_words.TASK_ATTRIBUTES,
    "Attributes of a signature": celery_words.SIGNATURE_ATTRIBUTES,
    "`apply_async`": celery_words.CALL_OPTIONS,
    "`self.retry`": celery_words.RETRY_OPTIONS,
    "`self.request`": celery_words.REQUEST_ATTRIBUTES,
    "Results": celery_words.RESULT_ATTRIBUTES,
    "Commands": celery_words.COMMANDS,
    "`celery inspect`": celery_words.INSPECT_COMMANDS,
    "Pools of the worker": celery_words.POOLS,
    "Options of all commands": celery_words.COMMAND_OPTIONS["fbtasks"],
    **{
        f"Options of `celery {name}`": options
        for name, options in celery_words.COMMAND_OPTIONS.items()
        if name != "fbtasks"
    },
}


def test_the_tables_of_the_page_are_those_of_the_errors() -> None:
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    shown = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert shown.keys() == HEADINGS.keys()
    tables = [table for name, table in vars(celery_words).items() if name.isupper() and isinstance(table, dict)]
    assert len(tables) + len(celery_words.COMMAND_OPTIONS) - 1 == len(HEADINGS)
    for heading, words in HEADINGS.items():
        rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", shown[heading], re.MULTILINE)
        found = {word: answer for cell, answer in rows for word in re.findall(r"`([^`]+)`", cell)}
        assert found.keys() == words.keys(), heading
        assert {word: answer.replace("`", "").replace("\\|", "|") for word, answer in found.items()} == words, heading
