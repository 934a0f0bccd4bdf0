"""What the command line prints: a line for a task, JSON for scripts, and nothing that a terminal would obey."""

import io
import json
import os
import pty
import re
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from rich.cells import cell_len
from support.golden import kept
from support.programs import command_line
from support.sql import NOW, execute, one
from support.users import with_role

from fbtasks import FBTasks, Ordered
from fbtasks.cli import main
from fbtasks.cli.calls import _say_unknown
from fbtasks.cli.options import Command
from fbtasks.cli.output import visible, visible_json
from fbtasks.testing import drain

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
NASTY = "\x1b[31mred\x9b1m\u202eback\x07\x7f寿司"
LONG = NASTY + " and then the customer's mail server said no" * 3 + "\nsecond line\n\tthird line" + "\nmore" * 20
LISTS = ["failed", "succeeded", "cancelled", "active", "ready", "scheduled", "parked"]


@pytest.fixture
def fb(url, capsys, monkeypatch):
    """Runs a command here. Returns what it prints on both outputs."""
    monkeypatch.setenv("FBTASKS_URL", url)

    def run(*arguments, code=0):
        capsys.readouterr()
        left = command_line(*arguments)
        found = capsys.readouterr()
        assert left == code, found.err
        assert "Traceback" not in found.err
        return found

    return run


@pytest.fixture
def shop(app):
    """A database with a task of each kind: failed ones with long errors, and ids that their callers gave."""

    @app.task(name="shop.send", max_retries=0)
    def send(order):
        raise ValueError(f"order {order}: {LONG}")

    app.task(name="shop.say")(lambda value: value)
    app.task(name="shop.later", max_retries=3, default_retry_delay=600, autoretry_for=(OSError,))(
        lambda: (_ for _ in ()).throw(OSError("api down"))
    )
    send.apply_async((1,), task_id="order-1")
    send.delay(2)
    app.send_task("shop.say", ({"ä": NASTY},), task_id="said")
    app.send_task("shop.say", (None,), task_id="none")
    app.send_task("shop.later", task_id="again")
    app.send_task("shop.unknown", task_id="lost")
    drain(app)
    app.send_task("shop.say", (NASTY,), countdown=3600, task_id="order-3")
    app.send_task("shop.say", (1,), task_id="waits")
    app.send_task("shop.say", (1,), task_id="gone").revoke()
    return app


def register_worker(app, name="w@host", queues="default", lease=3600):
    """A row of a worker, as one on another host would leave it. Returns its id."""
    number = one(app, "SELECT NEXT VALUE FOR QUEUE_PROCESS_SEQ FROM RDB$DATABASE")
    execute(
        app,
        f"""INSERT INTO QUEUE_PROCESS (ID, KIND, NAME, HOST, PID, PID_START, START_TIME, HEARTBEAT_TIME,
            LEASE_UNTIL, QUEUES, POOL, CONCURRENCY, VERSION)
        VALUES (?, 'worker', ?, 'host', 4711, 1, {NOW}, {NOW}, DATEADD({lease} SECOND TO {NOW}), ?, 'threads', 8,
            '1')""",
        number,
        name,
        queues,
    )
    return number


def start_running(app, worker, minutes):
    """Has a worker run the ready tasks for so long already."""
    execute(
        app,
        f"""UPDATE QUEUE_TASK SET STATE = 2, CLAIM_ID = 1, WORKER_ID = {worker},
            CLAIM_TIME = DATEADD(-{minutes} MINUTE TO {NOW}) WHERE STATE = 0""",
    )


def test_a_list_has_the_first_line_of_an_error_and_inspect_task_has_it_whole(shop, fb):
    failed = fb("inspect", "failed").out
    assert "ValueError: order 2" in failed
    assert "second line" not in failed
    whole = fb("inspect", "task", "order-1").out
    assert whole.count("second line") == 1  # not in the error and once more in the traceback
    assert "Traceback (most recent call last):" in whole
    assert "\n\tthird line\nmore\nmore" in whole


def test_a_class_of_an_exception_has_its_module_where_that_says_something(shop, fb):
    """Not of Python's own ones, and not of ours."""
    shop.task(name="shop.object", max_retries=0)(lambda: object())
    shop.send_task("shop.object", task_id="object")
    drain(shop)
    assert "  SerializationError: task 'shop.object': " in fb("inspect", "failed").out
    assert "\nERROR      SerializationError: " in fb("inspect", "task", "object").out
    assert fb("result", "object", code=1).err.startswith("Error: task object failed: SerializationError: ")
    assert fb("inspect", "scheduled", "--name", "shop.later").out.endswith("  OSError: api down\n")
    assert json.loads(fb("result", "object", "--json", code=1).out)["error_type"] == "fbtasks.errors.SerializationError"


def test_a_call_that_does_not_fit_is_told_without_our_frames(shop, fb, caplog):
    shop.task(name="shop.two", max_retries=0)(lambda a, b: None)

    @shop.task(name="shop.async_two", max_retries=0)
    async def async_two(a, b):
        """Called in an event loop."""

    producer = FBTasks("other", shop.settings.url)
    caplog.clear()
    for name in ("shop.two", "shop.async_two"):
        producer.send_task(name, (1,), task_id=name)
        drain(shop)
        said = fb("inspect", "task", name).out
        assert "two' missing" in said.replace("<lambda>()", "two'").replace("async_two()", "two'"), said
        assert "Traceback" not in said
    producer.close()
    assert caplog.text.count("missing 1 required positional argument") == 2
    assert "fbtasks/run" not in caplog.text


COMMANDS = """
import json, sys, termios
from fbtasks.cli import main

for columns, command in json.loads(sys.argv[1]):
    if columns:
        termios.tcsetwinsize(1, (24, columns))
    try:
        main(command, prog_name="fbtasks")
    except SystemExit as left:
        print("left", left.code or 0, flush=True)
"""


def commands(*each):
    """A process that runs commands, each on a terminal of so many columns where that is not 0."""
    return [sys.executable, "-c", COMMANDS, json.dumps(each)]


def test_a_list_is_as_wide_as_the_terminal(shop, url):
    environment = {**os.environ, "FBTASKS_URL": url, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    master, slave = pty.openpty()
    command = commands(*((columns, ["inspect", "failed"]) for columns in (150, 80, 30)))
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    shown = b""
    try:
        while data := os.read(master, 65536):
            shown += data
    except OSError:
        pass  # the other end was closed
    assert process.wait() == 0
    os.close(master)
    text = re.sub(r"\x1b\[[\d;]*m", "", shown.decode()).replace("\r\n", "\n")
    wide, narrow, tiny = (part.splitlines() for part in text.split("left 0\n")[:-1])
    assert [len(wide), len(narrow), len(tiny)] == [3, 3, 3]
    assert 130 < max(map(cell_len, wide)) <= 150
    assert 70 < max(map(cell_len, narrow)) <= 80
    assert [("customer's mail server" in line) for line in (wide[1], narrow[1])] == [True, False]
    assert [line.split()[0] for line in tiny[1:]] == [line.split()[0] for line in wide[1:]]


def test_a_list_that_is_not_whole_says_so(shop, fb):
    assert fb("inspect", "failed", "--limit", "2").err == ""
    found = fb("inspect", "failed", "--limit", "1")
    assert len(found.out.splitlines()) == 2
    assert found.err == "Only the first 1 are shown. For more: --limit 10\n"
    found = fb("inspect", "failed", "--limit", "1", "--json")
    assert (len(json.loads(found.out)), found.err) == (1, "")


def test_a_list_that_is_empty_tells_the_filter_from_the_state(shop, fb):
    assert fb("inspect", "active").out == "Nothing runs. What waits: fbtasks inspect queues\n"
    assert fb("inspect", "failed", "--name", "shop.other").out == "No failed task matches the filters.\n"


def test_ids_of_callers_are_shown_and_every_message_names_the_id_that_was_given(shop, fb):
    number = {row["task_id"]: row["id"] for name in LISTS for row in json.loads(fb("inspect", name, "--json").out)}
    assert "order-1" in fb("inspect", "failed").out
    assert "order-3" in fb("inspect", "scheduled").out
    with_ids = fb("inspect", "failed").out.splitlines()[0]
    fb("discard", "order-1")
    assert ("TASK ID" in with_ids, "TASK ID" in fb("inspect", "failed").out) == (True, False)
    for command in (["retry", "order-3"], ["discard", "order-3"], ["cancel", "said"], ["result", "order-3"],
                    ["result", "gone"], ["result", "again"]):  # fmt: skip
        said = fb(*command, code=1).err
        assert command[1] in said
        assert not re.search(rf"\b{number[command[1]]}\b", said.replace("order-3", "")), said
    assert fb("retry", "order-3", str(number["said"]), code=1).err == (
        f"Error: nothing was changed for order-3 (scheduled), {number['said']} (succeeded): only failed and cancelled "
        "tasks are put back.\n"
    )


def test_cancelling_a_running_task_names_it_and_does_not_count_it_as_cancelled(shop, fb):
    start_running(shop, register_worker(shop), 1)
    assert fb("cancel", "waits").out == "Task waits runs: its worker was asked to stop it.\n"
    found = fb("cancel", "waits", "order-3").out
    assert found == "Task waits runs: its worker was asked to stop it.\n1 task cancelled.\n"


def test_what_was_done_is_told_and_a_purge_asks_first(shop, fb, monkeypatch):
    assert fb("retry", "order-1").out == "1 task put back.\n"
    assert fb("retry", "--all-failed", "--since", "2099-01-01").out == "0 tasks put back.\n"
    assert fb("retry", "--all-failed", "--since", "1d").out == "1 task put back.\n"
    assert fb("cancel", "order-1").out == "1 task cancelled.\n"
    assert fb("discard", "order-1", "said").out == "2 tasks discarded.\n"
    assert "'order-1'" in fb("discard", "order-1", code=1).err
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    fb("purge", "default", code=1)
    assert fb("purge", "default", "--yes").out == "5 tasks deleted.\n"
    assert "deleted" in fb("prune").out
    assert "up to date" in fb("migrate").out


def test_a_purge_of_nothing_asks_nothing(shop, fb):
    fb("purge", "default", "--yes")
    assert fb("purge", "default").out == "Nothing to delete: no task waits in queue 'default'.\n"
    assert json.loads(fb("purge", "default", "--json").out) == {"queue": "default", "count": 0}


def test_a_call_says_when_no_living_worker_knows_the_name(shop, fb):
    nobody = "Note: no worker is alive, and the name 'shop.sya' is not checked. With -A MODULE it is.\n"
    register_worker(shop, lease=-1)
    assert fb("call", "shop.sya").err == nobody
    execute(shop, "UPDATE QUEUE_PROCESS SET TASKS = ?", "shop.say\nmail.send")
    assert fb("call", "shop.sya").err == nobody
    execute(shop, f"UPDATE QUEUE_PROCESS SET LEASE_UNTIL = DATEADD(1 HOUR TO {NOW})")
    called = fb("call", "shop.sya")
    assert called.err == (
        "Note: no worker that is alive knows a task named 'shop.sya', so it waits. Did you mean 'shop.say'? To take it "
        f"back: fbtasks cancel {called.out}"
    )
    assert fb("call", "shop.say", "--args", "[1]").err == ""
    assert "nothing was enqueued" in fb("call", "shop.sya", "--task-id", "said").err


def test_a_call_of_a_user_who_may_not_see_workers_says_nothing_of_them(app, capsys):
    app.migrate()
    with with_role(app, "producer") as theirs, closing(FBTasks("producer", theirs)) as producer:
        _say_unknown(Command(producer, None, as_json=False), "shop.say", "1")
    assert capsys.readouterr().err == ""
    _say_unknown(Command(app, None, as_json=False), "shop.say", "1")
    assert capsys.readouterr().err.startswith("Note: no worker is alive, and the name 'shop.say' is not checked.")


def test_result_is_one_line_with_the_error_and_where_to_see_more(shop, fb):
    said = fb("result", "order-1", code=1)
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert said.err.startswith("Error: task order-1 failed: ValueError: order 1: \\x1b[31mred")
    assert said.err.endswith("(the traceback: fbtasks inspect task order-1)\n")
    assert fb("result", "none").out == "null\n"
    assert json.loads(fb("result", "said").out) == {"ä": NASTY}
    said = fb("result", "order-3", code=1).err
    assert said.startswith("Error: task order-3 has not ended: it is scheduled for 20")
    assert said.endswith(" UTC. To wait for it: fbtasks result order-3 --timeout SECONDS\n")
    assert fb("result", "gone", code=1).err == "Error: task gone did not run to its end: cancelled on request.\n"


def test_a_traceback_of_an_error_is_shown_without_what_a_terminal_obeys(shop, url, capsys, monkeypatch):
    monkeypatch.setenv("FBTASKS_URL", url)
    with pytest.raises(SystemExit) as left:
        main(["--debug", "result", "order-1"], prog_name="fbtasks")
    said = capsys.readouterr().err
    assert left.value.code == 1
    assert said.startswith("Traceback (most recent call last):")
    assert "order 1: \\x1b[31mred\\x9b1m" in said
    assert not OBEYED.search(said)


def json_commands(command=main, path=()):
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if isinstance(inner, click.Group):
            yield from json_commands(inner, (*path, name))
        else:
            yield (*path, name), inner


FED = """
from fbtasks import FBTasks

app = FBTasks("fed")
app.queue("mail")
app.on_change("T", insert=True, name="one")(lambda change: None)
app.on_change("T", insert=True, name="two")(lambda change: None)
"""


def close_a_key(shop):
    """Defines limits, and has a task fail whose order then stands still."""
    shop.limit("customer", at_once=2)
    move = shop.task(name="shop.move", ordered=Ordered(None, stop_on_failure=True), max_retries=0)(lambda: 1 / 0)
    move.delay()
    drain(shop)
    shop.database.use(shop.features["limits"].deploy)


def test_every_command_offers_json(shop, fb, tmp_path, monkeypatch):
    """One value on the standard output; an error is a line on the other one."""
    execute(shop, "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY)")
    execute(shop, "INSERT INTO QUEUE_FEATURE (NAME, VERSION) VALUES ('audit', 1)")
    close_a_key(shop)
    for name in ("hourly", "gone"):
        shop.add_periodic("shop.say", every=3600, args=(1,), name=name)
    shop.database.use(shop.features["schedules"].deploy)
    worker = str(register_worker(shop, lease=-1))
    shop.close()  # no connection is older than the triggers
    (tmp_path / "fed_shop.py").write_text(FED)
    monkeypatch.syspath_prepend(tmp_path)
    examples = {
        ("adopt",): ([], {"adopted": False}),
        ("backup",): ([str(tmp_path / "a.fbk")], {"file": str(tmp_path / "a.fbk")}),
        ("call",): (["shop.say", "--args", "[1]", "--task-id", "new"], {"task_id": "new", "duplicate": False}),
        ("cancel",): (["order-3"], {"count": 1}),
        ("discard",): (["said"], {"count": 1}),
        ("features", "drop"): (["audit"], {"dropped": "audit", "left": []}),
        ("grant",): (["producer", "ann"], {"role": "producer", "revoked": False}),
        ("doctor",): ([], {"level": "error"}),
        ("health",): ([], {"healthy": False, "workers": 0}),
        ("inspect", "logs"): (["none"], None),
        ("inspect", "stats"): ([], {}),
        ("inspect", "task"): (["none"], {"task_id": "none", "state": "succeeded", "args": [None], "kwargs": {}}),
        ("inspect", "workflow"): (["none"], None),
        ("limits", "reset"): (["customer"], {"name": "customer", "at_once": 2, "set": []}),
        ("limits", "resume"): (["ordered:shop.move"], {"name": "ordered:shop.move", "opened": [10]}),
        ("limits", "set"): (["customer", "--at-once", "5"], {"at_once": 5, "code_at_once": 2, "set": ["at_once"]}),
        ("migrate",): ([], {"applied": []}),
        ("move",): (
            ["-A", "fed_shop", "--from", "default", "--to", "mail", "--task", "x", "-y"],
            {"count": 0, "left": {}},
        ),
        ("stop",): ([worker], {"stopped": ["w@host"]}),
        ("pause",): (["default"], {"queues": ["default"], "tasks": [], "put_back": 0}),
        ("prune",): ([], {"count": 0}),
        ("purge",): (["default", "--yes"], {"queue": "default", "count": 3}),
        ("resume",): (["default"], {"queues": ["default"], "tasks": [], "put_back": 0}),
        ("restore",): ([str(tmp_path / "a.fbk"), str(tmp_path / "a.fdb")], {"adopted": False}),
        ("result",): (["none"], {"state": "succeeded", "result": None, "error_type": None}),
        ("retry",): (["order-1", "gone"], {"count": 2}),
        ("schedules", "pause"): (["hourly"], {"changed": ["hourly"]}),
        ("schedules", "remove"): (["gone", "--yes"], {"removed": ["gone"]}),
        ("schedules", "resume"): (["hourly"], {"changed": ["hourly"]}),
        ("schedules", "run"): (["hourly"], {}),
        ("schedules", "set"): (["hourly", "--args", "[2]"], {"args": [2], "every": 3600.0, "set": ["args"]}),
        ("subscriptions", "apply"): (["-A", "fed_shop"], {"problems": {}, "unsettled": []}),
        ("subscriptions", "backfill"): (["one"], {"noted": {"one": 0}}),
        ("subscriptions", "diff"): (["-A", "fed_shop"], {"problems": {}}),
        ("subscriptions", "drop"): (["two", "--yes"], {}),
        ("subscriptions", "pause"): (["one"], {"changed": ["one"]}),
        ("subscriptions", "resume"): (["one"], {"changed": ["one"]}),
        ("top",): (["--interval", "0.1"], {"paused_names": []}),
    }
    # A log, what Prometheus reads, tables of its own, one that leaves nothing (integration/test_uninstall.py), and one
    # for a task that runs (features/stacks/test_stacks.py).
    without = {("worker",), ("metrics",), ("sql",), ("uninstall",), ("web",), ("inspect", "stack")}
    shapes = []
    for path, command in json_commands():
        if path in without:
            continue
        assert "--json" in {opt for param in command.params for opt in param.opts}, path
        arguments, wanted = examples.get(path, ([], None))
        found = json.loads(fb(*path, *arguments, "--json", code=path in (("doctor",), ("health",))).out)
        if wanted is None:
            assert isinstance(found, list)
        else:
            assert {key: found[key] for key in wanted} == wanted
        shapes.append(f"{' '.join(path)}: {shape(found)}")
    assert shapes == kept(Path(__file__).with_name("json.txt"), shapes)


def shape(value):
    """The names of the fields of JSON, in order, and of those of the first value in each list."""
    if isinstance(value, dict):
        return "{" + ", ".join(name + shape(inner) for name, inner in value.items()) + "}"
    return "[" + "".join(map(shape, value[:1])) + "]" if isinstance(value, list) else ""


def test_the_shapes_of_json_are_those_of_the_page(shop, fb):
    failed = json.loads(fb("inspect", "failed", "--json").out)[0]
    task = json.loads(fb("inspect", "task", str(failed["id"]), "--json").out)
    more = ["args", "kwargs", "headers", "content_type", "result", "result_type", "traceback"]
    more += ["progress", "logs", "asked_for", "why"]
    assert list(task) == [*failed, *more]
    assert {key: task[key] for key in failed} == failed
    assert (task["args"], task["kwargs"], task["result_type"]) == ([2], {}, None)
    number = json.loads(fb("inspect", "task", "order-1", "--json").out)["id"]
    found = fb("retry", "order-3", "order-1", "--json", code=1)
    assert json.loads(found.out) == {
        "count": 1,
        "tasks": [
            {"given": "order-3", "id": number + 6, "outcome": "unchanged", "state": "scheduled"},
            {"given": "order-1", "id": number, "outcome": "retried", "state": "ready"},
        ],
    }
    assert found.err.startswith("Error: nothing was changed for order-3 (scheduled)")
    assert json.loads(fb("retry", "--all-failed", "--json").out) == {"count": 1}
    assert json.loads(fb("result", "gone", "--json", code=1).out)["state"] == "cancelled"
    duplicate = json.loads(fb("call", "shop.say", "--task-id", "said", "--json").out)
    assert duplicate == {"id": number + 2, "task_id": "said", "duplicate": True}
    found = fb("inspect", "task", "nosuch", "--json", code=1)
    assert (found.out, found.err.startswith("Error: there is no task 'nosuch'")) == ("", True)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text()
    fields = {*task, *json.loads(fb("inspect", "queues", "--json").out)[0]}
    register_worker(shop)
    fields |= set(json.loads(fb("inspect", "workers", "--json").out)[0])
    assert {field for field in fields if f"`{field}`" not in page} == set()


def test_nothing_that_is_printed_is_obeyed_by_a_terminal(shop, fb):
    execute(shop, "UPDATE QUEUE_TASK SET NAME = ?, ERROR_MSG = ?", "shop." + NASTY, NASTY)
    execute(shop, "UPDATE QUEUE_HISTORY SET ERROR_MSG = ? WHERE STATE = 12", NASTY)
    register_worker(shop, name="w" + NASTY)
    printed = []
    for command in [
        *(["inspect", name] for name in [*LISTS, "queues", "workers", "stats"]),
        *(["inspect", "task", name] for name in ("order-1", "said", "again", "gone")),
        ["result", "said"],
    ]:
        printed += [fb(*command), fb(*command, "--json")]
    printed += [fb(*c, code=1) for c in (["result", "order-1"], ["result", "gone"], ["inspect", "task", NASTY])]
    for found in printed:
        assert not OBEYED.search(found.out), found.out
        assert not OBEYED.search(found.err), found.err
    assert json.loads(fb("inspect", "task", "order-1", "--json").out)["error_msg"] == f"order 1: {LONG}"
    assert json.loads(fb("result", "said", "--json").out)["result"] == {"ä": NASTY}


def test_escapes_say_the_same():
    every = "".join(map(chr, range(0x3000))) + "\ud800 \U000e0041 寿"
    assert not OBEYED.search(visible(every))
    text = json.dumps(every, ensure_ascii=False)
    assert not OBEYED.search(visible_json(text))
    assert json.loads(visible_json(text)) == every
    assert visible("a\tb\r\nc\rd é 寿司 👩\u200d👩") == "a\tb\nc\\x0dd é 寿司 👩\u200d👩"


def test_a_terminal_without_the_characters_gets_their_numbers(shop, url):
    environment = {**os.environ, "FBTASKS_URL": url, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    command = commands((0, ["inspect", "task", "order-1"]), (0, ["result", "said"]))
    shown = subprocess.run(command, env=environment, capture_output=True, check=True).stdout.decode("ascii")
    task, result, _ = shown.split("left 0\n")
    assert "\\u5bff" in task
    assert json.loads(result) == {"ä": NASTY}


def test_queues_that_a_worker_serves_are_shown_and_a_dead_worker_serves_none(shop, fb):
    register_worker(shop, queues="mail,default")
    register_worker(shop, name="second@host", queues="mail")
    register_worker(shop, name="dead@host", queues="default,forgotten", lease=-1)
    rows = {row["queue"]: row for row in json.loads(fb("inspect", "queues", "--json").out)}
    assert {name: row["workers"] for name, row in rows.items()} == {"default": 1, "mail": 2}
    assert {key: value for key, value in rows["mail"].items() if value} == {
        "queue": "mail", "workers": 2, "is_open": True,
    }  # fmt: skip
    shown = fb("inspect", "queues").out
    assert shown.splitlines()[0].split()[-2:] == ["OLDEST", "WORKERS"]  # a time, and no number of those that wait
    assert re.search(r"^mail +0 +0 +0 +0 +0 +2$", shown, re.MULTILINE)
    shop.send_task("shop.say", (1,), queue="forgotten")
    shown = fb("inspect", "queues").out
    assert re.search(r"^forgotten +1 +0 +0 +0 +0 +\d+ m?s +none$", shown, re.MULTILINE)
    shop.send_task("shop.say", (1,), queue="mails")
    assert fb("health", code=1).out == (
        "queue forgotten: no worker serves it. Start one: fbtasks worker -A MODULE -Q forgotten\n"
        "queue mails: no worker serves it. Did you mean 'mail'? "
        "To move its tasks: fbtasks move --from mails --to QUEUE\n"
        "queue default: no worker knows a task named shop.unknown (fbtasks inspect parked)\n"
    )


def test_commands_name_the_app_that_the_command_line_has_named(app, fb, tmp_path, monkeypatch):
    (tmp_path / "known_shop.py").write_text("from fbtasks import FBTasks\nown = FBTasks('shop')\n")
    monkeypatch.syspath_prepend(tmp_path)
    app.send_task("shop.say", queue="mail", task_id="waits")
    start = "fbtasks worker -A known_shop:own"
    for path, name in (("known_shop:own", start), (None, "fbtasks worker -A MODULE")):
        given = [] if path is None else ["-A", path]
        assert fb("health", *given, code=1).out.endswith(f"no worker is alive ({name})\n")
        assert fb("inspect", "workers", *given).out == f"No worker is registered. Start one: {name}\n"
        assert f"    {name} -Q mail\n" in fb("inspect", "task", "waits", *given).out
    assert f"{start}\n" in fb("-A", "known_shop:own", "inspect", "workers").out
    monkeypatch.delitem(sys.modules, "known_shop")


def test_what_waits_is_as_old_as_it_could_have_run_whatever_its_eta(app, fb):
    task = app.task(name="t")(lambda: None)
    eta = datetime(2020, 1, 1, tzinfo=UTC)
    task.apply_async(eta=eta)
    task.apply_async(eta=eta, queue="retried")
    register_worker(app, queues="default,retried")
    assert fb("health").out == "healthy: 1 worker\n"
    assert f"{eta.astimezone():%Y-%m-%d %H:%M:%S}" in fb("inspect", "task", "1").out  # what the caller said is kept
    execute(  # one that was enqueued long ago and became due an hour ago, as after a retry
        app,
        f"UPDATE QUEUE_TASK SET RAISE_TIME = TIMESTAMP '2021-01-01', START_TIME = DATEADD(-1 HOUR TO {NOW})"
        " WHERE QUEUE = 'retried'",
    )
    rows = {row["queue"]: row for row in json.loads(fb("inspect", "queues", "--json").out)}
    now = datetime.now(UTC)
    ages = {queue: now - datetime.fromisoformat(row["waiting_since"]) for queue, row in rows.items()}
    assert ages["default"] < timedelta(minutes=5)
    assert timedelta(minutes=59) < ages["retried"] < timedelta(minutes=66)
    assert fb("health", code=1).out == "queue retried: a task has waited for 60 min\n"
    assert re.search(r" 0 +0 +(\d+ m?s)$", fb("inspect", "ready", "--queue", "default").out.splitlines()[1])


def test_queues_are_counted_in_the_order_of_their_pages(app):
    """Not in the order of the index, which takes four times as long with 150,000 tasks of many priorities."""
    app.migrate()
    with app.database.session() as session, session.connection.cursor() as cursor:
        statement = cursor.prepare(session.queries["queues"])
        plan = statement.detailed_plan
        statement.free()
    (counted,) = [part for part in plan.split("Select Expression") if "Aggregate" in part]
    assert "Bitmap" in counted


def test_what_runs_tells_for_how_long_and_what_does_not_run_tells_no_time(shop, fb):
    worker = register_worker(shop)
    register_worker(shop, name="idle@host")
    start_running(shop, worker, 5)
    assert re.search(r"waits .* 5 min +w@host$", fb("inspect", "active").out, re.MULTILINE)
    shown = fb("inspect", "workers").out
    assert re.search(r"^w@host +4711 +threads +1 of 8 +5 min +default +\S+ m?s ago$", shown, re.MULTILINE)
    assert re.search(r"^idle@host +4711 +threads +0 of 8 +default +\S+ m?s ago$", shown, re.MULTILINE)
    found = [row["busy_for"] for row in json.loads(fb("inspect", "workers", "--json").out)]
    assert 300 <= found[0] < 400
    assert found[1] is None
    again = json.loads(fb("inspect", "scheduled", "--json").out)
    assert {row["task_id"]: row["elapsed_ms"] for row in again} == {"order-3": None, "again": None}
