"""Bad input: one clear message that names the value and the remedy, and nothing that was queued is lost or stuck."""

import os
import re
import socket
import sys

import pytest
from support.programs import command_line
from support.sql import one

from fbtasks import (
    AuthenticationError,
    DatabaseUnavailable,
    FBTasks,
    UnknownQueueError,
)
from fbtasks.testing import drain

pytestmark = pytest.mark.acceptance

MODULES = {
    "empty": "",
    "broken": "1 / 0\n",
    "outer": "import broken\n",
    "library": "import json\njson.loads('{')\n",
    "needs": "import nosuchlib\n",
    "syntax": "def (\n",
    "two": "from fbtasks import FBTasks\na = FBTasks('a')\nb = FBTasks('b')\n",
    "foreign": "from celery import Celery\nproject = Celery('foreign')\n",
    "includes": "from fbtasks import FBTasks\napp = FBTasks('includes', include=['nosuch.tasks'])\n",
}
FORMS = "Use firebird:///absolute/path/queue.fdb for the embedded engine, or "
QUEUE_NAME = r"is not a queue name: use 1 to 63 letters, digits and '_', '.', ':', '-' (ASCII), beginning with"


@pytest.fixture
def waiting(project):
    """A task that was queued before, with a project around it; at the end it must still run."""
    project.write("@app.task\ndef add(a, b): return a + b\n")
    for name, source in MODULES.items():
        (project.folder / f"{name}.py").write_text(source)
    app = FBTasks("producer", project.url)
    result = app.send_task("proj.add", (2, 3))
    yield result
    assert result.status == "PENDING"
    app.task(name="proj.add")(lambda a, b: a + b)
    drain(app)
    assert result.get(timeout=10) == 5
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 0
    app.close()


@pytest.fixture
def refused(project, monkeypatch, capsys):
    """Runs a command that fails, here. Returns exit code and message, which is one line; there is no traceback."""
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("FBTASKS_URL", project.url)
    monkeypatch.setattr(sys, "path", [str(project.folder), *sys.path])

    def run(*arguments):
        for name in ("proj", *MODULES):
            sys.modules.pop(name, None)
        capsys.readouterr()
        left = command_line(*arguments)
        printed, error = capsys.readouterr()
        assert printed == ""
        assert "Traceback" not in error
        lines = error.strip().splitlines()
        if lines[0].startswith("Usage: "):  # click shows how the command is used before what was wrong
            lines = lines[-1:]
        if lines[0].startswith("Note: the database is "):  # --url names another one than FBTASKS_URL does
            lines = lines[1:]
        assert len(lines) == 1, error
        assert lines[0].startswith("Error: ")
        return left, lines[0].removeprefix("Error: ")

    yield run
    for name in ("proj", *MODULES):
        sys.modules.pop(name, None)


def test_wrong_apps(project, waiting, refused):
    here = os.path.realpath(project.folder)
    no_app = "has no FBTasks app. Add one, as app = FBTasks('shop'), or give the module that has it to -A."
    for app, message in {
        "nosuch": f"there is no module 'nosuch' in {here} or on the Python path. Start from the folder that holds it, "
        "or correct -A.",
        "empty": f"the module 'empty' (empty.py) {no_app}",
        "os": f"the module 'os' ({os.__file__}) {no_app}",
        "broken": "the module 'broken' does not import: ZeroDivisionError: division by zero (broken.py, line 1). "
        "Try: python -c 'import broken'",
        "outer": "the module 'outer' does not import: ZeroDivisionError: division by zero (broken.py, line 1). "
        "Try: python -c 'import outer'",
        "library": "the module 'library' does not import: JSONDecodeError: Expecting property name enclosed in double "
        "quotes: line 1 column 2 (char 1) (library.py, line 2). Try: python -c 'import library'",
        "needs": "the module 'needs' does not import: No module named 'nosuchlib' (needs.py, line 1). "
        "Try: python -c 'import needs'",
        "syntax": "the module 'syntax' does not import: SyntaxError: invalid syntax (syntax.py, line 1). "
        "Try: python -c 'import syntax'",
        "two": "'two' has 2 FBTasks apps: a, b. Name it as -A two:NAME.",
        "two:c": "'two' has no FBTasks app named 'c'. It has: a, b.",
        "proj:apk": "'proj' has no FBTasks app named 'apk'. It has: app. Did you mean 'app'?",
        "empty:app": "'empty' has no FBTasks app named 'app'. It has none.",
        "proj:add": "'proj' has no FBTasks app named 'add'. That is a task: -A names its app. It has: app.",
        "hello.py": "-A 'hello.py' is a file, and a module is wanted, as in an import: -A hello",
        "./proj/tasks.py:app": "-A './proj/tasks.py:app' is a file, and a module is wanted, as in an import: "
        "-A proj.tasks:app",
        "proj/tasks": "-A 'proj/tasks' is a file, and a module is wanted, as in an import: -A proj.tasks",
        "": "-A '' must name a module, as in an import: -A proj or -A proj.tasks:app.",
        "firebird://ann:SECRET@host/x": "-A names the module of an app. A url goes to --url, or into FBTASKS_URL.",
        "my-app": "-A 'my-app' must name a module, as in an import: -A proj or -A proj.tasks:app.",
        "foreign": "'foreign:project' is an app of Celery, which runs it itself, with its broker and backend on a "
        "firebird:// URL: celery -A foreign worker",
        "foreign:project": "'foreign:project' is an app of Celery, which runs it itself, with its broker and backend "
        "on a firebird:// URL: celery -A foreign worker",
        "includes": f"there is no module 'nosuch.tasks' in {here} or on the Python path. Start from the folder that "
        "holds it, or correct include of the app 'includes'.",
    }.items():
        assert refused("worker", "-A", app, "--burst") == (2, message)


def test_wrong_urls(project, waiting, refused):
    code, message = refused("inspect", "failed", "--url", "mysql://x")
    assert (code, message.startswith("--url: 'mysql://x' does not begin with 'firebird://'. " + FORMS)) == (2, True)
    code, message = refused("inspect", "failed", "--url", "firebird://ann:se/cret@host/x")
    assert (code, "%2F" in message, "cret" in message) == (2, True, False)
    code, message = refused("inspect", "failed", "--url", "firebird:///x.fdb?chrset=UTF8")
    assert (code, "unknown option 'chrset'. Known options: " in message) == (2, True)
    assert refused("inspect", "failed", "--url", "db.example:/srv/x.fdb") == (
        2,
        "--url: 'db.example:/srv/x.fdb' does not begin with 'firebird://'. "
        "Did you mean firebird://db.example//srv/x.fdb?",
    )
    code, message = refused("worker", "-A", "proj", "--url", "")
    assert (code, message.partition(".")[0]) == (2, "--url: the url is empty")


def test_a_database_that_cannot_be_reached(project, waiting, refused, monkeypatch):
    with socket.socket() as nobody:  # bound and not listening: a port where no server answers
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        url = f"firebird://ann:secret@127.0.0.1:{port}//srv/x.fdb"
        assert refused("inspect", "failed", "--url", url) == (
            1,
            f"firebird://ann:***@127.0.0.1:{port}//srv/x.fdb cannot be reached ([Errno 111] Connection refused). "
            "Check host, port and server.",
        )
        monkeypatch.delenv("FBTASKS_URL")
        with pytest.raises(DatabaseUnavailable, match=rf"127\.0\.0\.1:{port}"):
            FBTasks("a", url).send_task("t")
    code, message = refused("inspect", "failed", "--url", "firebird://nosuch.invalid/x")
    assert (code, message.startswith("firebird://nosuch.invalid:3050/x cannot be reached")) == (1, True)


@pytest.mark.embedded("it names files")
def test_a_file_that_is_none(project, waiting, refused):
    code, message = refused("inspect", "failed", "--url", "firebird:///nosuch/folder/x.fdb")
    assert (code, message.partition(":")[0]) == (1, "there is no queue at /nosuch/folder/x.fdb")
    assert refused("call", "add", "--url", "firebird:///nosuch/folder/x.fdb") == (
        1,
        "there is no folder /nosuch/folder for the database /nosuch/folder/x.fdb. Create it.",
    )
    text = project.folder / "text.fdb"
    text.write_text("hello")
    code, message = refused("inspect", "failed", "--url", f"firebird://{text}")
    assert (code, str(text) in message, "Check the path" in message) == (1, True, True)
    assert text.read_text() == "hello"
    assert refused("call", "add", "--url", f"firebird://ANNA:secret@{project.folder}/x.fdb?role=CLERK") == (
        2,
        f"--url: 'firebird://ANNA:***@{project.folder}/x.fdb?role=CLERK' has a user and role=, and names no server. "
        "The embedded engine asks for no login: who may use the file may do everything in it. Leave that out, or name "
        f"the server. {FORMS}firebird://user:password@host:"
        "3050//path/on/server.fdb (or .../alias) for a server.",
    )


@pytest.mark.embedded("it names files")
def test_a_path_with_a_colon(project, waiting, refused, monkeypatch):
    folder = project.folder / "a:b"
    folder.mkdir()
    (project.folder / "link").symlink_to(folder)  # which the engine follows
    message = (
        f"{folder} has a ':' in its name, before which the Firebird client library expects the name of a server. "
        f"Rename it, or put the database elsewhere than {folder}/x.fdb"
    )
    for at in (folder, project.folder / "link"):
        code, said = refused("migrate", "--url", f"firebird://{at}/x.fdb")
        assert (code, said) == (1, message)
    monkeypatch.delenv("FBTASKS_URL")
    monkeypatch.chdir(folder)
    assert refused("migrate") == (1, message.replace("x.fdb", "fbtasks.fdb"))
    assert list(folder.iterdir()) == []


def test_a_wrong_password(project, waiting, refused, monkeypatch):
    if FBTasks("a", project.url).settings.url.embedded:
        pytest.skip("the embedded engine asks for no password; set FBTASKS_TEST_URL")
    wrong = re.sub(r"://([^:@]*):[^@]*@", r"://\1:not-the-password@", project.url)
    shown = re.sub(r"://([^:@]*):[^@]*@", r"://\1:***@", project.url)
    message = f"{shown} does not accept this user and password. Correct the URL."
    assert refused("inspect", "failed", "--url", wrong) == (1, message)
    monkeypatch.delenv("FBTASKS_URL")
    with pytest.raises(AuthenticationError) as caught:
        FBTasks("a", wrong).send_task("t")
    assert str(caught.value) == message


def test_ids_that_do_not_exist(project, waiting, refused):
    where = (
        "see: fbtasks inspect failed, active, ready or scheduled. One that has succeeded is not kept where its result "
        "is ignored, as that of a handler."
    )
    for number in ("987654", "no-such-order"):
        for command in (["inspect", "task"], ["result"], ["retry"], ["cancel"], ["discard"]):
            assert refused(*command, number) == (1, f"there is no task {number!r}; {where}")


def test_wrong_queues_and_pools(project, waiting, refused):
    for command in (["inspect", "failed", "--queue"], ["purge", "--yes"]):
        assert refused(*command, "mial") == (
            2,
            "unknown queue 'mial': no task and no worker has it. Known queues: default. One that only an app names is "
            "known with -A MODULE.",
        )
    for names, wrong in {"mail,a b": "a b", "": "", ",": "", "mail,": ""}.items():
        code, message = refused("worker", "-A", "proj", "--burst", "-Q", names)
        assert (code, message.startswith(f"{wrong!r} {QUEUE_NAME}")) == (2, True)
    code, message = refused("call", "proj.add", "--queue", "a b")
    assert (code, message.startswith(f"'a b' {QUEUE_NAME}")) == (2, True)
    assert refused("worker", "-A", "proj", "--burst", "--pool", "process") == (
        2,
        "Invalid value for '-P' / '--pool': 'process' is not one of 'processes', 'threads', 'asyncio', 'solo'.",
    )
    many = ",".join(f"q{number:060}" for number in range(100))
    assert refused("worker", "-A", "proj", "--burst", "-Q", many) == (
        2,
        "100 queues are too many for one worker: their names, with a comma between them, have more than 4000 "
        "characters. Share them between several workers with -Q.",
    )
    code, message = refused("inspect", "failed", "--limit", "99999999999999999999")
    assert (code, message.startswith("Invalid value for '--limit': 99999999999999999999 is not in the range")) == (
        2,
        True,
    )
    app = FBTasks("strict", project.url, queues=["default", "mail"])
    with pytest.raises(UnknownQueueError, match=r"'strict' declares no queue 'mial'\. Declared: default, mail\."):
        app.send_task("proj.add", (1, 1), queue="mial")
    app.close()


def test_wrong_calls(project, waiting, refused):
    cases = {
        ("--args", "{"): (2, "--args '{' is not JSON: "),
        ("--args", "{}"): (2, "--args '{}' must be a JSON list."),
        ("--kwargs", "[1]"): (2, "--kwargs '[1]' must be a JSON object."),
        ("--args", "[NaN]"): (2, "task 'proj.add': args[0] is nan, which JSON does not have."),
        ("--countdown", "-1"): (2, "countdown -1.0 must not be negative; 0 means at once."),
        ("--task-id", ""): (2, "task_id '' must be a string of 1 to 255 printable characters."),
        ("-A", "proj"): (2, "'proj.add' cannot be called like that: missing a required argument: 'a'."),
        ("-A", "proj", "--kwargs", '{"c": 1}'): (
            2,
            "'proj.add' cannot be called like that: it has no argument 'c'. Its arguments: a, b.",
        ),
    }
    for arguments, (code, message) in cases.items():
        got = refused("call", "proj.add", *arguments)
        assert (got[0], got[1][: len(message)]) == (code, message)
    assert refused("call", "proj.ad", "-A", "proj") == (
        2,
        "the app 'proj' has no task named 'proj.ad'. Did you mean 'proj.add'? With --unknown it is enqueued for the "
        "worker of another app.",
    )
    for words, options in {
        ("1", "it's"): """--args '[1, "it'"'"'s"]'""",
        ("[1, 2]",): "--args '[1, 2]'",
        ('{"a": 1}',): """--kwargs '{"a": 1}'""",
        ("[1]", '{"b": 1}'): """--args '[1]' --kwargs '{"b": 1}'""",
        ("[1]", "[2]"): "--args '[[1], [2]]'",
    }.items():
        said = f"the arguments of the task are given in JSON: {options}"
        assert refused("call", "proj.add", *words, "-A", "proj") == (2, said)
    said = "the task name {!r} must have 1 to 255 printable characters, without spaces at its ends."
    assert refused("call", "", "-A", "proj") == (2, said.format(""))
    assert refused("call", "proj.add ", "-A", "proj", "--unknown") == (2, said.format("proj.add "))
    said = "-n 'one ' must have 1 to 100 printable characters, without spaces at its ends."
    assert refused("-A", "proj", "worker", "-n", "one ") == (2, said)
    assert refused("call", "proj.add", "--countdown", "nan")[0] == 2
    said = "--since 'yesterday' is neither an age (90s, 15m, 2h, 7d) nor an ISO time."
    assert refused("inspect", "failed", "--since", "yesterday") == (2, said)
    assert refused("retry") == (2, "give the IDs of tasks, or --all-failed.")


def test_a_worker_without_an_app_is_shown_that_of_the_folder(project, refused):
    missing = "Missing option '-A' / '--app', the module of the app."
    assert refused("worker") == (2, f"{missing} For shop.py: fbtasks worker -A shop")
    project.write("")
    (project.folder / "tasks.py").write_text("from proj import app\n")
    assert refused("worker") == (2, f"{missing} Here it is: fbtasks worker -A proj")
    (project.folder / "proj.py").rename(project.folder / "app.py")
    (project.folder / "hello").mkdir()
    (project.folder / "app.py").rename(project.folder / "hello" / "app.py")
    assert refused("worker") == (2, f"{missing} Here it is: fbtasks worker -A hello")


@pytest.mark.parametrize(
    ("answer", "code", "message"),
    [
        ("", 2, "\nError: the question has no answer, and nothing was changed. Without a terminal give --yes.\n"),
        ("n\n", 1, "Aborted!\n"),
    ],
)
def test_a_question_without_a_terminal_names_its_option(project, waiting, answer, code, message):
    done = project.run("purge", "default", "--json", input=answer, check=False)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr == f"Delete 1 waiting task of queue 'default'? [y/N]: {message}"


HABITS = {
    "worker -A proj -P prefork": (
        "Invalid value for '-P' / '--pool': 'prefork' is a pool of Celery's: it is called processes here, and"
        " is the default."
    ),
    "worker -A proj --autoscale=10,3": (
        "No such option '--autoscale': use -c N; idle processes cost little, and more workers can be started "
        "at any time."
    ),
    "-A proj worker -Ofair": (
        "No such option '-O': always so: workers take little ahead, and long tasks hold back no others."
    ),
    "-A proj worker --concurency 3": "No such option '--concurency'. Did you mean '--concurrency'?",
    "-A proj worker -n one@%h": "-n 'one@%h': leave out the '@' and what follows; the host is added.",
    "-A proj worker --lease nan": (
        "Invalid value for '--lease': nan must be a number of seconds, at most a hundred years."
    ),
    "-A proj beat": (
        "No such command 'beat': no process is needed: every worker has the schedules of @app.periodic tick. "
        "See fbtasks schedules list."
    ),
    "inspect ping": (
        "No such command 'ping': use fbtasks inspect workers, which shows the heartbeats; fbtasks health is "
        "for monitoring."
    ),
    "inspect faild": "No such command 'faild'. Did you mean 'failed'? Commands of an app's own features need -A APP.",
    "failed": "No such command 'failed': use fbtasks inspect failed.",
    "purge": "Missing argument 'QUEUE'. One queue is purged at a time; they are in: fbtasks inspect queues",
    "-b firebird:///x worker": "No such option '-b': use --url, or FBTASKS_URL in the environment.",
}


def test_habits_from_celerys_command_line(project, refused):
    project.write("@app.task\ndef add(a, b): return a + b\n")
    for line, message in HABITS.items():
        assert refused(*line.split()) == (2, message)


def test_the_app_may_stand_before_the_command(project):
    project.write("""
        from fbtasks import FBTasks
        app.task(name="add", queue="sums")(lambda a, b: a + b)
        other = FBTasks("other", queues=["default"])
    """)
    run = project.run
    assert run("-A", "proj", "call", "add", "--args", "[2, 3]").stdout == "1\n"
    assert run("-A", "proj", "inspect", "ready", "--queue", "sums").stdout.count("add") == 1
    assert run("-A", "proj:other", "call", "add", "-A", "proj", "--args", "[2, 3]").stdout == "2\n"
    assert run("-A", "proj:other", "call", "--unknown", "elsewhere").stdout == "3\n"
    assert run("call", "anything").stdout == "4\n"
    assert "no task named 'add'" in run("-A", "proj:other", "call", "add", check=False).stderr
    assert run("-A", "proj", "worker", "-P", "solo", "--burst").stderr.count("succeeded in ") == 2
    assert run("-A", "proj", "result", "1").stdout == "5\n"
