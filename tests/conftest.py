"""Fixtures: a fresh database on the real engine for every test, and workers as real processes."""

import os
import shutil
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from contextlib import closing, contextmanager

import pytest
from firebird.driver import DbWriteMode, connect_server
from support.programs import command_line_in
from support.signals import as_in_a_terminal
from support.sql import execute

from fbtasks import FBTasks
from fbtasks.firebird import connections
from fbtasks.firebird.session import Session
from fbtasks.sql import queries
from fbtasks.url import DatabaseURL

SERVER = os.environ.get("FBTASKS_TEST_URL")

# Hundreds of processes are started, and each would compile all modules that have changed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_modifyitems(config, items):
    if not os.environ.get("FBTASKS_SLOW"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]
    for item in items:
        if SERVER and item.get_closest_marker("embedded"):
            item.add_marker(pytest.mark.skip(reason="FBTASKS_TEST_URL names a server"))


@pytest.fixture(scope="session", autouse=True)
def template(tmp_path_factory):
    """An embedded database with an empty queue, which tests get a copy of: making one takes ten times as long.

    It is also the first database that this process opens, which fixes its lock directory: that one outlives the tests.
    Its copies do not wait for the disk: tests kill processes, which loses nothing of what those have written, and no
    test ends the system that would write it later.
    """
    path = tmp_path_factory.mktemp("first") / "first.fdb"
    app = FBTasks("maker", f"firebird://{path}")
    app.migrate()
    app.close()
    with connect_server("", user="SYSDBA") as server:
        server.database.set_write_mode(database=str(path), mode=DbWriteMode.ASYNC)
    return path


@pytest.fixture
def url(request, tmp_path, template):
    """A database with an empty queue: an embedded file, or one beside that of FBTASKS_TEST_URL on its server.

    With the marker ``no_database`` the embedded file is not there yet.
    """
    if SERVER is None:
        url = f"firebird://{tmp_path}/queue.fdb"
        if request.node.get_closest_marker("no_database") is None:
            shutil.copyfile(template, tmp_path / "queue.fdb")
            with closing(
                Session(connections.connect(DatabaseURL.parse(url)), DatabaseURL.parse(url), queries())
            ) as session:
                session.run(lambda t: t.execute("adopt"))  # nothing has been read of sources that it could forget
        yield url
        return
    base, _, query = SERVER.partition("?")
    text = f"{base}.{uuid.uuid4().hex}" + (f"?{query}" if query else "")
    connections.connect(DatabaseURL.parse(text), create=True).close()
    FBTasks("maker", text).migrate()
    yield text
    _drop(DatabaseURL.parse(text))


def _drop(url):
    """Drops a database on a server, where the connections of killed processes may live for a moment longer."""
    limit = time.monotonic() + 30
    while True:
        connection = connections.connect(url)
        try:
            connection.execute_immediate("DELETE FROM MON$ATTACHMENTS WHERE MON$ATTACHMENT_ID <> CURRENT_CONNECTION")
            connection.commit()
            connection.drop_database()
        except Exception:
            connection.close()
            if time.monotonic() > limit:
                raise
            time.sleep(0.2)
        else:
            return


@pytest.fixture
def app(url):
    app = FBTasks("test", url)
    yield app
    app.close()


@pytest.fixture
def wait_for():
    def wait(condition, seconds=30.0):
        began = time.monotonic()
        while not (value := condition()):
            waited = time.monotonic() - began
            assert waited < seconds, "the condition did not come true"
            time.sleep(min(max(0.01, waited / 10), 0.05))  # to ask costs a connection, with many tests side by side
        return value

    return wait


class Project:
    """A folder with an app module, and the command line in it."""

    def __init__(self, folder, url):
        self.folder = folder
        self.url = url
        self.env = {**os.environ, "FBTASKS_URL": url, "PYTHONPATH": str(folder)}
        self.workers = []

    def write(self, source, name="proj"):
        head = "from fbtasks import FBTasks, task, current_request\napp = FBTasks('proj')\n"
        (self.folder / f"{name}.py").write_text(head + textwrap.dedent(source))

    def run(self, *arguments, check=True, input=None, process=None):
        """Runs ``fbtasks`` to its end: a worker in a process of its own, all else in the test's, unless told."""
        if "worker" in arguments if process is None else process:
            done = subprocess.run(
                [sys.executable, "-m", "fbtasks", *arguments],
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=120,
                input=input,
            )
        else:
            done = command_line_in(self.folder, self.env, *map(str, arguments), input=input or "")
        assert not check or done.returncode == 0, done.stderr
        return done

    def python(self, source):
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(source)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    @contextmanager
    def producer(self, source, *statements):
        """An app in the test's own process, for the project of *source*, with *statements* run in its database."""
        self.write(source)
        with closing(FBTasks("producer", self.url)) as app:
            for statement in statements:
                execute(app, statement)
            yield app

    def worker(self, *arguments, fault=None, signals=None):
        log = (self.folder / f"worker{len(self.workers)}.log").open("a+")  # logs() moves the offset that they share
        env = self.env
        if fault is not None:
            env = {**env, "FBTASKS_FAULT": fault, "FBTASKS_FAULT_FILE": str(self.folder / "fault")}
        command = [sys.executable, "-m", "fbtasks", "worker", "-A", "proj", *arguments]
        with signals or as_in_a_terminal():
            process = subprocess.Popen(command, cwd=self.folder, env=env, stderr=log)
        # Reaped also while this thread waits inside the engine, which takes a zombie for alive.
        threading.Thread(target=process.wait, daemon=True).start()
        self.workers.append((process, log))
        return process

    def logs(self):
        texts = []
        for _, log in self.workers:
            log.seek(0)
            texts.append(log.read())
        return "".join(texts)

    def close(self):
        for process, log in self.workers:
            if process.poll() is None:
                process.kill()
            process.wait()
            log.close()


@pytest.fixture
def project(tmp_path, url):
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder, url)
    yield project
    project.close()
