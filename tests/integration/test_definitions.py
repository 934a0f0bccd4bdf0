"""Definitions of tasks: in an app, in libraries and packages that an app includes, and for declared queues."""

import importlib
import sys
import textwrap
import uuid

import pytest
from support.draining import drain

from fbtasks import FBTasks, TaskDefinitionError, UnknownQueueError, task


def test_declared_queues(url):
    app = FBTasks("strict", url, queues=["default", "mail"])
    with pytest.raises(UnknownQueueError, match="'mial'"):
        app.task(queue="mial")(lambda: 1)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """A package with free-standing tasks, importable for one test and of a name of its own."""
    name = f"shoplib_{uuid.uuid4().hex}"
    package = tmp_path / "lib" / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "mail.py").write_text(
        textwrap.dedent("""
        from fbtasks import task

        @task
        def send(to):
            return f"sent to {to}"

        @task(queue="mail", bind=True, max_retries=0)
        def check(self, n):
            return [self.name, self.request.queue, n]
    """)
    )
    (package / "other.py").write_text("from fbtasks import task\n@task\ndef lonely(): pass\n")
    monkeypatch.syspath_prepend(str(package.parent))
    yield name
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        del sys.modules[module]


def test_library_tasks_bind_to_the_app_that_includes_them(url, library):
    module = f"{library}.mail"
    app = FBTasks("shop", url, include=[module])
    assert module not in sys.modules
    assert sorted(app.tasks) == [f"{module}.check", f"{module}.send"]
    mail = sys.modules[module]
    assert mail.send("ann") == "sent to ann"
    sent, checked = mail.send.delay("bob"), mail.check.delay(7)
    assert app.queues_served() == ["default", "mail"]
    drain(app)
    assert (sent.get(timeout=5), checked.get(timeout=5)) == ("sent to bob", [f"{module}.check", "mail", 7])
    app.load()  # again changes nothing
    assert mail.send.app is app
    other = FBTasks("other", url, include=[module])
    with pytest.raises(TaskDefinitionError, match=r"mail\.(send|check)' already belongs to the app 'shop'"):
        other.load()
    importlib.import_module(f"{library}.other")
    with pytest.raises(TaskDefinitionError, match=r"other\.lonely' belongs to no app yet.*include="):
        sys.modules[f"{library}.other"].lonely.delay()
    app.close()


def test_a_package_is_included_with_its_modules(url, library):
    importlib.import_module(f"{library}.mail")
    app = FBTasks("shop", url, include=[library])
    assert f"{library}.mail.send" in app.tasks
    loose = task(name="by-hand")(lambda: 1)
    app.register(loose)
    assert app.register(loose) is loose
    assert "by-hand" in app.tasks
    app.close()
