"""Projects of app.py and tasks.py, as those of Celery are."""

import json

import pytest

from fbtasks import FBTasks

pytestmark = pytest.mark.acceptance

TASKS = "from shop.app import app\n@app.task\ndef add(a, b): return a + b\n"


@pytest.fixture
def shop(project):
    """Writes the package of a project, whose app is made so."""

    def write(made):
        folder = project.folder / "shop"
        folder.mkdir(exist_ok=True)
        (folder / "__init__.py").write_text("")
        (folder / "app.py").write_text(f"from fbtasks import FBTasks\napp = {made}\n")
        (folder / "tasks.py").write_text(TASKS)
        return project

    return write


def test_a_worker_of_a_package_finds_its_app_and_so_do_its_children(shop):
    project = shop("FBTasks('shop', include=['shop.tasks'])")
    app = FBTasks("producer", project.url)
    results = [app.send_task("shop.tasks.add", (1, n)) for n in range(3)]
    done = project.run("worker", "-A", "shop", "-c", "1", "--burst")
    assert [result.get(timeout=1) for result in results] == [1, 2, 3]
    assert "  tasks   shop.tasks.add\n" in done.stderr
    assert "note" not in done.stderr
    app.close()


def test_an_app_without_tasks_says_how_they_are_found(shop, tmp_path):
    project = shop("FBTasks('shop')")
    note = (
        "the app has no tasks; there is a module shop.tasks. Name the modules that define them: "
        "FBTasks('shop', include=['shop.tasks'])"
    )
    log = tmp_path / "log"
    done = project.run("worker", "-A", "shop", "-c", "1", "--burst", "--logfile", str(log), "--log-format", "json")
    assert f"  tasks   (none)\n  note    {note}\n" in done.stderr
    (warned,) = [line for line in map(json.loads, log.read_text().splitlines()) if line["level"] == "WARNING"]
    assert warned["message"] == f"T{note[1:]}."
    (project.folder / "shop" / "tasks.py").unlink()
    done = project.run("worker", "-A", "shop.app:app", "-c", "1", "--burst")
    assert "note    the app has no tasks. Name the modules that define them: FBTasks('shop', include=['MODULE'])" in (
        done.stderr
    )
