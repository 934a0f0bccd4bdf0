"""An operator has a worker end, from wherever the database can be reached."""

import json

import pytest
from support.registering import register
from support.sql import execute, one

from fbtasks import ConfigurationError
from fbtasks.queue.operations.workers import stop


@pytest.mark.parametrize("pool", ["processes", "solo"])
def test_a_worker_that_is_told_to_end_finishes_what_it_runs_and_claims_nothing_more(project, app, wait_for, pool):
    project.write("""
        import time, pathlib

        @app.task
        def wait():
            while not pathlib.Path("go").exists():
                time.sleep(0.02)
            return 7
    """)
    result = app.send_task("proj.wait")
    worker = project.worker("-c", "1", "-n", "first", "--lease", "3", "--pool", pool)
    wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 2"))
    name = one(app, "SELECT NAME FROM QUEUE_PROCESS WHERE KIND = 'worker'")
    wrong = project.run("stop", name.replace("first", "fist"), check=False)
    assert (wrong.returncode, f"Did you mean {name!r}?" in wrong.stderr) == (2, True)
    assert json.loads(project.run("stop", name, "--json").stdout) == {"stopped": [name]}
    assert "Nothing to do" in project.run("stop", name).stdout
    later = app.send_task("proj.wait")
    beat = "SELECT HEARTBEAT_TIME FROM QUEUE_PROCESS WHERE DRAINING"
    for _ in range(2):  # in the pool solo another process sends them, and takes nothing back
        before = one(app, beat)
        wait_for(lambda: one(app, beat) > before)  # noqa: B023
    (project.folder / "go").touch()
    assert worker.wait(30) == 0
    assert "An operator has told this worker to end" in project.logs()
    assert result.get(timeout=0) == 7
    assert one(app, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", int(later.id)) == 0
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 0


@pytest.mark.emptied
def test_a_name_that_several_workers_have_tells_none_of_them(app):
    first, second = (register(app, name="main@web", pid=pid) for pid in (41, 42))
    other = register(app, name=str(second))
    with pytest.raises(ConfigurationError) as error:
        stop(app.database, ["main@web", str(other)])
    assert f"'main@web': {first} (pid 41 at host), {second} (pid 42 at host). Give an id" in str(error.value)
    assert one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS WHERE DRAINING") == 0
    assert stop(app.database, [str(second)]) == ["main@web"]
    assert one(app, "SELECT ID FROM QUEUE_PROCESS WHERE DRAINING") == second, "an id is that of a worker of any name"
    assert stop(app.database, ["main@web"]) == ["main@web"], "the other one ends by now"
    register(app, name="main@web")
    execute(app, "UPDATE QUEUE_PROCESS SET LEASE_UNTIL = QUEUE_NOW() WHERE ID = ?", first)
    assert stop(app.database, ["main@web", "main@web"]) == ["main@web"], "one of the others is dead"
