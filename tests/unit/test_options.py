"""Options are declared once: signatures, checks and defaults follow."""

import inspect
import pickle
from dataclasses import replace

import pytest

from fbtasks import FBTasks, RetryPolicy, Task
from fbtasks.app import OnChange, OnEvent, PollTable, TaskOptions
from fbtasks.config import Settings
from fbtasks.tasks.declare import options_of
from fbtasks.tasks.definition import TaskCalls
from fbtasks.tasks.options import CallOptions, RetryOptions

app = FBTasks("a", "firebird:///nosuch/queue.fdb")


@app.task(name="add", queue="mail", priority=3)
def add(a, b):
    return a + b


@pytest.mark.parametrize(
    ("function", "declared"),
    [
        (FBTasks, Settings),
        (FBTasks.task, TaskOptions),
        (FBTasks.on_change, OnChange),
        (FBTasks.on_event, OnEvent),
        (FBTasks.poll_table, PollTable),
        (RetryPolicy, RetryPolicy),
        (Task.apply_async, CallOptions),
        (TaskCalls.delay_many, CallOptions),
        (FBTasks.send_task, CallOptions),
        (Task.retry, RetryOptions),
    ],
)
def test_a_signature_has_the_declared_options_and_their_defaults(function, declared):
    shown = {
        name: parameter.default
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options = options_of(declared)
    of_record = {name: each.parameter for name, each in options.items()}
    assert shown == {name: each.default for name, each in of_record.items() if each.kind is each.KEYWORD_ONLY}
    assert len(shown) >= len(options) - 2  # the name and the url of an app are not among them


def test_none_is_as_if_it_was_left_out():
    for known in (add.call, lambda args, kwargs, **options: app.enqueuer.make_call("other", args, kwargs, **options)):
        plain = known((1, 2), {})
        assert known((1, 2), {}, **dict.fromkeys(options_of(CallOptions))) == plain
    assert (plain.queue, plain.priority) == ("default", 0)
    assert add.call((1, 2), {})[1:2] + add.call((1, 2), {})[4:5] == ("mail", 3)
    assert add.call((1, 2), {}, priority=0).priority == 0


def test_settings_can_be_made_anew_from_what_they_keep():
    for options in (
        {},
        {"queues": ["default"], "include": ["a"], "accept_content": ["json"], "timezone": "Europe/Berlin"},
        {"signing_key": ["one", b"two"], "serializer": "cloudpickle"},
    ):
        settings = Settings("a", "firebird:///x/y.fdb", **options)
        assert replace(settings, pool_size=7) == Settings("a", "firebird:///x/y.fdb", pool_size=7, **options)
    assert settings.signing_key == (b"one", b"two")


def test_settings_go_to_another_process_without_their_hooks():
    settings = FBTasks("a", "firebird:///x/y.fdb", on_failure=lambda request, error: None, pool_size=7).settings
    there = pickle.loads(pickle.dumps(settings))
    assert there == replace(settings, on_failure=None)


@pytest.mark.parametrize(("given", "wrong"), [((), "'name'"), (("shop", "url", "more"), "too many")])
def test_wrong_arguments_of_an_app_are_told_in_its_own_words(given, wrong):
    with pytest.raises(TypeError, match=rf"FBTasks\(\) got wrong arguments: .*{wrong}"):
        FBTasks(*given)
