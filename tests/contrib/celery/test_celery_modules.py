"""Modules written for Celery: with other imports, and nothing else, where they use what is here."""

import importlib
import re
import sys
import textwrap

import pytest
from support.draining import drain

from fbtasks import ConfigurationError, FBTasks, shared_task, task

APP = """
    from celery import Celery

    app = Celery("proj")
    app.autodiscover_tasks(["shop_{0}", "plain_{0}"])
"""
TASKS = """
    from celery import Task, shared_task

    class Base(Task):
        abstract = True
        autoretry_for = (OSError,)
        max_retries = 2
        default_retry_delay = 0
        ended = []

        def after_return(self, status, retval, task_id, args, kwargs, einfo):
            self.ended.append((status, self.request.retries))

        def on_retry(self, exc, task_id, args, kwargs, einfo):
            self.ended.append(("RETRY", str(exc)))

    @shared_task(bind=True, base=Base)
    def fetch(self, url, tries=0):
        self.update_state(state="PROGRESS", meta={"url": url})
        if self.request.retries < tries:
            raise OSError("away")
        return f"{url} after {self.request.retries}"

    @shared_task(name="total", ignore_result=False)
    def total(numbers):
        return sum(numbers)

    @shared_task(bind=True, max_retries=0)
    def gives_up(self):
        raise self.retry(exc=KeyError("gone"), countdown=1)
"""
IMPORTS = {
    "from celery import Celery": "from fbtasks import FBTasks as Celery",
    "from celery import": "from fbtasks import",
}


@pytest.fixture
def written(tmp_path, url, monkeypatch):
    """The modules as they are for Celery, with other imports; their names are this test's own."""
    own = re.sub(r"\W", "_", tmp_path.name)
    before = set(sys.modules)
    monkeypatch.setenv("FBTASKS_URL", url)
    monkeypatch.syspath_prepend(tmp_path)

    def write(name, source):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        text = textwrap.dedent(source).replace("{0}", own)
        for celery, here in IMPORTS.items():
            text = text.replace(celery, here)
        path.write_text(text)

    write(f"proj_{own}/__init__.py", "")
    write(f"proj_{own}/app.py", APP)
    write(f"shop_{own}/__init__.py", "")
    write(f"shop_{own}/tasks.py", TASKS)
    write(f"shop_{own}/broken.py", "import nosuch_module")
    write(f"plain_{own}/__init__.py", "")
    importlib.invalidate_caches()
    yield own
    for name in set(sys.modules) - before:
        if name.split(".")[0].endswith(own):
            del sys.modules[name]


def test_a_module_needs_other_imports_alone(written):
    app = importlib.import_module(f"proj_{written}.app").app
    shop = importlib.import_module(f"shop_{written}.tasks")
    good = shop.fetch.delay("one", tries=1)  # before anything asked for the app's tasks
    added, gone = shop.total.apply_async(([1, 2, 3],), countdown=0), shop.gives_up.delay()
    assert shop.fetch.app is app
    assert app.tasks.keys() == {f"shop_{written}.tasks.fetch", f"shop_{written}.tasks.gives_up", "total"}
    drain(app)
    assert (good.state, good.result, good.info) == ("SUCCESS", "one after 1", "one after 1")
    assert added.get(timeout=5) == 6
    assert isinstance(gone.get(propagate=False, timeout=5), KeyError)
    assert isinstance(gone.info, KeyError)
    assert shop.fetch.ended == [("RETRY", "away"), ("SUCCESS", 1)]
    app.close()


def test_where_tasks_are_looked_for(written, url):
    app = FBTasks("one", url)
    app.autodiscover_tasks(lambda: [f"shop_{written}"])
    assert f"shop_{written}.tasks" not in sys.modules
    assert "total" in app.tasks
    other = FBTasks("other", url)
    other.autodiscover_tasks([f"shop_{written}.tasks"], related_name=None)
    assert other.takes(f"shop_{written}.tasks")
    assert not other.takes(f"shop_{written}.tasksx")
    third = FBTasks("third", url)
    third.autodiscover_tasks(["uuid"], force=True)  # no package: it holds no other module
    assert set(third.tasks) == set()
    for packages, related_name, message in (
        (["nosuch_package"], "tasks", "no module 'nosuch_package'.*autodiscover_tasks of the app 'broken'"),
        ([f"shop_{written}"], "broken", "does not import"),
        (None, "tasks", r"is to be told where to look: autodiscover_tasks\(\['shop', 'mail'\]\)"),
        ("shop", "tasks", "packages 'shop'"),
        (["shop"], "", "related_name"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            FBTasks("broken", url).autodiscover_tasks(packages, related_name, force=True)
    for each in (app, other, third):
        each.close()


def test_conf_is_to_be_read(url):
    app = FBTasks("shop", url, default_queue="mail", always_eager=True, timezone="Europe/Vienna", include=["x"])
    conf = app.conf
    assert (conf.default_queue, conf["default_queue"], conf.always_eager) == ("mail", "mail", True)
    assert (conf.name, conf.include, str(conf.timezone)) == ("shop", ("x",), "Europe/Vienna")
    assert conf.get("beat_schedule", 5) == 5
    assert dict(conf).keys() == set(conf)
    assert len(conf) == len(dict(conf))
    assert "default_queue" in conf
    assert "task_default_queue" not in conf
    assert "signing_key" not in conf
    with pytest.raises(AttributeError, match=r"has no attribute 'task_default_queue': use default_queue=\."):
        _ = conf.task_default_queue
    with pytest.raises(AttributeError, match=r"has no attribute 'default_que'. Did you mean 'default_queue'\?"):
        _ = conf.default_que
    with pytest.raises(AttributeError, match=r"has no attribute 'worker_concurrency': use fbtasks worker -c N"):
        _ = conf.worker_concurrency
    message = r"app.conf can only be read.*task_serializer: use serializer=\."
    with pytest.raises(ConfigurationError, match=message):
        conf.task_serializer = "json"
    with pytest.raises(ConfigurationError, match=message):
        conf.update({"task_serializer": "json"}, timezone="UTC")
    with pytest.raises(ConfigurationError, match="can only be read"):
        conf["timezone"] = "UTC"
    assert repr(conf) == "<settings of the app 'shop', to be read>"
    secret = FBTasks("shop", "firebird://ann:secret@db.example//srv/x.fdb", signing_key="secret").conf
    assert "secret" not in repr(dict(secret))
    assert str(secret.url) == "firebird://ann:***@db.example:3050//srv/x.fdb"


def test_shared_task_is_task():
    assert shared_task is task
