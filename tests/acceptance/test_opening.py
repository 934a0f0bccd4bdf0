"""Who creates a database and who only looks; what is said of one that cannot be used; and what is left behind."""

import logging
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.programs import command_line, program, python, started
from support.sql import one
from support.variants import slow

from fbtasks import FBTasks, SchemaError
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded("a server's database is made by its administrator")]

LOOKS = [
    *(["inspect", name] for name in ("failed", "succeeded", "cancelled", "active", "ready", "scheduled", "parked")),
    ["inspect", "queues"], ["inspect", "workers"], ["inspect", "stats"], ["inspect", "task", "1"],
    ["retry", "1"], ["retry", "--all-failed"], ["discard", "1"], ["cancel", "1"], ["purge", "default", "--yes"],
    ["prune"], ["health"], ["result", "1"], ["adopt", "--yes"], ["grant", "producer", "ann"],
]  # fmt: skip
READS = (
    lambda result: result.status,
    lambda result: result.ready(),
    lambda result: result.successful(),
    lambda result: result.failed(),
    lambda result: result.traceback,
    lambda result: result.get(timeout=0),
    lambda result: result.revoke(),
    lambda result: result.forget(),
)


@pytest.fixture
def refused(capsys):
    """Runs a command that fails, here. Returns its message."""

    def run(*arguments):
        capsys.readouterr()
        left = command_line(*arguments)
        printed, error = capsys.readouterr()
        assert (left, printed, error.count("\n")) == (1, "", 1)
        return error.removeprefix("Error: ").removesuffix("\n")

    return run


@pytest.fixture
def path(tmp_path):
    """A database that is not there, in a folder with nothing else."""
    folder = tmp_path / "data"
    folder.mkdir()
    return folder / "fbtasks.fdb"


def no_queue(path):
    return (
        f"there is no queue at {path}: no such file. Start in the folder that holds it, or name the database with "
        "--url, -A or FBTASKS_URL. A worker, the first call of a task or 'fbtasks migrate' creates a queue."
    )


def test_a_command_that_looks_creates_nothing(path, refused, monkeypatch):
    for command in LOOKS:
        assert refused(*command, "--url", f"firebird://{path}") == no_queue(path), command
    monkeypatch.chdir(path.parent)
    monkeypatch.delenv("FBTASKS_URL", raising=False)
    assert refused(*LOOKS[0]) == no_queue(path)
    assert list(path.parent.iterdir()) == []


def test_a_command_that_looks_at_another_database_makes_no_tables_in_it(path, refused):
    url = f"firebird://{path}"
    with connections.connect(DatabaseURL.parse(url), create=True) as connection, connection.cursor() as cursor:
        for command in LOOKS:
            assert refused(*command, "--url", url) == f"{url} has no queue yet. Run: fbtasks migrate --url {url}"
        sql = "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME STARTING WITH 'QUEUE_'"
        assert cursor.execute(sql).fetchone() == (0,)
        connection.commit()


def test_who_asks_for_a_result_creates_nothing(path):
    with closing(FBTasks("a", f"firebird://{path}")) as app:
        for read in READS:
            with pytest.raises(SchemaError) as caught:
                read(app.AsyncResult(1))
            assert str(caught.value) == no_queue(path)
    assert list(path.parent.iterdir()) == []


def test_without_auto_migrate_a_call_creates_nothing(path):
    app = FBTasks("a", f"firebird://{path}", auto_migrate=False)
    for use in (lambda: app.send_task("t"), app.connect):
        with pytest.raises(SchemaError) as caught:
            use()
        said, remedy = str(caught.value).rsplit(". ", 1)
        assert (said, remedy) == (
            no_queue(path).rsplit(". ", 1)[0],
            "The app has auto_migrate=False, so that 'fbtasks migrate' alone creates a queue.",
        )
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    "command", [slow(["call", "t"]), ["migrate"], ["worker", "-A", "proj", "-P", "solo", "--burst", "-l", "ERROR"]]
)
def test_who_creates_says_so_with_the_whole_path(path, project, command):
    project.write("")
    project.env["FBTASKS_URL"] = f"firebird://{path}"
    indent = "  note    " if command[0] == "worker" else ""
    first = project.run(*command).stderr
    assert f"{indent}created {path}\n" in first
    assert command[0] == "worker" or first == f"created {path}\n"
    assert "created" not in project.run(*command).stderr


def test_in_python_a_log_record_says_it(path, caplog, capfd):
    with caplog.at_level(logging.INFO, "fbtasks"):
        for _ in range(2):
            with closing(FBTasks("a", f"firebird://{path}")) as app:
                app.send_task("t")
    assert [record.getMessage() for record in caplog.records] == [f"created {path}"]
    assert capfd.readouterr() == ("", "")


def test_a_program_that_names_no_database_says_on_the_standard_error_which_file_it_has_made(tmp_path):
    env = {name: value for name, value in os.environ.items() if name != "FBTASKS_URL"}
    code = "import fbtasks; app = fbtasks.FBTasks('a'); app.send_task('t'); app.close()"
    said = [program(code, env=env, cwd=tmp_path) for _ in range(2)]
    line = f"created {tmp_path}/fbtasks.fdb, since no URL names a database\n"
    assert [(done.stdout, done.stderr) for done in said] == [("", line), ("", "")]


def test_a_queue_in_a_database_that_is_there_is_told_as_well(path, caplog):
    url = f"firebird://{path}"
    connections.connect(DatabaseURL.parse(url), create=True).close()
    app = FBTasks("a", url)
    with caplog.at_level(logging.INFO, "fbtasks"):
        app.send_task("t")
    app.close()
    assert [record.getMessage() for record in caplog.records] == [f"created the queue in {url}"]


# What is said of a missing permission.

ANOTHER = """
import os, sys
import firebird.driver, fbtasks.tasks.formats  # which this user may read, and the other one perhaps not
from fbtasks import EngineError, FBTasks
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(7001, 7001, 7001)
    os.setresuid(7001, 7001, 7001)
for path in sys.argv[1:]:  # for each a process, whose lock directory the first database fixes
    if os.fork():
        os.wait()
        continue
    try:
        FBTasks("a", f"firebird://{path}").send_task("t")
    except EngineError as error:
        print(str(error), flush=True)
    os._exit(0)
"""


@pytest.fixture
def shared():
    """Makes folders that other users may look into; root gives them to one of them, else they are this user's."""
    with ExitStack() as stack:

        def make():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fbtasks-shared-")))
            folder.chmod(0o777)
            if os.getuid() == 0:
                os.chown(folder, 7002, 7002)
            stack.callback(folder.chmod, 0o755)
            return folder

        yield make


def test_what_may_not_be_used_is_named_with_a_remedy_that_changes_no_more(shared):
    whole, entered, file = shared(), shared(), shared() / "q.fdb"
    whole.chmod(0o555)
    (entered / "inner").mkdir()
    entered.chmod(0o600)
    file.touch(0o444)
    locks = [shared() / ".fbtasks" for _ in range(2)]
    for own in locks:
        own.mkdir()
        (own / "q.fdb.guard").touch()
    refused = locks[0], locks[1] / "q.fdb.guard"
    for each in refused:
        each.chmod(0o400)
    databases = (whole / "q.fdb", "/fbtasks-nosuch.fdb", entered / "inner" / "q.fdb", file, *(
        own.parent / "q.fdb" for own in locks
    ))  # fmt: skip
    done = program(ANOTHER, *databases)
    for each in refused:
        each.chmod(0o700)
    assert (done.returncode, done.stderr) == (0, "")
    into = "Put the database into a folder that this user may write to"
    said = done.stdout.splitlines()
    named = (whole, "/", entered, file, *refused)
    for each, text in zip(named, said, strict=True):
        assert f" cannot use {each}: Permission denied. " in text
    in_whole, of_the_system, not_entered, of_file, *of_locks = said
    assert into in in_whole
    assert in_whole.endswith(f"chgrp GROUP {whole}; chmod g+rwxs {whole}")  # and not all that is in it
    assert of_the_system.endswith(f"{into}.")
    assert "ch" not in not_entered.partition("write to")[2]
    assert of_file.endswith(f"chgrp GROUP {file}; chmod g+rw {file}")
    for own, text in zip(locks, of_locks, strict=True):
        assert text.endswith(f"chgrp -R GROUP {own}; chmod -R g+rwX {own}; find {own} -type d -exec chmod g+s {{}} +")
    assert (list(whole.iterdir()), list(file.parent.iterdir())) == ([], [file])


# What is left behind.


def test_a_process_that_uses_a_server_leaves_nothing_in_the_temporary_directory(tmp_path):
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"firebird://ann@127.0.0.1:{nobody.getsockname()[1]}//srv/x.fdb"
        done = subprocess.run(
            [sys.executable, "-m", "fbtasks", "inspect", "failed", "--url", url],
            env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert "cannot be reached" in done.stderr
    assert list(tmp_path.iterdir()) == []


FAIL = """
import sys
from fbtasks import FBTasks, FBTasksError
for url in sys.argv[1:]:
    try:
        FBTasks("a", url).send_task("t")
    except FBTasksError as error:
        print(type(error).__name__, error)
    else:
        print("enqueued")
"""


def besides(folder):
    """What is in *folder*, beside the folder of fbtasks."""
    return sorted(each for each in folder.iterdir() if each.name != ".fbtasks")


def test_a_file_that_is_no_database_is_left_as_it_was(path):
    text, folder = path.with_name("text"), path.with_name("folder")
    text.write_text("hello")
    folder.mkdir()
    done = python(FAIL, f"firebird://{text}", f"firebird://{folder}", f"firebird://{path}?charset=NOSUCH")
    assert (done.stdout.count("\n"), done.stderr, "enqueued" in done.stdout) == (3, "", False)
    assert re.search(r"ConfigurationError .*CHARACTER SET NOSUCH", done.stdout)
    assert besides(path.parent) == [folder, text]
    assert text.read_text() == "hello"
    done = python("import firebird.driver\n" + FAIL, f"firebird://{text}")  # which the driver's import does not change
    assert (done.stdout.count("\n"), done.stderr, "enqueued" in done.stdout) == (1, "", False)


def test_a_database_for_which_there_is_no_room_is_not_left_half_made(path):
    limit = (1_000_000, 1_000_000)
    done = python(
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + FAIL,
        f"firebird://{path}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert "File too large" in done.stdout
    assert besides(path.parent) == []
    # A character set that exists is that of the database, and a queue keeps what is beside it.
    assert program(FAIL, f"firebird://{path}?charset=WIN1252").stdout == "enqueued\n"
    assert sorted(each.name for each in path.parent.iterdir()) == [".fbtasks", path.name]


PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
FAIL_AND_STAY = """
import sys
from fbtasks import FBTasks, FBTasksError
try:
    FBTasks("a", sys.argv[1]).send_task("t")
except FBTasksError:
    pass
FBTasks("a", sys.argv[2]).send_task("t")
print("enqueued", flush=True)
sys.stdin.readline()
"""


def tasks_in(url):
    with closing(FBTasks("a", url)) as app:
        return one(app, "SELECT COUNT(*) FROM QUEUE_TASK")


def test_a_process_keeps_the_lock_directory_of_the_first_database_that_it_opened(path, tmp_path, template):
    """The first database that a process opens fixes its lock directory, which others take over with the second."""
    path.write_text("hello")
    own = path.parent / ".fbtasks"
    shutil.copyfile(template, tmp_path / "good.fdb")
    good = f"firebird://{tmp_path}/good.fdb"
    first = started(FAIL_AND_STAY, f"firebird://{path}", good, **PIPES)
    assert first.stdout.readline() == "enqueued\n"
    second = started(FAIL_AND_STAY, good, good, **PIPES)
    assert second.stdout.readline() == "enqueued\n"
    first.communicate("\n", timeout=30)
    assert (own / "lock").is_dir()
    assert program(FAIL, good).stdout == "enqueued\n"
    second.communicate("\n", timeout=30)
    assert tasks_in(good) == 4
