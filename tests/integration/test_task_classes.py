"""Tasks of a class of their own: methods, attributes, options and handlers."""

from functools import cached_property
from pathlib import Path

import pytest
from support.draining import drain
from support.feeding import subscribe
from support.recorded import capture, inserts

from fbtasks import ConfigurationError, FBTasks, Task, TaskDefinitionError, task
from fbtasks.testing import eager

pytestmark = pytest.mark.emptied

heard = []


class Noting(Task):
    abstract = True
    max_retries = 1
    autoretry_for = (LookupError,)
    default_retry_delay = 0
    label = "noting"

    @cached_property
    def made(self):
        return [self.name]

    def note(self, *what):
        heard.append((self.label, *what))

    def before_start(self, task_id, args, kwargs):
        self.note("before", args, self.request.id == task_id)

    def on_success(self, retval, task_id, args, kwargs):
        self.note("success", retval, args)

    def on_failure(self, exc, task_id, args, kwargs, einfo):
        self.note("failure", type(exc).__name__, einfo.type is type(exc), "raise KeyError" in str(einfo))

    def on_retry(self, exc, task_id, args, kwargs, einfo):
        self.note("retry", type(exc).__name__, einfo.exception is exc)

    def after_return(self, status, retval, task_id, args, kwargs, einfo):
        self.note("after", status, einfo is None)


class Special(Noting):
    label = "special"
    max_retries = 0

    def __call__(self, *args, **kwargs):
        return [super().__call__(*args, **kwargs)]


def test_the_task_is_of_its_class(app):
    heard.clear()

    @app.task(base=Noting, name="double", bind=True, on_success=lambda request, value: heard.append("own"))
    def double(self, number):
        self.note("run")
        return [number * 2, *self.made]

    assert isinstance(double, Noting)
    assert (double.options.max_retries, double.options.autoretry_for) == (1, (LookupError,))
    result = double.delay(2)
    drain(app)
    assert result.get(timeout=5) == [4, "double"]
    assert heard == [
        ("noting", "before", (2,), True), ("noting", "run"), "own", ("noting", "success", [4, "double"], (2,)),
        ("noting", "after", "SUCCESS", True),
    ]  # fmt: skip


def test_handlers_of_a_failure(app):
    heard.clear()

    def fails():
        raise KeyError

    app.task(base=Noting, name="fails")(fails).delay()
    app.task(base=Special, name="once", max_retries=0)(fails).delay()
    drain(app)
    assert [each for each in heard if each[1] != "before"] == [
        ("noting", "retry", "KeyError", True), ("special", "failure", "KeyError", True, True),
        ("special", "after", "FAILURE", False), ("noting", "failure", "KeyError", True, True),
        ("noting", "after", "FAILURE", False),
    ]  # fmt: skip


def test_the_class_of_all_tasks_of_an_app(url):
    heard.clear()

    class Free(Task):
        queue = "free"

    app = FBTasks("classes", url, task_class=Special)
    one = app.task(name="one")(lambda: 1)
    other = app.task(name="other", base=Free)(lambda: 2)
    unbound = task(name="unbound", base=Free)(lambda: 3)
    fed = app.on_change("T", insert=True, name="fed")(lambda change: None)
    assert app.Task is Special
    assert one() == [1], "a call can be wrapped by the class"
    assert [type(each) for each in (one, other, unbound, fed)] == [Special, Free, Free, Special]
    assert [each.options.queue for each in (one, other, unbound)] == [None, "free", "free"]
    subscribe(app, "fed", id=1)
    capture(app, inserts(1))
    drain(app)
    assert [each[1] for each in heard] == ["before", "success", "after"]
    app.close()
    assert FBTasks("plain", url).Task is Task


class WithInit(Task):
    def __init__(self):
        self.x = 1


class Misnamed(Task):
    def on_failure(self, request, error):
        pass


class Late(Task):
    acks_late = True


class Wrong(Task):
    max_retries = "many"


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (Wrong, "max_retries 'many'"),
        (5, "base 5 must be a class that derives from fbtasks.Task"),
        (dict, "must be a class that derives"),
        (WithInit, "base WithInit has an __init__ of its own"),
        (Misnamed, r"on_failure of the class Misnamed is called as on_failure\(exc, task_id, args, kwargs, einfo\)"),
        (Late, "the class Late has 'acks_late', an option of Celery's for tasks: always so"),
    ],
)
def test_a_class_that_cannot_be_one(app, base, message):
    with pytest.raises((TaskDefinitionError, ConfigurationError), match=message):
        app.task(base=base, name="t")(lambda: 1)
    assert "t" not in app.tasks


def test_the_examples_of_two_pages(capsys):
    def names_of(page):
        text = (Path(__file__).parents[2] / "docs" / "how-to" / page).read_text()
        names = {}
        exec(text.partition("```python\n")[2].partition("```")[0], names)
        return names

    names = names_of("task-classes.md")
    with eager(names["app"]):
        assert names["confirm"].delay(7).get() == "shop@example.org: order 7"
    names = names_of("middleware.md")
    with eager(names["app"]):
        assert names["report"].delay("monday").get() == "monday for ACME"
    assert capsys.readouterr().out.startswith("report took 0.0")
