"""Who creates a database and who only looks; what is said of one that cannot be used; and what is left behind."""

import logging
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from support.programs import command_line, program, python, started
from support.sql import one
from support.variants import slow

from fbtasks import FBTasks, SchemaError
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded]

LOOKS = [
    *(["inspect", name] for name in ("failed", "succeeded", "cancelled", "active", "ready", "scheduled", "parked")),
    ["inspect", "queues"], ["inspect", "workers"], ["inspect", "stats"], ["inspect", "task", "1"],
    ["retry", "1"], ["retry", "--all-failed"], ["discard", "1"], ["cancel", "1"], ["purge", "default", "--yes"],
    ["prune"], ["health"], ["result", "1"], ["adopt", "--yes"], ["grant", "producer", "ann"],
]  # fmt: skip
READS = {
    "status": lambda result: result.status,
    "ready": lambda result: result.ready(),
    "successful": lambda result: result.successful(),
    "failed": lambda result: result.failed(),
    "traceback": lambda result: result.traceback,
    "get": lambda result: result.get(timeout=0),
    "revoke": lambda result: result.revoke(),
    "forget": lambda result: result.forget(),
}


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


@pytest.mark.parametrize("command", LOOKS, ids=" ".join)
def test_a_command_that_looks_creates_nothing(path, refused, monkeypatch, command):
    assert refused(*command, "--url", f"firebird://{path}") == no_queue(path)
    assert list(path.parent.iterdir()) == []
    monkeypatch.chdir(path.parent)
    monkeypatch.delenv("FBTASKS_URL", raising=False)
    assert refused(*command) == no_queue(path)
    assert list(path.parent.iterdir()) == []


def test_a_command_that_looks_at_another_database_makes_no_tables_in_it(path, refused):
    url = f"firebird://{path}"
    with connections.connect(DatabaseURL.parse(url), create=True) as connection, connection.cursor() as cursor:
        for command in LOOKS:
            assert refused(*command, "--url", url) == f"{url} has no queue yet. Run: fbtasks migrate --url URL"
        sql = "SELECT COUNT(*) FROM RDB$RELATIONS WHERE RDB$RELATION_NAME STARTING WITH 'QUEUE_'"
        assert cursor.execute(sql).fetchone() == (0,)
        connection.commit()


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_who_asks_for_a_result_creates_nothing(path, read):
    app = FBTasks("a", f"firebird://{path}")
    with pytest.raises(SchemaError) as caught:
        read(app.AsyncResult(1))
    assert str(caught.value) == no_queue(path)
    app.close()
    assert list(path.parent.iterdir()) == []


def test_without_auto_migrate_a_call_creates_nothing(path):
    app = FBTasks("a", f"firebird://{path}", auto_migrate=False)
    for use in (lambda: app.send_task("t"), app.connect):
        with pytest.raises(SchemaError) as caught:
            use()
        assert str(caught.value) == no_queue(path)
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


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda app: app.send_task("t"), id="call"),
        pytest.param(lambda app: app.connect().close(), id="connect", marks=pytest.mark.slow),  # makes ready likewise
    ],
)
def test_in_python_a_log_record_says_it(path, caplog, capfd, use):
    url = f"firebird://{path}"
    with caplog.at_level(logging.INFO, "fbtasks"):
        for _ in range(2):
            app = FBTasks("a", url)
            use(app)
            app.close()
    assert [record.getMessage() for record in caplog.records] == [f"created {path}"]
    assert capfd.readouterr() == ("", "")


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
try:
    FBTasks("a", sys.argv[1]).send_task("t")
except EngineError as error:
    sys.exit(str(error))
"""
ROOT = os.getuid() == 0


@pytest.fixture
def shared():
    """A folder that other users may look into; root gives it to one of them, else it is this user's."""
    with tempfile.TemporaryDirectory(prefix="fbtasks-shared-") as name:
        folder = Path(name)
        folder.chmod(0o777)
        if ROOT:
            os.chown(folder, 7002, 7002)
        yield folder
        folder.chmod(0o755)


def denied(database):
    """What a user is told who enqueues into *database* without being allowed to."""
    done = program(ANOTHER, f"firebird://{database}")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    return done.stderr.removesuffix("\n")


def test_a_folder_that_may_not_be_written_to_is_named_and_not_changed_with_all_in_it(shared):
    shared.chmod(0o555)
    text = denied(shared / "q.fdb")
    assert f"cannot use {shared}: Permission denied. Put the database into a folder that this user may write to" in text
    assert text.endswith(f"chgrp GROUP {shared}; chmod g+rwxs {shared}")
    assert "-R" not in text
    assert list(shared.iterdir()) == []


def test_the_permissions_of_a_folder_of_the_system_are_left_alone():
    text = denied("/fbtasks-nosuch.fdb")
    assert text.endswith(
        " cannot use /: Permission denied. Put the database into a folder that this user may write to."
    )


def test_a_folder_that_may_not_be_entered_is_named(shared):
    inner = shared / "inner"
    inner.mkdir()
    shared.chmod(0o600)
    text = denied(inner / "q.fdb")
    assert f" cannot use {shared}: Permission denied. " in text
    assert "ch" not in text.partition("write to")[2]


def test_a_database_file_that_may_not_be_written_to_is_named(shared):
    file = shared / "q.fdb"
    file.touch(0o444)
    text = denied(file)
    assert f" cannot use {file}: Permission denied. " in text
    assert text.endswith(f"chgrp GROUP {file}; chmod g+rw {file}")
    assert list(shared.iterdir()) == [file]


@pytest.mark.parametrize("name", ["", "q.fdb.guard"], ids=["folder", "file"])
def test_inside_the_folder_of_fbtasks_the_lock_file_is_named(shared, name):
    own = shared / ".fbtasks"
    own.mkdir()
    (own / "q.fdb.guard").touch()
    (own / name).chmod(0o400)
    text = denied(shared / "q.fdb")
    (own / name).chmod(0o700)
    assert f" cannot use {own / name}: Permission denied. " in text
    assert text.endswith(f"chgrp -R GROUP {own}; chmod -R g+rwX {own}; find {own} -type d -exec chmod g+s {{}} +")


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
    done = python(FAIL, f"firebird://{text}", f"firebird://{folder}")
    assert (done.stdout.count("\n"), done.stderr, "enqueued" in done.stdout) == (2, "", False)
    assert besides(path.parent) == [folder, text]
    assert text.read_text() == "hello"


def test_the_driver_may_have_been_imported_before(path):
    path.write_text("hello")
    done = python("import firebird.driver\n" + FAIL, f"firebird://{path}")
    assert (done.stdout.count("\n"), done.stderr, "enqueued" in done.stdout) == (1, "", False)
    assert besides(path.parent) == [path]


def test_a_character_set_that_does_not_exist_leaves_no_database(path):
    done = program(FAIL, f"firebird://{path}?charset=NOSUCH")
    assert "ConfigurationError" in done.stdout
    assert "CHARACTER SET NOSUCH" in done.stdout
    assert besides(path.parent) == []


def test_a_character_set_that_exists_is_that_of_the_database_and_a_queue_keeps_what_is_beside_it(path):
    assert program(FAIL, f"firebird://{path}?charset=WIN1252").stdout == "enqueued\n"
    assert sorted(each.name for each in path.parent.iterdir()) == [".fbtasks", path.name]


def test_a_database_for_which_there_is_no_room_is_not_left_half_made(path):
    limit = (1_000_000, 1_000_000)
    done = python(
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n" + FAIL,
        f"firebird://{path}",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert "File too large" in done.stdout
    assert besides(path.parent) == []
    with closing(FBTasks("a", f"firebird://{path}")) as app:
        app.send_task("t")


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
