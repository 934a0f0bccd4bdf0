"""Two applications on one database, in processes of their own, of which one has a feature that the other lacks."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import support
from support.sql import one, rows
from support.variants import slow

from fbtasks import FBTasks
from fbtasks.states import State

pytestmark = pytest.mark.acceptance

WITH = """
    import sys
    sys.path.insert(0, {tests!r})
    from fbtasks import FEATURES
    from support.auditing import Audit
    app = FBTasks('with', features=[*FEATURES, Audit('shared', 'own')])
    @app.task(name='shared')
    def shared(a, b): return a + b
    @app.task(name='own')
    def own(): return 'with'
"""
WITHOUT = """
    @app.task(name='shared')
    def shared(a, b): return a + b
    @app.task(name='own')
    def own(): return 'without'
"""
TRAIL = "SELECT TRIM(HOOK), STATE FROM AUDIT_TRAIL WHERE TASK_ID = ? ORDER BY NO_"


@pytest.fixture
def two(project):
    """The command line of both applications, and their database."""
    project.write(WITH.format(tests=str(Path(support.__file__).parents[1])), name="audited")
    project.write(WITHOUT)
    return project


def parked(app, number):
    return one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE ID = ? AND STATE = ?", number, State.PARKED)


@pytest.mark.thorough
@pytest.mark.parametrize("order", [("audited", "proj"), slow(("proj", "audited"))])
def test_each_keeps_what_the_other_has_made(two, wait_for, order):
    for name in order:
        two.run("migrate", "-A", name, process=True)
    app = FBTasks("looks", two.url)
    try:
        two.worker("-c", "1")
        mine, others = (int(two.python(PUT.format(name))) for name in ("audited", "proj"))
        wait_for(lambda: parked(app, mine))
        assert app.AsyncResult(str(others)).get(timeout=60) == 3
        shown = two.run("inspect", "task", str(mine)).stdout
        assert "it needs the feature audit, which no worker has, and it is parked" in " ".join(shown.split())
        assert "Tasks named 'shared' are parked: this worker has no feature audit" in two.logs()
        two.run("migrate", "-A", "proj", process=True)
        two.worker("-A", "audited", "-c", "1")
        assert app.AsyncResult(str(mine)).get(timeout=60) == 3
        assert rows(app, TRAIL, mine) == [("enqueued", None), ("ended", State.SUCCEEDED)]
        assert rows(app, TRAIL, others) == []
        cancelled = int(two.python(PUT.format("audited").replace("delay(1, 2)", "apply_async((1, 2), countdown=3600)")))
        two.run("cancel", str(cancelled))
        assert rows(app, TRAIL, cancelled) == [("enqueued", None), ("ended", State.CANCELLED)]
    finally:
        app.close()


SHOP = """
    app = FBTasks('shop')
    @app.task(name='shop.send')
    def send(a, b): return a + b
"""
BILLING = SHOP.replace("shop", "billing")


def test_a_name_that_a_worker_of_the_other_app_knows_is_no_error(project, wait_for):
    project.write(SHOP)
    project.write(BILLING, name="billing")
    with closing(FBTasks("looks", project.url)) as app:
        app.migrate()
        for name in ("proj", "billing"):
            project.worker("-A", name, "-c", "1", "-n", name, "-l", "DEBUG")
        wait_for(lambda: one(app, "SELECT COUNT(*) FROM QUEUE_PROCESS") == 2)
        wait_for(lambda: project.logs().count(" is ready.") == 2)
        assert [row["app"] for row in json.loads(project.run("inspect", "workers", "--json").stdout)] in (
            ["shop", "billing"], ["billing", "shop"],
        )  # fmt: skip
        left = "are left to other workers, which know them"
        wait_for(lambda: _ran(app, "shop.send") and _ran(app, "billing.send") and left in project.logs())
        assert " ERROR " not in project.logs()
        app.send_task("nobodys", (1, 2))
        wait_for(lambda: "ERROR Tasks named 'nobodys' are parked: this worker knows no task" in project.logs())


def _ran(app, name):
    return app.send_task(name, (1, 2)).get(timeout=60) == 3


PUT = "from {} import shared; print(shared.delay(1, 2).id)"
