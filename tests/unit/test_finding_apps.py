"""Which app `-A` names: the layouts of projects, as Celery finds them."""

import importlib
import sys

import pytest

from fbtasks import ConfigurationError
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
            path.parent.mkdir(exist_ok=True)
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
        ("in_celery", "in celery"),
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
        }
    )
    for path, message in {
        "empty_package": f"the module 'empty_package' ({tmp_path}/empty_package/__init__.py) has no FBTasks app, nor "
        "have empty_package.app and empty_package.celery. Add one, as app = FBTasks('shop'), or name the module",
        "broken_package": "the module 'broken_package.app' does not import: ZeroDivisionError: division by zero (",
        "several": "'several.app' has 2 FBTasks apps: a, b. Name it as -A several.app:NAME.",
    }.items():
        with pytest.raises(ConfigurationError) as caught:
            import_app(path)
        assert str(caught.value).startswith(message)


def test_an_app_knows_what_names_it(write):
    """As far as it can be told: one that a function returns is in no variable of the function's module."""
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
    assert paths == {"plain": "plain", "other:own": "other:own", "other:app": "plain", "user": "MODULE"}


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
