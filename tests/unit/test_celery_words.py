"""Words of Celery's are answered with what to use here; the table in docs says the same."""

import inspect
import re
from pathlib import Path

import click
import pytest

import fbtasks
from fbtasks import AsyncResult, ConfigurationError, EnqueueError, FBTasks, Request, TaskDefinitionError
from fbtasks.app import TaskOptions
from fbtasks.cli import main
from fbtasks.tasks.celery_words import words
from fbtasks.worker.options import POOLS

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "from-celery.md"
app = FBTasks("a", "firebird:///nosuch/queue.fdb")


@app.task(name="add")
def add(a, b):
    return a + b


OWNERS = {
    "an app": app,
    "a task": add,
    "a signature": add.s(1, 2),
    "a result": AsyncResult("1", app=app),
    "a request": Request(id="1", task="add", queue="q"),
    "names": fbtasks,
}
OPTIONS = {
    "option of FBTasks": (ConfigurationError, lambda **options: FBTasks("a", **options)),
    "task option": (TaskDefinitionError, app.task),
    "option of a call": (EnqueueError, lambda **options: add.apply_async((1, 2), **options)),
    "argument of retry()": (ConfigurationError, add.retry),
}


@pytest.mark.parametrize("place", OWNERS)
def test_an_attribute_that_is_missing(place):
    owner = OWNERS[place]
    for word, answer in words()[place].items():
        with pytest.raises(AttributeError) as caught:
            getattr(owner, word)
        assert str(caught.value).endswith(f"has no attribute {word!r}: {answer}")
        assert not hasattr(owner, word)
    with pytest.raises(AttributeError, match=r"has no attribute 'nosuch'$"):
        _ = owner.nosuch
    assert not hasattr(owner, "__nosuch__")


@pytest.mark.parametrize("place", OPTIONS)
def test_an_option_that_does_not_exist(place):
    kind, function = OPTIONS[place]
    for each, answer in words()[place].items():
        word = each.replace("*", "nosuch")
        with pytest.raises(kind) as caught:
            function(**{word: 1})
        assert str(caught.value) == f"unknown {place} {word!r}: {answer}."


def test_each_of_several_options_is_answered():
    with pytest.raises(TaskDefinitionError) as caught:
        app.task(acks_late=True, priorty=3)
    assert str(caught.value).startswith(
        "unknown task option 'acks_late': always so: a task stays in the queue until its outcome is recorded. "
        "unknown task option 'priorty'. Did you mean 'priority'? Known options: aliases, autoretry_for, "
    )


def test_an_import_says_it_too():
    with pytest.raises(AttributeError, match=r"a task has no attribute 'max_retries': use task\.options"):
        _ = add.max_retries
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


def test_no_word_is_one_that_exists_here():
    names = {
        "option of FBTasks": inspect.signature(FBTasks.__init__).parameters,
        "task option": TaskOptions.__dataclass_fields__,
        "option of a call": inspect.signature(add.apply_async).parameters,
        "argument of retry()": inspect.signature(add.retry).parameters,
        "command": main.list_commands(click.Context(main)),
        "pool": POOLS,
    }
    for place, known in names.items():
        assert words()[place].keys() & set(known) == set(), place
    for place in OF_COMMANDS:
        command = place.removeprefix("fbtasks").strip()
        found = main.get_command(click.Context(main), command) if command else main
        assert words()[place].keys() & {name for param in found.params for name in param.opts} == set(), place


OF_COMMANDS = [place for place in words() if place.startswith("fbtasks")]
HEADINGS = {
    "What is imported": "names",
    "`Celery(...)` and its settings": "option of FBTasks",
    "Attributes of the app": "an app",
    "`@app.task`": "task option",
    "Attributes of a task": "a task",
    "Attributes of a signature": "a signature",
    "`apply_async`": "option of a call",
    "`self.retry`": "argument of retry()",
    "`self.request`": "a request",
    "Results": "a result",
    "Commands": "command",
    "`celery inspect`": "command of inspect",
    "Pools of the worker": "pool",
    "Options of all commands": "fbtasks",
    **{f"Options of `celery {place.split()[1]}`": place for place in OF_COMMANDS if place != "fbtasks"},
}


def test_the_tables_of_the_page_are_those_of_the_errors():
    parts = re.split(r"^## (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    shown = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert shown.keys() == HEADINGS.keys()
    assert {*HEADINGS.values()} == words().keys()
    for heading, place in HEADINGS.items():
        rows = re.findall(r"^\| (`.*?`) \| (.*) \|$", shown[heading], re.MULTILINE)
        found = {word: answer for cell, answer in rows for word in re.findall(r"`([^`]+)`", cell)}
        assert {word: answer.replace("`", "").replace("\\|", "|") for word, answer in found.items()} == words()[place]
