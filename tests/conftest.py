"""Fixtures: a fresh database on the real engine for every test, and workers as real processes."""

import fcntl
import gc
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack, closing, contextmanager

import hypothesis
import pytest
from firebird.driver import DbWriteMode, connect_server
from support.databases import SERVER, database, is_copied
from support.draining import drain
from support.emptied import Emptied
from support.forkserver import forkserver
from support.programs import command_line_in
from support.signals import as_in_a_terminal
from support.sql import FEATURES, adopt, adopt_file, execute

from fbtasks import DatabaseUnavailable, FBTasks
from fbtasks.queue import tasks
from fbtasks.tasks.call import Finished, Succeeded
from fbtasks.testing import eager

PAGES = 512
"""The cache of a test's database: each process that opens one sets all of its pages up, and few tests need many."""

MEMORY = "/dev/shm"
"""The folder that most Linux systems have in memory."""
ROOM = 4 << 30
"""Bytes that must be free there: the files of a test that has passed are removed, and some stay until the end."""


def _in_memory():
    """Whether the files of tests can be in memory: thousands of databases are written, and none is to last."""
    try:
        found = os.statvfs(MEMORY)
    except (AttributeError, OSError):
        return False
    allowed = not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) and os.access(MEMORY, os.W_OK)
    return allowed and found.f_bavail * found.f_frsize >= ROOM


# A long run of tests/depth has databases of gigabytes.
if not {"TMPDIR", "FBTASKS_DEPTHS"}.intersection(os.environ) and _in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Not UTC, where a time in the wrong zone would be right. The engine reads the zone once, when it is loaded.
os.environ["TZ"] = os.environ.get("FBTASKS_TEST_ZONE", "America/New_York")
time.tzset()

# A script that runs the tests in the background makes them ignore SIGINT, and so what they start and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is as slow as it is.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")

# Hundreds of processes are started, and each would compile all modules that have changed.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ.pop("COLUMNS", None)  # pytest-xdist sets it: the tables of a command are those of a pipe
sys.dont_write_bytecode = False

# What is imported and collected lives as long as the tests do: to look through it for garbage finds nothing.
gc.disable()


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config, items):
    if not os.environ.get("FBTASKS_SLOW"):
        without = {"slow"} if os.environ.get("FBTASKS_THOROUGH") else {"slow", "thorough"}
        left_out = [item for item in items if without.intersection(mark.name for mark in item.iter_markers())]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    # One process begins with the long ones, and the others take over what it has not come to when they are done.
    items.sort(key=lambda item: item.get_closest_marker("long") is None)
    for item in items:
        if SERVER and (marker := item.get_closest_marker("embedded")):
            item.add_marker(pytest.mark.skip(reason="for the embedded engine: " + " ".join(marker.args)))


@pytest.fixture(scope="session", autouse=True)
def temporary(tmp_path_factory):
    """The temporary folder of all processes that tests start: what those leave that are killed goes with the tests'."""
    os.environ["TMPDIR"] = str(tmp_path_factory.mktemp("tmp"))


@pytest.fixture(scope="session", autouse=True)
def template(tmp_path_factory, once):
    """An embedded database with an empty queue, which tests get a copy of: making one takes ten times as long.

    It is also the first database that this process opens, which fixes its lock directory: that one outlives the tests.
    Its copies do not wait for the disk: tests kill processes, which loses nothing of what those have written, and no
    test ends the system that would write it later.
    """
    path = tmp_path_factory.mktemp("first") / "first.fdb"
    shutil.copyfile(once("template.fdb", _make_template), path)
    adopt_file(f"firebird://{path}")
    return path


@pytest.fixture(scope="session")
def _fbtasks_template(template):
    """That of the plugin: runs of pytest that tests start make it."""
    return template


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Makes a file in a folder that all processes of a run share: one process makes it, and the others wait."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def once(name, make):
        path = folder / name
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                part = folder / f"part.{name}"
                make(part)
                os.replace(part, path)
        return path

    return once


def _make_template(path):
    app = FBTasks("maker", f"firebird://{path}", features=FEATURES)
    app.migrate()
    app.close()
    with connect_server("", user="SYSDBA") as server:
        server.database.set_write_mode(database=str(path), mode=DbWriteMode.ASYNC)
        server.database.set_default_cache_size(database=str(path), size=PAGES)


@pytest.fixture(scope="session")
def copied(once):
    """Returns True when a copy of a file is a database of the server."""
    return once("copied", lambda note: note.write_text("yes" * is_copied())).read_text() == "yes"


@pytest.fixture
def url(request, tmp_path, template):
    """A database with an empty queue: an embedded file, or one beside that of FBTASKS_TEST_URL on its server.

    With the marker ``no_database`` the embedded file is not there yet.
    """
    with ExitStack() as stack:
        if SERVER is None:
            url = f"firebird://{tmp_path}/queue.fdb"
            if request.node.get_closest_marker("no_database") is None:
                shutil.copyfile(template, tmp_path / "queue.fdb")
        else:
            url = stack.enter_context(_database_on_server(request.getfixturevalue("copied") and template))
        if "app" not in request.fixturenames and _has_database(request):  # which adopts it with its own connection
            adopt_file(url)
        yield url


def _has_database(request):
    return SERVER is not None or request.node.get_closest_marker("no_database") is None


@contextmanager
def _database_on_server(template):
    """A database beside that of FBTASKS_TEST_URL: a copy of *template*, or migrated, which takes long."""
    with database("", template) as url:
        if not template:
            with closing(FBTasks("maker", url, features=FEATURES)) as maker:
                maker.migrate()
        yield url.reveal()


@pytest.fixture
def own_app(request, url):
    app = FBTasks("test", url, features=FEATURES)
    if _has_database(request):
        with app.database.session() as session:
            adopt(session)
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
        self.anew = False
        """Whether workers are new interpreters, which import all that they run."""
        self.workers = []
        self._written = 0

    def write(self, source, name="proj"):
        head = "from fbtasks import FBTasks, task, current_request\napp = FBTasks('proj')\n"
        path = self.folder / f"{name}.py"
        path.write_text(head + textwrap.dedent(source))
        # Compiled modules are known by the second and the size of their source, which may be those of the last one.
        self._written = max(int(time.time()), self._written + 1)
        os.utime(path, (self._written, self._written))

    def run(self, *arguments, check=True, input=None, process=None):
        """Runs ``fbtasks`` to its end: a worker in a process of its own, all else in the test's, unless told."""
        if process is None and "worker" in arguments and self._as_imported():
            done = forkserver.run(arguments, self.folder, self.env, timeout=120)
        elif "worker" in arguments if process is None else process:
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
        """Runs a program that warns of nothing, and returns what it prints."""
        warn = "import warnings; warnings.simplefilter('error')\n"
        done = forkserver.run([], self.folder, self.env, timeout=120, code=warn + textwrap.dedent(source))
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
        arguments = ("worker", "-A", "proj", *arguments)
        with signals or as_in_a_terminal():
            if self._as_imported():
                process = forkserver.start(arguments, self.folder, env, stderr=log)
            else:
                command = [sys.executable, "-m", "fbtasks", *arguments]
                process = subprocess.Popen(command, cwd=self.folder, env=env, stderr=log)
                # Reaped also while this thread waits inside the engine, which takes a zombie for alive.
                threading.Thread(target=process.wait, daemon=True).start()
        self.workers.append((process, log))
        return process

    def lines(self):
        """What the tasks of a test have written into the file ``ledger``."""
        path = self.folder / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def _as_imported(self):
        """Whether a worker can run fbtasks as it was imported before, without what a test changes in it."""
        return not (self.anew or (self.folder / "sitecustomize.py").exists())

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


@pytest.fixture(scope="module")
def make_project(request, tmp_path_factory, template):
    """Makes a project with a database of its own, which several tests of a module may share: support/crew.py."""

    @contextmanager
    def make():
        with ExitStack() as stack:
            folder = tmp_path_factory.mktemp("shared")
            if SERVER is None:
                shutil.copyfile(template, folder / "queue.fdb")
                url = f"firebird://{folder}/queue.fdb"
            else:
                url = stack.enter_context(_database_on_server(request.getfixturevalue("copied") and template))
            adopt_file(url)
            (folder / "project").mkdir()
            yield stack.enter_context(closing(Project(folder / "project", url)))

    return make


@pytest.fixture
def crew(crews):
    """Workers with nothing to do, of those that the fixture ``crews`` of a module has."""
    with crews.lent() as crew:
        yield crew


# What many tests of a part call.


@pytest.fixture(scope="session")
def emptied(template, tmp_path_factory):
    databases = Emptied(template, tmp_path_factory.mktemp("emptied"))
    yield databases
    databases.close()


@pytest.fixture
def app(request):
    """An app with an empty queue: with the marker ``emptied`` of a database that others have had.

    A test that asks for the file or the project of its database has one of its own.
    """
    own = {"url", "project"}.intersection(request.fixturenames)
    if own or (SERVER and not request.getfixturevalue("copied")) or request.node.get_closest_marker("emptied") is None:
        yield request.getfixturevalue("own_app")
        return
    with request.getfixturevalue("emptied").app() as app:
        yield app


@pytest.fixture
def add(app):
    return app.task(name="add")(lambda a, b: a + b)


@pytest.fixture
def away(app, monkeypatch):
    """The database cannot be reached while it is set: work that has begun ends, and no more begins."""
    away = threading.Event()
    use = app.database.use

    def used(work, **how):
        if away.is_set():
            raise DatabaseUnavailable("it is away.")
        return use(work, **how)

    monkeypatch.setattr(app.database, "use", used)
    return away


@pytest.fixture
def session(app):
    with app.database.session() as session:
        yield session


@pytest.fixture
def claim(session):
    """Claims as worker 1 does, or another one."""

    def claim(most=100, queue="default", worker=1, **options):
        return session.run(lambda t: tasks.claim(t, worker, queue, most, **options))

    return claim


@pytest.fixture
def end(session):
    """Records what became of claims: that they have succeeded, and nothing of them is kept."""

    def end(claims, outcome=Succeeded(keep=False)):  # noqa: B008  # it cannot be changed
        assert session.run(lambda t: tasks.finish(t, 1, 0, [Finished(each, outcome) for each in claims])) == []

    return end


@pytest.fixture(params=["drained", "eager"])
def run(request, app):
    """Runs a signature, and returns its result."""

    def drained(signature, **options):
        result = signature.apply_async(**options)
        drain(app)
        return result

    def eagerly(signature, **options):
        with eager(app):
            return signature.apply_async(**options)

    return drained if request.param == "drained" else eagerly
