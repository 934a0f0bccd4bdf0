"""What an application sets for its whole process, and the options of its interpreter, in a worker and its children."""

import subprocess
import sys
from decimal import Decimal

import pytest
from support.programs import program
from support.variants import slow

pytestmark = pytest.mark.acceptance

SOURCE = """
    import decimal, locale, os, random, socket, sys
    from pathlib import Path

    for context in (decimal.DefaultContext, decimal.getcontext()):
        context.prec = 1
        context.traps[decimal.Inexact] = context.traps[decimal.FloatOperation] = True
    locale.setlocale(locale.LC_ALL, "")
    os.chdir("data")
    os.umask(0o077)
    random.seed(1)
    socket.setdefaulttimeout(2)

    @app.task
    def echo(value):
        return value

    @app.task
    def double(text):
        return text + text

    @app.task(transactional=True)
    def count():
        cursor = current_request().connection.cursor()
        return cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0]

    @app.task
    def fail():
        raise ValueError("as asked")

    @app.task
    def where():
        return os.getcwd()

    @app.task
    def options():
        return sys.flags.optimize, sys.warnoptions, sys.flags.utf8_mode

    @app.task
    def die_once():
        if not Path("died").exists():
            Path("died").touch()
            os._exit(1)
        return "again"
"""

DESCRIPTORS = """
    import os

    @app.task
    def standard():
        return [os.readlink(f"/proc/{pid}/fd/{number}") for pid in (os.getppid(), os.getpid()) for number in range(3)]
"""

OPTIONS = ("-O", "-W", "error", "-X", "utf8=1")


@pytest.mark.parametrize("pool", ["processes", slow("threads"), slow("asyncio"), slow("solo")])
def test_what_the_application_sets_for_its_process_harms_no_task(project, pool):
    (project.folder / "data").mkdir()
    project.env["LC_ALL"] = "C.UTF-8"
    with project.producer(SOURCE) as producer:
        command = (*OPTIONS, "-m", "fbtasks", "worker", "-A", "proj", "-c", "1", "-P", pool, "--logfile", "worker.txt")
        log = (project.folder / "worker.log").open("a+")
        worker = subprocess.Popen([sys.executable, *command], cwd=project.folder, env=project.env, stderr=log)
        project.workers.append((worker, log))
        assert producer.send_task("proj.echo", (Decimal("1234.5678"),)).get(timeout=30) == Decimal("1234.5678")
        assert producer.send_task("proj.double", ("x" * 50_000,)).get(timeout=30) == "x" * 100_000
        assert producer.send_task("proj.count").get(timeout=30) == 1
        assert producer.send_task("proj.where").get(timeout=30) == str(project.folder / "data")
        assert producer.send_task("proj.options").get(timeout=30) == [1, ["error"], 1]
        with pytest.raises(ValueError, match="as asked"):
            producer.send_task("proj.fail").get(timeout=30)
        if pool != "solo":  # where a task that ends its process ends the worker
            assert producer.send_task("proj.die_once").get(timeout=30) == "again"
        worker.terminate()
        assert worker.wait(30) == 0, project.logs()
    assert "succeeded" in (project.folder / "worker.txt").read_text()


CLOSED = """
import ctypes, os, sys
for number in map(int, sys.argv[2:]):
    os.close(number)
from fbtasks import FBTasks
app = FBTasks("a", sys.argv[1])
app.task(name="t")(lambda: 1).delay()
ctypes.CDLL(None).puts(b"a warning")
ctypes.CDLL(None).fflush(None)
open("found", "w").write(" ".join(os.readlink(f"/proc/self/fd/{number}") for number in sys.argv[2:]))
"""


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)])
def test_what_a_program_without_standard_descriptors_prints_goes_nowhere(project, closed):
    done = program(CLOSED, project.url, *closed, env=project.env, cwd=project.folder)
    assert done.returncode == 0
    assert (project.folder / "found").read_text().split() == ["/dev/null"] * len(closed)


def test_a_worker_without_standard_descriptors_has_no_file_in_their_places(project):
    with project.producer(DESCRIPTORS) as producer:
        command = (sys.executable, "-m", "fbtasks", "worker", "-A", "proj", "-c", "1", "--logfile", "worker.txt")
        closed = subprocess.Popen(
            ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], cwd=project.folder, env=project.env
        )
        project.workers.append((closed, (project.folder / "worker.log").open("a+")))
        assert producer.send_task("proj.standard").get(timeout=30) == ["/dev/null"] * 6
        closed.terminate()
        assert closed.wait(30) == 0
