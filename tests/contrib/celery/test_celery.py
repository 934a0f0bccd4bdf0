"""Celery on Firebird, with real workers: the example project, a worker that is killed, and the pools."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from support.proxy import before
from support.sql import rows

from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Publication
from fbtasks.database import grants
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance
PROJECT = Path(__file__).parents[3] / "examples" / "celery_project"


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


CHORDS = """
from celery import chain, chord, group
from celery.exceptions import ChordError
from shop import app


@app.task
def add(*numbers):
    return sum(numbers)


@app.task(ignore_result=True)
def silent(number):
    return number


@app.task
def broken():
    raise ValueError("broken")


@app.task
def echo(values):
    return values


def main():
    def show(canvas, **options):
        try:
            print(canvas.apply_async().get(timeout=30, **options))
        except ChordError as error:
            print("ChordError", "broken" in str(error))

    inner = group(add.si(3), add.si(4))
    show(chord([add.si(1), chain(add.si(2), inner)], echo.s()))
    show(chord([add.si(5), chord([add.si(6)], echo.s())], echo.s()))
    show(chord((silent.si(number) for number in range(3)), echo.s()))
    show(chord([add.si(1), broken.si()], echo.s()), follow_parents=False)
    show(chain(add.si(1), group(add.s(1), add.s(2)), echo.s(), group(echo.s(), echo.s())))
    try:
        chain(broken.si(), group(add.s(1), add.s(2))).apply_async().get(timeout=30)
    except ValueError:
        print("ValueError")
"""


SCHEDULED = """
import shop
sent = shop.price.apply_async(("nut", 2), countdown=3600)
(known,) = shop.app.control.inspect(timeout=30, limit=1).scheduled().values()
print([each["request"]["id"] for each in known] == [sent.id])
"""
SLOW_POOLS = [pytest.param(pool, marks=pytest.mark.slow) for pool in ("threads", "solo")]


@pytest.mark.thorough
@pytest.mark.long
@pytest.mark.parametrize("pool", ["prefork", *SLOW_POOLS])
def test_the_example_project_and_chords_of_every_shape(celery, app, wait_for, pool):
    (celery.folder / "chords.py").write_text(CHORDS)
    celery.env["PYTHONPATH"] += os.pathsep + str(celery.folder)
    worker, log = celery.start("worker", "worker", "-P", pool, "-c", "2", "-l", "INFO", "-I", "chords")
    wait_for(lambda: "ready." in log.read_text(), 60)
    done = celery.run(sys.executable, "send.py")
    assert done.stdout.splitlines() == ["price 12", "later 6", "total 24"], done.stderr + log.read_text()
    done = celery.run(sys.executable, "-c", "import chords; chords.main()")
    assert done.stdout.splitlines() == [
        "[1, [3, 4]]",
        "[5, [6]]",
        "[0, 1, 2]",
        "ChordError True",
        "[[2, 3], [2, 3]]",
        "ValueError",
    ], done.stderr + log.read_text()
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_CELERY_CHORD_PART") == [(0,)]
    ping = celery.run(*celery.command("inspect", "ping"))
    assert "pong" in ping.stdout
    assert "1 node online" in ping.stdout
    scheduled = celery.run(sys.executable, "-c", SCHEDULED)
    assert scheduled.stdout == "True\n", scheduled.stderr
    beat, _ = celery.start("beat", "beat", "-s", str(celery.folder / "schedule"))
    wait_for(lambda: len(re.findall(r"count_stock\[\S+\] succeeded", log.read_text())) >= 2, 60)
    beat.terminate()
    beat.wait(30)
    worker.terminate()
    assert worker.wait(60) == 0
    text = log.read_text()
    assert text.count("Traceback") == text.count("ValueError: broken") == 2, text
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_MSG WHERE STATE = 2") == [(0,)]
    assert rows(app, "SELECT COUNT(*) FROM QUEUE_MSG_USE") == [(0,)]


def message(task, body, **headers):
    """A message of Celery's."""
    headers = {"lang": "py", "task": task, "id": task, "eta": None, "timelimit": [None, None], **headers}
    head = json.dumps({"p": {}, "h": headers, "t": "application/json", "e": "utf-8"}).encode()
    return Publication("", "celery", b"%08d%b%b" % (len(head), head, body))


def poison(body=b'[["nut", 2], {}, {}]', **headers):
    """One with something wrong in it."""
    return message(**{"task": "shop.price", "body": body, "id": "poison", **headers})


def test_a_killed_workers_task_runs_again_once_and_soon(celery, app, wait_for):
    with (celery.folder / "shop.py").open("a") as file:
        file.write(
            "\n\n@app.task\ndef slow():\n    import os, time\n\n    while not os.path.exists('go'):\n"
            "        time.sleep(0.05)\n"
        )
    first, log = celery.start("first", "worker", "-c", "1", "-l", "INFO", "-n", "first@%h")
    wait_for(lambda: "ready." in log.read_text(), 60)
    app.database.use(lambda s: s.run(lambda t: messages.publish(t, [message("shop.slow", b"[[], {}, {}]")])))
    wait_for(lambda: "received" in log.read_text())
    _, log = celery.start("second", "worker", "-c", "1", "-l", "INFO", "-n", "second@%h")
    wait_for(lambda: "ready." in log.read_text(), 60)
    assert "received" not in log.read_text()
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    (celery.folder / "go").touch()
    wait_for(lambda: "received" in log.read_text(), 25)  # a lease is 30 seconds
    wait_for(lambda: "succeeded" in log.read_text())
    assert log.read_text().count("received") == 1


@pytest.mark.thorough
def test_a_poisonous_message_ends_so_many_workers_and_no_more(celery, app, wait_for):
    """What Celery's consumer takes for an error of its own ends the worker, and the message is given back."""
    with (celery.folder / "shop.py").open("a") as file:
        file.write("\n\napp.conf.broker_transport_options = {'delivery_limit': 1}\n")
    wrong_types = [poison(task=["x"]), poison(timelimit=5), poison(id={}), poison(eta={})]
    for number in range(2):
        worker, log = celery.start(f"worker{number}", "worker", "-P", "solo", "-l", "INFO", "--without-mingle")
        wait_for(lambda log=log: "ready." in log.read_text(), 60)
        if number == 0:
            app.database.use(lambda s: s.run(lambda t: messages.publish(t, [*wrong_types, poison(body=b"5")])))
        assert worker.wait(60) != 0
        assert log.read_text().count("cannot be read, and is rejected") == (0 if number else len(wrong_types))
    _, log = celery.start("last", "worker", "-P", "solo", "-l", "INFO", "--without-mingle")
    done = celery.run(sys.executable, "-c", "import shop\nprint(shop.price.delay('nut', 2).get(timeout=60))")
    assert done.stdout.strip() == "6", done.stderr + log.read_text()
    wait_for(lambda: "came back 2 times" in log.read_text())
    assert "(task 'shop.price', id 'poison')" in log.read_text()
    assert rows(app, "SELECT STATE, DEAD_REASON FROM QUEUE_MSG") == [(3, "delivery_limit")]


def test_an_outage_costs_no_task_and_no_result(celery, app, url, wait_for):
    """Stored results wait for the database to come back, as do acknowledgements and what is published."""
    with (celery.folder / "shop.py").open("a") as file:
        file.write(
            "\n\n@app.task\ndef note(number):\n    import time\n\n    time.sleep(0.2)\n"
            "    with open('ledger', 'a') as file:\n        file.write(f'{number}\\n')\n    return number\n"
        )
    ledger = celery.folder / "ledger"
    ledger.touch()
    with before(url) as proxy:
        celery.env.update(SHOP_URL=proxy.url, CELERY_BROKER_URL=proxy.url)
        worker, log = celery.start("worker", "worker", "-c", "2", "-l", "INFO")
        wait_for(lambda: "ready." in log.read_text(), 60)
        celery.env.update(SHOP_URL=url, CELERY_BROKER_URL=url)
        sender = "import shop\nsent = [shop.note.delay(n) for n in range(30)]\nprint([r.get(timeout=60) for r in sent])"
        with subprocess.Popen(
            [sys.executable, "-c", sender], cwd=celery.folder, env=celery.env, stdout=subprocess.PIPE, text=True
        ) as waiting:
            wait_for(lambda: len(ledger.read_text().split()) >= 6)
            proxy.refuse(True)
            proxy.cut()
            wait_for(lambda: proxy.refused >= 6)
            proxy.refuse(False)
            got, _ = waiting.communicate(timeout=90)
        assert got.strip() == str(list(range(30))), log.read_text()
        assert sorted(map(int, ledger.read_text().split())) == list(range(30))
        wait_for(lambda: rows(app, "SELECT COUNT(*) FROM QUEUE_MSG") == [(0,)])
        worker.terminate()
        assert worker.wait(60) == 0


def test_a_producer_sends_tasks_and_rules_no_worker(celery, app, url, wait_for):
    parts = urlsplit(url)
    if not parts.hostname:
        pytest.skip("needs a server: FBTASKS_TEST_URL")
    roles = {role: f"FBT_{secrets.token_hex(6).upper()}" for role in ("producer", "worker")}
    host = parts.netloc.rpartition("@")[2]
    urls = {role: parts._replace(netloc=f"{name}:pw@{host}").geturl() for role, name in roles.items()}
    with closing(connections.connect(DatabaseURL.parse(url))) as owner:
        for role, name in roles.items():
            owner.execute_immediate(f"CREATE USER {name} PASSWORD 'pw'")
            owner.commit()
            with app.database.session() as session:
                grants.grant(session, role, name)
        try:
            celery.env.update(SHOP_URL=urls["worker"], CELERY_BROKER_URL=urls["worker"])
            worker, log = celery.start("worker", "worker", "-c", "2", "-l", "INFO")
            wait_for(lambda: "ready." in log.read_text(), 60)
            celery.env.update(SHOP_URL=urls["producer"], CELERY_BROKER_URL=urls["producer"])
            done = celery.run(sys.executable, "send.py")
            assert done.stdout.splitlines() == ["price 12", "later 6", "total 24"], done.stderr + log.read_text()
            refused = celery.run(sys.executable, "-c", "import shop; shop.app.control.shutdown()")
            assert "remote control or events, which takes the role of a worker" in refused.stderr
            assert "pw" not in refused.stderr
            celery.env.update(SHOP_URL=urls["worker"], CELERY_BROKER_URL=urls["worker"])
            assert "pong" in celery.run(*celery.command("inspect", "ping")).stdout
            assert worker.poll() is None
            celery.run(sys.executable, "-c", "import shop; shop.app.control.shutdown()")
            assert worker.wait(60) == 0
        finally:
            celery.close()
            for name in roles.values():
                owner.execute_immediate(f"DROP USER {name}")
            owner.commit()


FLOWER = ["/", "/workers", "/worker/one@test", "/tasks", "/task/{}", "/broker", "/api/workers", "/api/task/result/{}"]
ACTIONS = {
    "worker/pool/grow/one@test": "Growing 'one@test' worker's pool by 1",
    "worker/pool/shrink/one@test": "Shrinking 'one@test' worker's pool by 1",
    "task/rate-limit/shop.price?workername=one@test&ratelimit=100": "new rate limit set successfully",
    "task/timeout/shop.price?workername=one@test&soft=10": "time limits set successfully",
    "task/revoke/{}?terminate=true": "Revoked '{}'",
    "worker/queue/add-consumer/one@test?queue=celery": "add consumer celery",
}


@pytest.mark.thorough
@pytest.mark.long
def test_every_page_and_action_of_flower(celery, wait_for):
    pytest.importorskip("flower", reason="Flower is not installed: pip install flower")
    celery.env["FLOWER_UNAUTHENTICATED_API"] = "true"
    worker, log = celery.start("worker", "worker", "-c", "1", "-E", "-l", "INFO", "-n", "one@test")
    wait_for(lambda: "ready." in log.read_text(), 60)
    _, log = celery.start("flower", "flower", "--address=127.0.0.1", "--port=0")
    (address,) = wait_for(lambda: re.findall(r"Visit me at (http://[\d.:]+)", log.read_text()), 60)

    def ask(path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urlopen(address + path, data, timeout=60) as answer:  # raises for what is not 200
            text = answer.read().decode()
        return json.loads(text) if path.startswith("/api/") else text

    def send(number, **options):
        return ask("/api/task/send-task/shop.price", {"args": ["nut", number], **options})["task-id"]

    def length():
        (queue,) = ask("/api/queues/length")["active_queues"]
        return queue.pop("name"), *queue.values()

    wait_for(lambda: ask("/api/workers?status=1") == {"one@test": True})
    wait_for(lambda: "active_queues" in ask("/api/workers?refresh=1").get("one@test", ()))
    task = send(2)
    wait_for(lambda: ask("/api/tasks").get(task, {}).get("state") == "SUCCESS")
    wait_for(lambda: length() == ("celery", 0, 0, 0, 1))
    assert ask("/api/worker/queue/cancel-consumer/one@test?queue=celery", {})["message"].startswith("no longer")
    send(3), send(4), send(5, countdown=3600)
    wait_for(lambda: length() == ("celery", 3, 2, 0, 0))
    pages = {path: ask(path.format(task)) for path in FLOWER}
    assert re.findall(r"<td[^>]*>(\w+)</td>", pages["/broker"]) == ["celery", "3", "0", "2", "0"]
    for path, message in ACTIONS.items():
        assert ask(f"/api/{path.format(task)}", {})["message"] == message.format(task)
    wait_for(lambda: length() == ("celery", 1, 0, 0, 1))
    assert ask("/api/worker/shutdown/one@test", {})["message"] == "Shutting down!"
    assert worker.wait(60) == 0
