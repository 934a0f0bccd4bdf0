"""Backup of a database on which others work, and what a restored one is."""

import json
import os
import signal
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest
from support.programs import program, started
from support.sql import rows

import fbtasks.cli.database
from fbtasks import FBTasks
from fbtasks.firebird import connections
from fbtasks.states import State
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance

TASKS = """
    from pathlib import Path
    HERE = Path(__file__).parent

    @app.task
    def note(number):
        with (HERE / "ledger").open("a") as file:
            file.write(f"{number}\\n")
"""
ENQUEUE = """
    import sys
    from fbtasks import FBTasks
    app = FBTasks("producer", sys.argv[1])
    number = 0
    while True:
        calls = [app.send_task("proj.note", (number + n,), queue="default" if n else "later") for n in range(3)]
        number += 3
        print(*(call.id for call in calls), flush=True)
"""
"""Enqueues until its output is closed. Every third task waits in a queue that no worker serves."""


def tasks_in(url):
    """The states of all tasks, live and ended, by their ids."""
    with closing(FBTasks("a", url)) as app:
        return dict(rows(app, "SELECT ID, STATE FROM QUEUE_TASK UNION ALL SELECT ID, STATE FROM QUEUE_HISTORY"))


def names(folder):
    return sorted(each.name for each in folder.iterdir() if each.name not in (".fbtasks", "__pycache__"))


@pytest.mark.thorough
def test_nothing_is_lost_that_was_committed_before_a_backup_under_load(project, tmp_path, wait_for):
    project.write(TASKS)
    with closing(FBTasks("a", project.url)) as app:
        app.send_task("large", (os.urandom(1_000_000).hex(),), queue="later")
    worker = project.worker("-c", "1", "--lease", "3")
    producer = started(ENQUEUE, project.url, stdout=subprocess.PIPE)
    try:
        before = [int(number) for _ in range(30) for number in producer.stdout.readline().split()]
        wait_for(lambda: project.lines())
        done = project.run("backup", "shop.fbk", process=True)
        ran = len(project.lines())
        wait_for(lambda: len(project.lines()) > ran + 10)  # worker and producer went on
        assert worker.poll() is None
    finally:
        producer.kill()
        producer.wait()
        producer.stdout.close()
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0
    assert "ERROR" not in project.logs()
    file = project.folder / "shop.fbk"
    assert done.stdout.startswith(f"Backed up to {file}: ")
    assert done.stderr.splitlines()[0] == f"Backing up {DatabaseURL.parse(project.url)} to {file}"

    (tmp_path / "elsewhere").mkdir()
    path = tmp_path / "elsewhere" / "shop.fdb"
    done = project.run("restore", "shop.fbk", path, process=True)
    url = f"firebird://{path}"
    assert done.stdout.splitlines()[-1] == (
        f"It is a copy, and no worker runs its tasks until it is adopted: fbtasks adopt --url {url}"
    )
    found = tasks_in(url)
    assert set(before) <= found.keys()
    project.env["FBTASKS_URL"] = url
    refused = project.run("worker", "-A", "proj", "--burst", check=False)
    assert (refused.returncode, "fbtasks adopt" in refused.stderr) == (1, True)
    assert tasks_in(url) == found
    project.run("adopt", "--yes")

    def all_ended():  # what ran when the backup began comes back with the lease of its worker
        project.run("worker", "-A", "proj", "-Q", "default,later", "--burst")
        ended = tasks_in(url)
        return {ended[number] for number in before} == {State.SUCCEEDED}

    wait_for(all_ended)


def test_a_database_moves_by_names_with_any_letters_and_is_adopted(project, monkeypatch):
    monkeypatch.setattr(fbtasks.cli.database, "EVERY", 0.0)
    project.write(TASKS)
    with closing(FBTasks("a", project.url)) as app:
        number = int(app.send_task("proj.note", (7,)).id)
    done = project.run("backup", "-A", "proj", "Größe Ж.fbk")
    file = project.folder / "Größe Ж.fbk"
    assert file.stat().st_mode & 0o777 == 0o600
    assert " written\n" in done.stderr
    done = project.run("restore", "--adopt", "--json", "Größe Ж.fbk", "neu Ж.fdb")
    path = project.folder / "neu Ж.fdb"
    url = DatabaseURL(str(path))
    assert json.loads(done.stdout) == {
        "url": str(url), "file": str(file), "bytes": file.stat().st_size, "adopted": True
    }  # fmt: skip
    assert done.stderr.startswith(f"Restoring {url} from {file}\n")
    assert " read; the engine makes the indexes\n" in done.stderr
    assert tasks_in(str(url)) == {number: 0}
    project.env["FBTASKS_URL"] = str(url)
    project.run("worker", "-A", "proj", "--burst")
    assert project.lines() == ["7"]
    # Again under the same name, when the file was moved away; by the URL, and without adopting.
    path.rename(project.folder / "old.fdb")
    done = project.run("restore", "--url", str(url), "Größe Ж.fbk")
    assert done.stdout.splitlines()[-1].endswith(f"fbtasks adopt --url {url}")
    assert names(project.folder) == sorted([file.name, path.name, "old.fdb", "ledger", "proj.py"])


def test_nothing_is_overwritten_and_each_refusal_names_the_remedy(project):
    project.write("")
    folder = project.folder
    project.run("backup", "a.fbk")
    whole = (folder / "a.fbk").read_bytes()
    (folder / "half.fbk").write_bytes(whole[: len(whole) // 2])
    (folder / "text.fbk").write_text("hello" * 1000)
    (folder / "dir").mkdir()
    (folder / "there.fdb").write_text("a database")
    before = names(folder)

    def refused(*arguments, code=2, **env):
        project.env.update(env)
        done = project.run(*arguments, check=False)
        assert (done.returncode, done.stdout) == (code, "")
        assert names(folder) == before
        return done.stderr.splitlines()[-1]

    assert refused("backup", "a.fbk") == (
        f"Error: {folder}/a.fbk is there already, and is not overwritten. Name another file, or delete it."
    )
    assert refused("backup", "dir") == f"Error: {folder}/dir is a folder. Name a file in it: {folder}/dir/fbtasks.fbk"
    assert refused("backup", "no/a.fbk") == f"Error: there is no folder {folder}/no for a.fbk. Create it."
    missing = refused("backup", "b.fbk", "--url", f"firebird://{folder}/none.fdb", code=1)
    assert missing.startswith(f"Error: there is no queue at {folder}/none.fdb: no such file.")
    assert refused("restore", "a.fbk", "there.fdb") == (
        f"Error: {folder}/there.fdb is there already, and is not overwritten. Restore to another place, or end all "
        "processes that use that database and move it away."
    )
    assert refused("restore", "a.fbk", "no/new.fdb", code=1).endswith("/no/new.fdb. Create it.")
    assert refused("restore", "b.fbk", "new.fdb", code=1) == (
        f"Error: {folder}/b.fbk cannot be read: No such file or directory. Name a file that this user can read."
    )
    for file in ("half.fbk", "text.fbk"):
        said = refused("restore", file, "new.fdb", code=1)
        assert said.startswith(f"Error: {folder}/{file} is no backup, or not a whole one (")
        assert "Exiting" not in said
    for arguments in (["--url", project.url], ["-A", "proj"]):
        said = refused("restore", *arguments, "a.fbk", "new.fdb")
        assert said == "Error: give one of PATH, --url and -A: each names the database."
    assert refused("restore", "a.fbk", "firebird:///new.fdb") == (
        "Error: PATH is a file of the embedded engine, and a URL is given by --url."
    )
    here = 2 if DatabaseURL.parse(project.url).embedded else 1
    assert "is there already, and is not overwritten." in refused("restore", "a.fbk", code=here)


@pytest.mark.skipif("FBTASKS_TEST_URL" not in os.environ, reason="needs a server: FBTASKS_TEST_URL")
def test_a_backup_of_an_embedded_file_is_restored_to_a_server(project, tmp_path):
    project.write(TASKS)
    with closing(FBTasks("a", f"firebird://{tmp_path}/own.fdb")) as app:
        number = int(app.send_task("proj.note", (7,)).id)
    project.run("backup", "--url", f"firebird://{tmp_path}/own.fdb", "own.fbk")
    parsed = DatabaseURL.parse(project.url)
    url = replace(parsed, database=f"{parsed.database}.größe").reveal()
    whole = (project.folder / "own.fbk").read_bytes()
    (project.folder / "half.fbk").write_bytes(whole[: len(whole) // 2])
    project.env["FBTASKS_URL"] = url
    said = "is there already, and is not overwritten. Name another one; or delete it on the server"
    try:
        done = project.run("restore", "half.fbk", check=False)
        assert (done.returncode, "is no backup, or not a whole one (" in done.stderr) == (1, True)
        assert said in project.run("restore", "own.fbk", check=False).stderr  # what is left of it
        left = []
        connections.connect(DatabaseURL.parse(url), met=left.append).drop_database()
        assert left[0].shut_down
        done = project.run("restore", "own.fbk")
        assert done.stdout.endswith("until it is adopted: fbtasks adopt, with the same URL\n")
        project.run("adopt", "--yes")
        project.run("worker", "-A", "proj", "--burst")
        assert project.lines() == ["7"]
        assert tasks_in(url) == {number: State.SUCCEEDED}
        assert said in project.run("restore", "own.fbk", check=False).stderr
        assert tasks_in(url) == {number: State.SUCCEEDED}
    finally:
        connections.connect(DatabaseURL.parse(url)).drop_database()


CUT = """
    import os, sys
    from fbtasks.cli import main
    from fbtasks.firebird import services

    number, name, *arguments = sys.argv[1:]
    real = getattr(services, name)

    def cut(*given):
        move, count = given[-1], 0

        def cut_move(piece):
            nonlocal count
            moved = move(piece)
            count += bool(moved or name == "backup")
            if count == 4:
                os.kill(os.getpid(), int(number))
            return moved

        real(*given[:-1], cut_move)

    setattr(services, name, cut)
    main([name, *arguments])
"""
"""Runs a command that gets a signal in the middle."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 1), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_one_that_is_interrupted_leaves_nothing_under_the_name(project, number, code):
    with closing(FBTasks("a", project.url)) as app:
        app.send_task("large", (os.urandom(500_000).hex(),))
    folder, url = project.folder, DatabaseURL.parse(project.url).reveal()
    project.run("backup", "whole.fbk")
    for name, arguments in (("backup", ["cut.fbk", "--url", url]), ("restore", ["whole.fbk", "cut.fdb"])):
        done = program(CUT, int(number), name, *arguments, cwd=str(folder))
        assert done.returncode == code, done.stderr
        left = [each for each in names(folder) if each.startswith("cut")]
        assert [each for each in left if not each.endswith(".part")] == []
        assert len(left) == (number == signal.SIGKILL)
        for each in left:
            os.unlink(folder / each)
    # And the next ones work.
    project.run("backup", "cut.fbk")
    project.run("restore", "--adopt", "cut.fbk", "cut.fdb")
    assert list(tasks_in(f"firebird://{folder}/cut.fdb").values()) == [0]


FULL = """
    import resource, signal, sys
    from fbtasks.cli import main
    from fbtasks.firebird import services

    name = sys.argv[1]
    real = getattr(services, name)

    def full(*given):
        def move(piece):
            resource.setrlimit(resource.RLIMIT_FSIZE, (2_500_000, resource.RLIM_INFINITY))
            return given[-1](piece)

        real(*given[:-1], move)

    setattr(services, name, full)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    main(sys.argv[1:])
"""
"""Runs a command that has no room for a large file, from the time on when the engine has opened its own."""


def test_a_disk_that_is_full_is_told_and_nothing_is_left(project):
    with closing(FBTasks("a", project.url)) as app:
        app.send_task("large", (os.urandom(2_000_000).hex(),))
    folder, url = project.folder, DatabaseURL.parse(project.url).reveal()
    done = program(FULL, "backup", "a.fbk", "--url", url, cwd=str(folder))
    assert (done.returncode, names(folder)) == (1, [])
    assert done.stderr.splitlines()[-1] == (
        f"Error: {folder}/a.fbk cannot be written: File too large. Make room there, or name a file in a folder with "
        "room in which this user may write."
    )
    project.run("backup", "a.fbk")
    done = program(FULL, "restore", "a.fbk", "new.fdb", cwd=str(folder))
    assert (done.returncode, names(folder)) == (1, ["a.fbk"])
    assert done.stderr.startswith(f"Restoring firebird://{folder}/new.fdb from ")
    assert done.stderr.splitlines()[-1].startswith(f"Error: firebird://{folder}/new.fdb cannot be written (")
    assert done.stderr.endswith("). Make room on its disk.\n")
