"""Which database a command and a worker use: that of --url, of FBTASKS_URL, or of the code."""

import pytest

from fbtasks import FBTasks

pytestmark = [pytest.mark.acceptance, pytest.mark.embedded("it names several files")]

SHOP = """
    import os
    app = FBTasks('shop', 'firebird://{folder}/code.fdb')
    @app.task(name='where')
    def where(): return [app.url, app.database.take_note()]
"""


@pytest.fixture
def shop(project):
    """A project whose code names a database that is not there, with a task in the one of FBTASKS_URL."""
    project.write(SHOP.format(folder=project.folder))
    app = FBTasks("producer", project.url)
    yield project, app, app.send_task("where")
    app.close()


def note(used, place, *unused):
    ending = "that is not used" if len(unused) == 1 else "these are not used"
    return f"the database is {used}, as {place} says; {' and '.join(unused)}, and {ending}"


def test_the_environment_is_used_in_the_place_of_the_code(shop):
    project, _, result = shop
    code = f"the code names firebird://{project.folder}/code.fdb"
    done = project.run("worker", "-A", "proj", "-c", "1", "--burst")
    assert f"  note    {note(project.url, 'FBTASKS_URL', code)}\n" in done.stderr
    assert result.get(timeout=1) == [project.url, ""]  # of a child process, in which it is not said again
    done = project.run("prune", "-A", "proj")
    assert done.stderr == f"Note: {note(project.url, 'FBTASKS_URL', code)}.\n"
    assert project.run("prune").stderr == ""
    for looks in ("inspect stats", "schedules list", "subscriptions diff", "result 1"):
        assert project.run(*looks.split(), "-A", "proj").stderr == ""
    assert not (project.folder / "code.fdb").exists()


def test_a_worker_and_its_children_work_on_the_database_of_the_command_line(shop, tmp_path):
    project, app, _ = shop
    code = f"the code names firebird://{project.folder}/code.fdb"
    project.env["FBTASKS_URL"] = f"firebird://{tmp_path}/environment.fdb"
    environment = f"FBTASKS_URL names {project.env['FBTASKS_URL']}"
    said = note(project.url, "--url", environment, code)
    for pool in ("processes", "solo"):
        result = app.send_task("where")
        log = tmp_path / f"{pool}.log"
        done = project.run(
            "worker", "-A", "proj", "--url", project.url, "-P", pool, "-c", "1", "--burst", "--logfile", str(log)
        )
        assert done.stderr.count(said) == 1
        assert log.read_text().count(f"T{said[1:]}.\n") == 1
        assert result.get(timeout=1) == [project.url, ""]
    for arguments in (
        ["inspect", "succeeded", "-A", "proj", f"--url={project.url}"],
        ["--url", project.url, "-Aproj", "inspect", "succeeded"],
        ["inspect", "--url", project.url, "succeeded", "-A", "proj"],
    ):
        done = project.run(*arguments, "--json")
        assert done.stderr == ""
        assert done.stdout.count('"where"') == 3
    assert not list(tmp_path.glob("*/code.fdb"))
    assert not (tmp_path / "environment.fdb").exists()
