"""Which app `-A` names: the layouts of projects, as Celery finds them."""

import copy
import importlib
import pickle
import subprocess
import sys

import pytest

from fbtasks import ConfigurationError, FBTasks, chain, group
from fbtasks.run.importing import import_app, where_tasks_are

APP = "from fbtasks import FBTasks\n{} = FBTasks({!r})\n"


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules by their names, with a dot for a package; they are found, and are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(sources):
        for name, source in sources.items():
            path = tmp_path / f"{name.replace('.', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("shop_a", "flat"),
        ("tasks_a", "flat"),
        ("tasks_a:application", "flat"),
        ("in_app", "in app"),
        ("in_app.app", "in app"),
        ("in_app:app", "in app"),
        ("in_celery", "in celery"),
        ("in_celery:anything", "in celery"),
        ("both:app", "both, app"),
        ("in_tasks.tasks", "in tasks"),
        ("both", "both, app"),
        ("named", "its own"),
        ("bare", "without __init__"),
        ("module_app", "a module app"),
    ],
)
def test_an_app_is_found(write, path, name):
    write(
        {
            "shop_a": APP.format("app", "flat"),
            "tasks_a": "from shop_a import app as application\n",
            "in_app.__init__": "",
            "in_app.app": APP.format("app", "in app"),
            "in_celery.__init__": "",
            "in_celery.celery": APP.format("anything", "in celery"),
            "in_tasks.__init__": "",
            "in_tasks.base": APP.format("app", "in tasks"),
            "in_tasks.tasks": "from in_tasks.base import app\n",
            "both.__init__": "",
            "both.app": APP.format("app", "both, app"),
            "both.celery": APP.format("app", "both, celery"),
            "named.__init__": APP.format("app", "its own"),
            "named.app": APP.format("app", "another"),
            "bare.app": APP.format("app", "without __init__"),
            "module_app.__init__": "import module_app.app\n",
            "module_app.app": APP.format("app", "a module app"),
        }
    )
    assert import_app(path).name == name


def test_a_package_without_an_app_is_refused(write, tmp_path):
    write(
        {
            "empty_package.__init__": "",
            "empty_package.app": "",
            "broken_package.__init__": "",
            "broken_package.app": "1 / 0\n",
            "several.__init__": "",
            "several.app": APP.format("a", "a") + APP.format("b", "b"),
            "high.high.__init__": "",
            "high.high.app": APP.format("app", "one folder deeper"),
            "bare.tasks": "",
        }
    )
    for path, message in {
        "empty_package": f"the module 'empty_package' ({tmp_path}/empty_package/__init__.py) has no FBTasks app, nor "
        "have empty_package.app and empty_package.celery. Add one, as app = FBTasks('shop'), or give the module that "
        "has it to -A.",
        "several:c": "'several' has no FBTasks app named 'c'. It has: several.app:a, several.app:b.",
        "high": f"'high' is a folder without an __init__.py ({tmp_path}/high), and there is no app in high.app and "
        f"high.celery. The package of that name is in it: start there, cd {tmp_path}/high",
        "bare": f"'bare' is a folder without an __init__.py ({tmp_path}/bare), and there is no app in bare.app and "
        "bare.celery. Start from the folder that holds the modules of the project, or give the one with the app to -A.",
        "broken_package": "the module 'broken_package.app' does not import: ZeroDivisionError: division by zero (",
        "several": "'several.app' has 2 FBTasks apps: a, b. Name it as -A several.app:NAME.",
    }.items():
        with pytest.raises(ConfigurationError) as caught:
            import_app(path)
        assert str(caught.value).startswith(message)


def test_an_app_knows_what_names_it(write):
    """The module that made it comes before those that import it. One that a function returns is where that is kept."""
    made = "from fbtasks import FBTasks\ndef make(): return FBTasks('made')\n"
    write(
        {
            "plain": APP.format("app", "plain"),
            "other": APP.format("own", "other") + "from plain import app\n",
            "maker": made,
            "user": "from maker import make\napp = make()\n",
        }
    )
    paths = {path: import_app(path).path for path in ("plain", "other:own", "other:app", "user")}
    assert paths == {"plain": "plain", "other:own": "other:own", "other:app": "plain", "user": "user"}


PROGRAM = """
import pickle, sys
from fbtasks import FBTasks, group
from library import free
app = FBTasks("program", always_eager=True, include=["library"])
@app.task
def add(x, y=1): return x + y
def _twice(x): return 2 * x
doubled = app.task(name="twice")(_twice)
def things():
    results = group(add.s(1), add.s(2)).delay()
    return [app, add, doubled, free, add.delay, add.s(1) | doubled.s() | free.s(), app.AsyncResult("5"), results]
if __name__ == "__main__":
    sys.stdout.buffer.write(pickle.dumps(things()))
"""


def test_apps_and_tasks_are_pickled_by_their_names(write, tmp_path):
    """Also those of a script, which other processes import, and those that stand in no module by their own name."""
    write({"program": PROGRAM, "library": "from fbtasks import task\n@task\ndef free(x): return -x\n"})
    run = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, check=True)
    app, add, doubled, free, delay, workflow, result, results = pickle.loads(run.stdout)
    program = importlib.import_module("program")
    assert (app, add, doubled) == (program.app, program.add, program.doubled)
    assert free is importlib.import_module("library").free
    assert delay(2).get() == 3
    assert workflow.delay().get() == -4
    assert result == program.app.AsyncResult("5")
    assert results.get() == [2, 3]


def test_copies_of_apps_and_tasks_are_themselves(write):
    app = FBTasks("here", always_eager=True)
    add = app.task(name="add")(lambda x, more: [x, *more])
    for kept in (app, add):
        assert copy.copy(kept) is kept
        assert copy.deepcopy(kept) is kept
    whole = chain(add.s([1]), group(add.s([2])))
    copied = copy.deepcopy(whole)
    whole.tasks[0].args[0].append("changed")
    whole.tasks[1].tasks[0].set(queue="changed")
    assert repr(copied) == "add([1]) | group(add([2]))"
    assert copied.tasks[1].tasks[0].options == {}
    assert copied.tasks[0].task is add
    with pytest.raises(pickle.PicklingError, match=r"'here' is pickled by its name.* write app = FBTasks\('here'\)"):
        pickle.dumps(add)


def test_where_the_tasks_of_a_project_are(write):
    write(
        {
            "flat_app": "",
            "tasks": "",
            "pack.__init__": "",
            "pack.app": "",
            "pack.tasks": "",
            "alone.__init__": "",
            "alone.app": "",
        }
    )
    found = {path: where_tasks_are(path) for path in ("flat_app:app", "pack", "pack.app", "alone.app")}
    assert found == {"flat_app:app": "tasks", "pack": "pack.tasks", "pack.app": "pack.tasks", "alone.app": None}
