"""What cannot be used is refused where it is given, in one line that names the value and what is wanted."""

import functools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import pytz

from fbtasks import (
    ConfigurationError,
    EnqueueError,
    FBTasks,
    RetryPolicy,
    TaskDefinitionError,
    UnknownTaskError,
    task,
)
from fbtasks.errors import StatementRefused
from fbtasks.queue import codec
from fbtasks.tasks.call import MOST_TRIES, RELEASED, Call, Claim, Crashed, Finished

URL = "firebird:///nosuch/queue.fdb"
"""Never opened: all of this is refused before."""


def refusal(kind, function, *args, **kwargs):
    """The message with which *function* refuses what it is given: one line, of the class *kind* itself."""
    with pytest.raises(kind) as caught:
        function(*args, **kwargs)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1000
    return message


def ids(table):
    """Names for the rows of a table: no addresses, which differ between the processes that run the tests."""
    return [
        f"{number} {' '.join(row[0]) if isinstance(row[0], dict) else ''}".strip() for number, row in enumerate(table)
    ]


class Thing:
    def __call__(self): ...

    def __repr__(self):
        return "<thing>"

    def method(self):
        return 1


def items():
    yield 1


async def pages():
    yield 1


async def waits():
    return 1


def add(a, b=0):
    return a + b


def nothing(): ...


HUNDRED = "at most a hundred years"
APPS = [
    *(
        (
            {"name": name},
            f"the app's name {name!r:.80} must be text of 1 to 255 printable characters, without spaces at its ends: "
            "FBTasks('shop', url).",
        )
        for name in (5, "shop ", "x" * 256)
    ),
    (
        {"name": "firebird://u:SECRET@host/x"},
        "the first argument of FBTasks is the app's name, and the url comes second.",
    ),
    ({"url": Path("/x.fdb")}, "the url must be text, not a PosixPath. Use firebird:///absolute/path/queue.fdb for the"),
    ({"include": "proj.app"}, "include 'proj.app' must be a list of names of modules: include=['proj.app']."),
    ({"include": [functools]}, "include holds <module 'functools' "),
    ({"queues": ["mail"]}, "default_queue 'default' "),
    ({"queues": "mail"}, "queues 'mail' must be a list of queue names: queues=['mail']."),
    ({"queues": ["default", "a b"]}, "'a b' is not a queue name: use 1 to 63 letters"),
    ({"default_queue": 7}, "7 is not a queue name: use 1 to 63 letters"),
    ({"serializer": "jsn"}, "unknown serializer 'jsn'. Known: "),
    ({"accept_content": "json"}, "accept_content 'json' must be a list of serializers: accept_content=['json']."),
    *(
        (
            {"signing_key": key},
            "signing_key must be bytes or text, and not empty; or a list of such keys, of which the first signs.",
        )
        for key in (5, [], ["SECRET", 5], "")
    ),
    ({"payload_limit": 0}, "payload_limit 0 must be a whole number of bytes from 1 to 2147483647."),
    ({"payload_limit": 2**31}, "payload_limit 2147483648 must be a whole number of bytes from 1 to 2147483647."),
    (
        {"result_expires": None},
        "result_expires None must be a timedelta longer than nothing, at most a hundred years: "
        "to keep it for as long as can be, give timedelta(days=36525).",
    ),
    (
        {"result_expires": 3600},
        "result_expires 3600 must be a timedelta longer than nothing, at most a hundred years: "
        "give timedelta(seconds=3600).",
    ),
    ({"result_expires": timedelta(0)}, "result_expires datetime.timedelta(0) must be a timedelta longer than nothing"),
    ({"failed_expires": timedelta.max}, "failed_expires datetime.timedelta(days=999999999,"),
    ({"unknown_task_timeout": 1}, "unknown_task_timeout 1 must be a timedelta longer than nothing"),
    ({"timezone": "Europe/Berln"}, "there is no timezone 'Europe/Berln'. Did you mean 'Europe/Berlin'"),
    ({"timezone": "../etc/passwd"}, "there is no timezone '../etc/passwd'."),
    ({"auto_migrate": "yes"}, "auto_migrate 'yes' must be True or False."),
    ({"crash_limit": "3"}, "crash_limit '3' must be a whole number from 1 to 1000000."),
    ({"pool_size": True}, "pool_size True must be a whole number from 1 to 10000."),
    ({"pool_timeout": float("inf")}, f"pool_timeout inf must be a number of seconds above 0, {HUNDRED}."),
    ({"always_eager": 1}, "always_eager 1 must be True or False."),
    ({"coundown": 5}, "unknown option of FBTasks 'coundown'. Known options: accept_content, always_eager, "),
]


@pytest.mark.parametrize(("options", "message"), APPS, ids=ids(APPS))
def test_an_app(options, message):
    said = refusal(ConfigurationError, FBTasks, **{"name": "a", "url": URL, **options})
    assert said.startswith(message)
    assert "SECRET" not in said


@pytest.mark.parametrize("zone", ["Europe/Berlin", ZoneInfo("Europe/Berlin"), pytz.timezone("Europe/Berlin")])
def test_a_timezone_may_be_named(zone):
    app = FBTasks("a", URL, timezone=zone)
    assert app.settings.timezone == ZoneInfo("Europe/Berlin")
    assert app.settings.zone_name == "Europe/Berlin"
    moment = app.enqueuer.make_call("t", (), {}, eta=datetime(2027, 7, 1, 12)).start
    assert moment == datetime(2027, 7, 1, 10, tzinfo=UTC)


OPTIONS = [
    ({"name": 5}, TaskDefinitionError, "the task name 5 must be text."),
    ({"queue": 5}, ConfigurationError, "5 is not a queue name: "),
    ({"priority": "high"}, ConfigurationError, "priority 'high' must be a whole number from -9999 to 9999; "),
    ({"expires": "60"}, ConfigurationError, f"expires '60' must be a number of seconds above 0, {HUNDRED}, or a "),
    ({"expires": datetime(2027, 1, 1)}, ConfigurationError, "expires datetime.datetime(2027, 1, 1, 0, 0) must be a "),
    ({"serializer": "jsn"}, ConfigurationError, "unknown serializer 'jsn'. Known: "),
    ({"serializer": "cloudpickle"}, ConfigurationError, "serializer 'cloudpickle' needs a signing_key: "),
    (
        {"heartbeat_timeout": 0},
        ConfigurationError,
        f"heartbeat_timeout 0 must be a number of seconds above 0, {HUNDRED}.",
    ),
    ({"time_limit": 0}, ConfigurationError, f"time_limit 0 must be a number of seconds above 0, {HUNDRED}."),
    ({"soft_time_limit": timedelta(1)}, ConfigurationError, "soft_time_limit datetime.timedelta(days=1) must be a "),
    (
        {"soft_time_limit": 60, "time_limit": 60},
        ConfigurationError,
        "soft_time_limit 60 must be less than time_limit 60, which ends the task before.",
    ),
    ({"max_retries": float("inf")}, ConfigurationError, "max_retries inf must be a whole number from 0, or None."),
    ({"autoretry_for": OSError}, ConfigurationError, "autoretry_for <class 'OSError'> must be a tuple of exception "),
    ({"autoretry_for": ["OSError"]}, ConfigurationError, "autoretry_for holds 'OSError', which is not an exception"),
    ({"autoretry_for": {OSError: "5"}}, ConfigurationError, "autoretry_for[OSError] '5' must be a number of seconds"),
    ({"retry_backoff": "2"}, ConfigurationError, "retry_backoff '2' must be a number of seconds from 0, or True or "),
    ({"retry_jitter": 0.5}, ConfigurationError, "retry_jitter 0.5 must be True or False."),
    ({"default_retry_delay": 1e300}, ConfigurationError, "default_retry_delay 1e+300 must be a number of seconds from"),
    (
        {"on_failure": RetryPolicy},
        ConfigurationError,
        "on_failure <class 'fbtasks.tasks.retry.RetryPolicy'> must be a function of the request and the result or "
        "exception. RetryPolicy is a class: give an object of it, or a function.",
    ),
    (
        {"retrys": 3},
        TaskDefinitionError,
        "unknown task option 'retrys'. Did you mean 'on_retry'? Known options: aliases, autoretry_for, base, ",
    ),
]


@pytest.mark.parametrize(("options", "kind", "message"), OPTIONS, ids=ids(OPTIONS))
def test_the_options_of_a_task_are_checked_where_it_is_defined(options, kind, message):
    def define():
        FBTasks("a", URL).task(**options)(add)

    assert refusal(kind, define).startswith(message)


FUNCTIONS = [
    (functools.partial(add, 1), "functools.partial(<function add at 0x"),
    (Thing(), "<thing> is not a function: define one that calls it, and make that the task."),
    ("mail", "'mail' is not a function; the name of a task is an option: @app.task(name='mail')."),
    (items, "'items' is a generator function, and a task returns one value: return a list, or make each item a call."),
    (pages, "'pages' is a generator function, and a task returns one value: return a list, or make each item a call."),
    (task(add), "'test_refused.add' is a task already: decorate a function once."),
]


@pytest.mark.parametrize(("function", "message"), FUNCTIONS, ids=ids(FUNCTIONS))
@pytest.mark.parametrize("free", [False, True])
def test_what_is_no_function_of_a_task(function, message, free):
    assert refusal(TaskDefinitionError, task if free else FBTasks("a", URL).task, function).startswith(message)


def test_what_can_be_called_and_has_a_name_can_be_a_task():
    app = FBTasks("a", URL)
    for number, function in enumerate((add, waits, lambda: 1, Thing().method, functools.lru_cache(add), len)):
        made = app.task(name=f"t{number}")(function)
        assert app.task(name=made.name)(function).function is function  # the module was imported again
        assert refusal(TaskDefinitionError, app.task(name=made.name), sum).startswith(
            f"two tasks are named 't{number}':"
        )
    assert app.tasks["t4"](1) == 1


def test_bind_needs_a_parameter():
    app = FBTasks("a", URL)
    message = "bind=True gives 'nothing' the task as its first argument, and it takes none."
    assert refusal(TaskDefinitionError, app.task(bind=True), nothing) == message
    assert refusal(TaskDefinitionError, app.register, add).startswith("<function add at 0x")


def giving(function, *, forgets=False):
    """A decorator that gives an argument, and takes another one."""

    @functools.wraps(function)
    def wrapper(*args, tenant=None, **kwargs):
        return function(f"session of {tenant}", *args, **kwargs)

    if forgets:
        del wrapper.__wrapped__
    return wrapper


WRAPPED = (
    " These are the parameters of the function that a decorator wraps by functools.wraps. Where the decorator gives "
    "some of them, or takes others, let it del wrapper.__wrapped__: then those of the wrapper count."
)


def test_what_a_decorator_hides_is_told_with_its_remedy():
    app = FBTasks("a", URL, always_eager=True)

    def store(session, x):
        return session, x

    hidden = app.task(name="hidden")(giving(store))
    message = f"'hidden' cannot be called like that: missing a required argument: 'x'.{WRAPPED}"
    assert refusal(EnqueueError, hidden.delay, 1) == message
    assert refusal(EnqueueError, hidden.s(1).delay) == message
    message = f"'hidden' cannot be called like that: it has no argument 'tenant'. Its arguments: session, x.{WRAPPED}"
    assert refusal(EnqueueError, hidden.delay, 1, tenant="t") == message
    assert refusal(TaskDefinitionError, app.task(name="batched", batch=2), giving(store)).endswith(WRAPPED)
    told = app.task(name="told")(giving(store, forgets=True))
    assert told.delay(1, tenant="t").get() == ["session of t", 1]

    @functools.wraps(store)
    def same(session, x):
        return store(session, x)

    assert "wraps" not in refusal(EnqueueError, app.task(name="same")(same).delay, 1)


ETA = datetime(2100, 1, 1, tzinfo=UTC)
CALLS = [
    ({"args": 4711}, EnqueueError, "args 4711 must be a list or a tuple of the arguments: (4711,)."),
    ({"args": "x"}, EnqueueError, "args 'x' must be a list or a tuple of the arguments: ('x',)."),
    ({"args": {"a": 1}}, EnqueueError, "args {'a': 1} must be a list or a tuple; arguments by name are kwargs."),
    ({"kwargs": [1]}, EnqueueError, "kwargs [1] must be a dict of the arguments by their names."),
    ({"kwargs": {1: 2}}, EnqueueError, "kwargs has the key 1: the names of arguments are text."),
    ({"args": (1, 2, 3)}, EnqueueError, "'t' cannot be called like that: too many positional arguments."),
    ({"countdown": "5"}, EnqueueError, f"countdown '5' must be a number of seconds, {HUNDRED}."),
    ({"countdown": float("nan")}, EnqueueError, f"countdown nan must be a number of seconds, {HUNDRED}."),
    ({"countdown": -1}, EnqueueError, "countdown -1 must not be negative; 0 means at once."),
    ({"countdown": 1, "eta": ETA}, EnqueueError, "give countdown or eta, not both."),
    (
        {"eta": "2027-01-01"},
        EnqueueError,
        "eta '2027-01-01' must be a datetime of the years 2 to 9998: datetime.fromisoformat('2027-01-01').",
    ),
    ({"priority": 10_000}, ConfigurationError, "priority 10000 must be a whole number from -9999 to 9999; higher runs"),
    ({"queue": ""}, ConfigurationError, "'' is not a queue name: "),
    ({"queue": 5}, ConfigurationError, "5 is not a queue name: "),
    ({"expires": "60"}, EnqueueError, f"expires '60' must be a number of seconds, {HUNDRED}, or a datetime."),
    ({"expires": 0}, EnqueueError, "expires 0 must be later than now."),
    ({"expires": datetime(2020, 1, 1)}, EnqueueError, "expires 2020-01-01 00:00:00 must be later than now."),
    (
        {"expires": 60, "countdown": 60},
        EnqueueError,
        "expires 60 is not later than the eta or countdown (0:01:00), so the call could never run: "
        "give a later expires, or an earlier start.",
    ),
    ({"expires": ETA, "eta": ETA}, EnqueueError, "expires 2100-01-01 00:00:00+00:00 is not later than the eta or "),
    ({"max_retries": -1}, EnqueueError, "max_retries -1 must be a whole number from 0, or None."),
    ({"task_id": 5}, EnqueueError, "task_id 5 must be a string of 1 to 255 printable characters."),
    ({"task_id": "4711"}, EnqueueError, "task_id '4711' is a number, and numbers are given by the database. Prefix "),
    ({"serializer": "jsn"}, ConfigurationError, "unknown serializer 'jsn'. Known: "),
    ({"countdwn": 5}, EnqueueError, "unknown option of a call 'countdwn'. Did you mean 'countdown'? Known options: "),
]


@pytest.mark.parametrize(("options", "kind", "message"), CALLS, ids=ids(CALLS))
def test_a_call(options, kind, message):
    app = FBTasks("a", URL)
    made = app.task(name="t")(add)
    options = {"args": (1, 2), **options}
    assert refusal(kind, made.apply_async, **options).startswith(message)
    if "cannot be called" not in message:  # of a name that the app does not know
        assert refusal(kind, app.send_task, "other", **options).startswith(message)
    if not options.keys() & {"kwargs", "task_id"} and options["args"] == (1, 2):
        del options["args"]
        assert refusal(kind, made.delay_many, [(1, 2)], **options).startswith(message)


MANY = [
    ([1, 2], {}, "calls[0] 1 must be a list or a tuple of the arguments: (1,)."),
    ([(1,), "ab"], {}, "calls[1] 'ab' must be a list or a tuple of the arguments: ('ab',)."),
    ("ab", {}, "calls 'ab' must be a list of lists of arguments: [(1,), (2,)]."),
    ([(1,)], {"kwargs": {"b": 1}}, "delay_many() takes positional arguments alone: [(1,), (2,)]."),
    ([(1,), (2,)], {"task_id": "x"}, "task_id 'x' names one call, not 2."),
]


@pytest.mark.parametrize(("calls", "options", "message"), MANY, ids=ids(MANY))
def test_many_calls(calls, options, message):
    made = FBTasks("a", URL).task(name="t")(add)
    assert refusal(EnqueueError, made.delay_many, calls, **options) == message


RETRIES = [
    ({"countdown": -1}, f"countdown -1 must be a number of seconds from 0, {HUNDRED}."),
    ({"exc": "no"}, "exc 'no' must be an exception: retry(exc=error)."),
    ({"eta": ETA}, "unknown argument of retry() 'eta': give countdown= in seconds."),
    ({"contdown": 1}, "unknown argument of retry() 'contdown'. Did you mean 'countdown'? Known options: countdown, "),
]


@pytest.mark.parametrize(("arguments", "message"), RETRIES, ids=ids(RETRIES))
def test_a_retry(arguments, message):
    made = FBTasks("a", URL).task(name="t")(add)
    assert refusal(ConfigurationError, made.retry, **arguments).startswith(message)


def test_arguments_may_be_none_as_in_celery():
    app = FBTasks("a", URL, always_eager=True)
    made = app.task(name="t")(add)
    assert made.apply_async(None, {"a": 1, "b": 2}).get() == 3
    assert made.apply_async([1], None).get() == 1
    assert made.apply_async(range(2)).get() == 1


def test_names_of_tasks_that_are_not_known():
    app = FBTasks("a", URL)
    made = app.task(name="proj.add")(add)
    assert refusal(UnknownTaskError, app.find_task, "proj.ad") == (
        "the app 'a' has no task named 'proj.ad'. Did you mean 'proj.add'?"
    )
    assert (
        refusal(TaskDefinitionError, app.send_task, made) == "the task name <task proj.add> must be text: 'proj.add'."
    )
    assert refusal(TaskDefinitionError, app.send_task, []) == "the task name [] must be text."


def test_included_modules_that_do_not_import(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "refused_broken.py").write_text("1 / 0\n")
    (tmp_path / "refused_needs.py").write_text("import nosuchlib\n")
    for module, message in {
        "nosuchpkg.tasks": f"there is no module 'nosuchpkg.tasks' in {tmp_path} or on the Python path. "
        "Start from the folder that holds it, or correct include of the app 'a'.",
        "refused_needs": "the module 'refused_needs' does not import: No module named 'nosuchlib' "
        "(refused_needs.py, line 1). It is named in include of the app 'a'. Try: python -c 'import refused_needs'",
        "refused_broken": "the module 'refused_broken' does not import: ZeroDivisionError: division by zero "
        "(refused_broken.py, line 1). It is named in include of the app 'a'. Try: python -c 'import refused_broken'",
    }.items():
        app = FBTasks("a", URL, include=[module])
        for _ in range(2):  # the second time as well
            assert refusal(ConfigurationError, app.load) == message
        assert refusal(ConfigurationError, lambda app=app: app.tasks) == message


@pytest.mark.parametrize("limit", [MOST_TRIES, 2**100])
def test_a_number_of_retries_that_is_never_reached_means_no_limit(limit):
    app = FBTasks("a", URL)
    call = app.enqueuer.make_call("t", (), {}, max_retries=limit)
    assert call.max_tries == 0
    assert len(codec.pack_call(call)) == len(codec.pack_call(app.enqueuer.make_call("t", (), {}, max_retries=0)))
    assert app.enqueuer.make_call("t", (), {}, max_retries=MOST_TRIES - 1).max_tries == MOST_TRIES
    assert app.task(max_retries=limit)(add).policy.max_retries == limit


@pytest.mark.parametrize(
    "changes",
    [
        {"priority": 100_000},
        {"max_tries": 10**10},
        {"queue": "q" * 1000},
        {"name": "n" * 10_000},
        {"task_id": "i" * 10_000},
        {"content_type": "t" * 1000},
        {"start": timedelta(days=12_000_000)},
    ],
    ids=" ".join,
)
def test_no_field_of_a_packed_call_reaches_into_the_next(changes):
    call = Call("t", "q", "application/json", b"[[], {}]")
    head = len(codec.pack_call(call)) - len(call.name + call.queue + call.content_type) - len(call.payload)
    assert head == 67
    message = refusal(EnqueueError, codec.pack_call, call._replace(**changes))
    assert " does not fit its fields: " in message


@pytest.mark.parametrize(
    "item",
    [
        Finished(Claim(id=10**19, claim_id=1), RELEASED),
        Finished(Claim(id=1, claim_id=10**19), RELEASED),
        Finished(Claim(id=1, claim_id=1), RELEASED, elapsed=1e13),
        Finished(Claim(id=1, claim_id=1), Crashed("x", charged=True), elapsed=1e13),
    ],
    ids=["id", "claim_id", "elapsed", "elapsed crash"],
)
def test_no_field_of_a_packed_outcome_reaches_into_the_next(item):
    assert "too large for its field" in refusal(StatementRefused, codec.pack_finished, item)
