"""Limits, orders and their keys, as they are written in an app: what cannot be is refused with the remedy."""

import pytest

from fbtasks import FBTasks, Ordered, TaskDefinitionError, Unique
from fbtasks.errors import ConfigurationError

KEY = "must be the name of an argument, a tuple of them, a function of the arguments, or"


@pytest.fixture
def app():
    app = FBTasks("a", "firebird:///nosuch/queue.fdb")
    app.limit("customer", at_once=3)
    app.limit("sms", rate="10/s")
    app.limit("mail", rate="10/s")
    return app


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limits": "custmer"}, "names the limit 'custmer', which the app 'a' does not define"),
        ({"limits": ["customer", "sms"]}, "must be a dict of limits and their keys: limits={'customer': 'customer_id'"),
        ({"limits": {"customer": 5}}, f"limits['customer'] 5 {KEY} None for all calls."),
        ({"limits": {"customer": "order"}}, "goes by the argument 'order', which its function does not have. It has "),
        ({"limits": {"customer": "custmer_id"}}, "does not have. Did you mean 'customer_id'?"),
        ({"limits": {"sms": None, "mail": None}}, "has the rates sms and mail: a task has one rate at most"),
        ({"ordered": 5}, f"ordered 5 {KEY} True for all calls."),
        ({"ordered": Ordered}, f"{KEY} True for all calls. Ordered is a class: give an object of it, or a function."),
        ({"ordered": "order"}, "does not have. It has 'customer_id', 'text'."),
        ({"ordered": Ordered("order")}, "does not have. It has 'customer_id', 'text'."),
        ({"unique": Unique(by="order")}, "does not have. It has 'customer_id', 'text'."),
    ],
)
def test_a_task_with_a_wrong_limit_is_refused(app, options, said):
    with pytest.raises((TaskDefinitionError, ConfigurationError)) as refused:
        app.task(name="remind", **options)(lambda customer_id, text: None)
    assert said in str(refused.value)
    assert "remind" not in app.tasks


def test_a_key_by_an_argument_of_a_function_without_any_and_by_a_class_are_refused(app):
    with pytest.raises(TaskDefinitionError, match=r"does not have\. It has none\."):
        app.task(name="remind", ordered="order")(lambda: None)
    with pytest.raises(ConfigurationError, match="Unique is a class: give an object of it, or a function"):
        Unique(by=Unique)


@pytest.mark.parametrize("options", [{}, {"at_once": 3, "rate": "10/s"}])
def test_a_limit_is_one_of_two(app, options):
    with pytest.raises(ConfigurationError, match=r"give at_once= or rate=\. For both, define two limits"):
        app.limit("both", **options)
