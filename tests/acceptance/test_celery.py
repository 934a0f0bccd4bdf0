"""Celery on Firebird, with real workers: the example project, a worker that is killed, and the pools."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.acceptance
PROJECT = Path(__file__).parents[2] / "examples" / "celery_project"


class Celery:
    """The project in a folder of its own, and commands of Celery in it."""

    def __init__(self, folder, url):
        self.folder = folder
        self.env = {**os.environ, "SHOP_URL": url, "PYTHONPATH": str(folder), "CELERY_BROKER_URL": url}
        self.processes = []

    def command(self, *arguments):
        return [sys.executable, "-m", "celery", "-A", "shop", *arguments]

    def start(self, name, *arguments):
        log = self.folder / f"{name}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                self.command(*arguments),
                cwd=self.folder,
                env=self.env,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.processes.append(process)
        return process, log

    def run(self, *command):
        return subprocess.run(command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120)

    def close(self):
        for process in self.processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


@pytest.fixture
def celery(app, tmp_path, url):
    app.migrate()
    folder = tmp_path / "celery"
    shutil.copytree(PROJECT, folder)
    celery = Celery(folder, url)
    yield celery
    celery.close()


def rows(app, statement):
    with app.connect() as connection, connection.cursor() as cursor:
        return cursor.execute(statement).fetchall()


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_the_example_project(celery, app, wait_for, pool):
    worker, log = celery.start("worker", "worker", "-P", pool, "-c", "2", "-l", "INFO")
    wait_for(lambda: "ready." in log.read_text(), 60)
    done = celery.run(sys.executable, "send.py")
    assert done.stdout.splitlines() == ["price 12", "later 6", "total 24"], done.stderr + log.read_text()
    ping = celery.run(*celery.command("inspect", "ping"))
    assert "pong" in ping.stdout
    assert "1 node online" in ping.stdout
    beat, _ = celery.start("beat", "beat", "-s", str(celery.folder / "schedule"))
    wait_for(lambda: len(re.findall(r"count_stock\[\S+\] succeeded", log.read_text())) >= 2, 60)
    beat.terminate()
    beat.wait(30)
    worker.terminate()
    assert worker.wait(60) == 0
    text = log.read_text()
    assert "Traceback" not in text, text
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_MSG WHERE STATE = 2") == [(0,)]
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_MSG_USE") == [(0,)]


def test_a_killed_workers_task_runs_again_once_and_soon(celery, wait_for):
    with (celery.folder / "shop.py").open("a") as file:
        file.write("\n\n@app.task\ndef slow(seconds):\n    import time\n\n    time.sleep(seconds)\n")
    first, log = celery.start("first", "worker", "-c", "1", "-l", "INFO", "-n", "first@%h")
    wait_for(lambda: "ready." in log.read_text(), 60)
    celery.run(sys.executable, "-c", "import shop; shop.slow.delay(4)")
    wait_for(lambda: "received" in log.read_text())
    _, log = celery.start("second", "worker", "-c", "1", "-l", "INFO", "-n", "second@%h")
    wait_for(lambda: "ready." in log.read_text(), 60)
    assert "received" not in log.read_text()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    wait_for(lambda: "received" in log.read_text(), 5)
    wait_for(lambda: "succeeded" in log.read_text())
    assert log.read_text().count("received") == 1


def test_children_that_are_replaced_after_each_task(celery, wait_for):
    """The connected master forks for each task, and each child that ends was attached."""
    worker, log = celery.start("worker", "worker", "-c", "2", "-l", "INFO", "--max-tasks-per-child", "1")
    wait_for(lambda: "ready." in log.read_text(), 60)
    done = celery.run(
        sys.executable, "-c", "from shop import price\nsent = [price.delay('x', n) for n in range(8)]\n"
        "print([result.get(timeout=60) for result in sent])",
    )  # fmt: skip
    assert done.stdout.strip() == str(list(range(8))), done.stderr + log.read_text()
    worker.terminate()
    assert worker.wait(60) == 0
