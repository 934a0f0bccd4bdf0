"""A team's first week: an application, its tests, a backup, a move, and new code."""

import os
import subprocess
import sys

import pytest
from support.forkserver import forkserver

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.embedded("it copies and moves the file"),
    pytest.mark.long,
    pytest.mark.thorough,
]

APP = """
from fbtasks import FBTasks

app = FBTasks("shop", include=["shop.tasks"])
"""
TASKS = """
from shop.app import app

@app.task
def invoice(order): return f"invoice {order}"

@app.on_event("order.paid")
def paid(event): invoice.delay(event.data["id"])

@app.on_change("ORDERS", insert=True)
def ordered(change): invoice.delay(change.new["ID"])
"""
RENAMED = TASKS.replace("@app.task\ndef invoice", "@app.task(aliases=('shop.tasks.invoice',))\ndef bill").replace(
    "invoice.delay", "bill.delay"
)
TEST = """
import pytest
from fbtasks.testing import drain, on_database
from shop.app import app as shop

@pytest.fixture
def app(fbtasks_url):
    with on_database(shop, fbtasks_url) as app:
        with app.connect() as connection:
            connection.execute_immediate("CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY)")
            connection.commit()
        app.migrate()
        yield app

def test_invoices(app):
    app.raise_event("order.paid", {"id": 7})
    with app.connect() as connection:
        connection.execute_immediate("INSERT INTO ORDERS VALUES (8)")
        connection.commit()
    drain(app)
    drain(app)
    with app.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CAST(RESULT AS VARCHAR(99)) FROM QUEUE_HISTORY WHERE NAME = 'shop.tasks.invoice'")
        assert sorted(row[0] for row in cursor) == ['"invoice 7"', '"invoice 8"']
"""


def test_a_first_week(tmp_path):
    env = {key: value for key, value in os.environ.items() if key != "FBTASKS_URL"}
    folder, other = tmp_path / "first", tmp_path / "other"
    (folder / "shop").mkdir(parents=True)
    other.mkdir()

    def fbtasks(*arguments, code=0, **more):
        done = forkserver.run([*map(str, arguments)], folder, {**env, **more}, 60)
        assert done.returncode == code, done.stderr
        return done.stdout

    (folder / "shop/__init__.py").write_text("")
    (folder / "shop/app.py").write_text(APP)
    (folder / "shop/tasks.py").write_text(TASKS)
    (folder / "test_shop.py").write_text(TEST)

    # Its tests leave the application's own database alone.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shop.py"]
    tested = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120)
    assert tested.returncode == 0, tested.stdout
    assert not (folder / "fbtasks.fdb").exists()

    # Work, a backup of it, and a copy elsewhere that goes on.
    first = fbtasks("call", "-A", "shop", "shop.tasks.invoice", "--args", "[1]").strip()
    fbtasks("worker", "-A", "shop", "-c", "1", "--burst")
    assert "invoice 1" in fbtasks("result", first)
    waiting = fbtasks("call", "-A", "shop", "shop.tasks.invoice", "--args", "[2]").strip()
    fbtasks("backup", "shop.fbk")
    fbtasks("restore", "shop.fbk", other / "moved.fdb")
    url = f"firebird://{other}/moved.fdb"
    assert "adopt" in fbtasks("health", "--url", url, code=1)
    fbtasks("adopt", "--url", url, "-y")

    # New code: the task has another name, and the call that waits has the old one.
    (folder / "shop/tasks.py").write_text(RENAMED)
    fbtasks("worker", "-A", "shop", "--url", url, "-c", "1", "--burst")
    assert "invoice 2" in fbtasks("result", "--url", url, waiting)
    assert "invoice 1" in fbtasks("result", "--url", url, first)
    fbtasks("worker", "-A", "shop", "-c", "1", "--burst", FBTASKS_URL="firebird:///nowhere/at/all.fdb", code=1)
