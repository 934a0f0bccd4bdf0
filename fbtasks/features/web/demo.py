"""A throw-away database with traffic, for ``fbtasks web --demo``: an app, a worker of it, and a thread that calls."""

from __future__ import annotations

import math
import os
import random
import subprocess
import sys
import tempfile
import threading
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

from fbtasks import FBTasks, chain, chord
from fbtasks import timing as clock
from fbtasks.cli.output import say
from fbtasks.database import values
from fbtasks.database.values import as_naive_utc
from fbtasks.features.web import store
from fbtasks.firebird.session import Transaction
from fbtasks.url import URL_VARIABLE

app = FBTasks("shop", version="2.3.1")
app.limit("smtp", rate="4/s")
app.limit("customer", at_once=1)


@app.task(name="shop.send_invoice", autoretry_for=(OSError,), max_retries=3, retry_backoff=2)
def send_invoice(order: int, customer: str) -> str:
    """Takes a moment; is tried again now and then, and fails sometimes."""
    clock.sleep(random.lognormvariate(-3, 1))
    if random.random() < 0.08:
        raise ConnectionError(f"printer {order % 3} does not answer")
    if random.random() < 0.03:
        raise ValueError(f"order {order} has no address")
    return f"INV-{order:06d}"


@app.task(name="shop.charge", limits={"customer": "customer"}, max_retries=0)
def charge(order: int, customer: str, card_token: str) -> float:
    """One at a time for each customer."""
    clock.sleep(random.lognormvariate(-1.5, 0.6))
    if random.random() < 0.05:
        raise PermissionError(f"the bank refuses order {order}")
    return order * 1.5


@app.task(name="mail.deliver", queue="mail", limits={"smtp": None}, ignore_result=True)
def deliver(to: str, template: str = "welcome") -> None:
    """A few each second."""
    clock.sleep(0.02)


@app.task(name="reports.build", queue="reports", priority=-5)
def build(month: str, *, full: bool = False) -> dict[str, object]:
    """Takes some seconds."""
    clock.sleep(random.uniform(2, 6))
    return {"month": month, "pages": random.randint(3, 40), "full": full}


@app.task(name="images.fetch", queue="images")
def fetch(number: int) -> int:
    """The first step of a workflow."""
    clock.sleep(0.1)
    return number


@app.task(name="images.resize", queue="images", max_retries=0)
def resize(number: int, width: int) -> int:
    """A member of a group."""
    clock.sleep(random.uniform(0.1, 0.8))
    if random.random() < 0.03:
        raise MemoryError(f"image {number} is too large for {width} px")
    return width


@app.task(name="images.publish", queue="images")
def publish(widths: list[int]) -> int:
    """What follows the group."""
    return sum(widths)


@app.periodic(every=timedelta(seconds=20), name="stock of the north", args=("north",))
@app.task(name="stock.count", queue="reports")
def count_stock(region: str) -> int:
    """Is called by a schedule."""
    clock.sleep(0.3)
    return random.randint(100, 999)


_CUSTOMERS = ("Ann", "Bob", "Citlali", "Dōgen", "Émile")


def call(number: int) -> None:
    """Calls some of the tasks."""
    customer = random.choice(_CUSTOMERS)
    send_invoice.delay_many([(number * 10 + n, customer) for n in range(random.randint(0, 5))])
    charge.delay(number, customer, card_token="tok_4711")
    deliver.delay_many([(f"{customer.lower()}@example.org",) for _ in range(random.randint(0, 4))])
    if number % 7 == 0:
        build.apply_async((f"2026-{number % 12 + 1:02d}",), {"full": number % 2 == 0})
    if number % 12 == 0:
        widths = (320, 640, 1280, 1920)
        chain(fetch.s(number), chord([resize.s(width) for width in widths], publish.s())).delay()
    if number % 20 == 0:
        deliver.apply_async(("late@example.org", "reminder"), countdown=random.randint(60, 900))
    if number == 1:
        app.send_task("shop.forgotten", (number,))


_MINUTES = 120
_TROUBLE = range(25, 35)
"""So many minutes ago there was a rush of orders, and the printers did not answer."""
_USUAL = {
    ("default", "shop.send_invoice"): (270, 0.05, 0.03, 0.08),
    ("default", "shop.charge"): (109, 0.22, 0.05, 0.0),
    ("mail", "mail.deliver"): (218, 0.02, 0.0, 0.0),
    ("reports", "reports.build"): (15, 4.0, 0.0, 0.0),
    ("reports", "stock.count"): (3, 0.3, 0.0, 0.0),
    ("images", "images.fetch"): (9, 0.1, 0.0, 0.0),
    ("images", "images.resize"): (36, 0.4, 0.03, 0.0),
    ("images", "images.publish"): (9, 0.001, 0.0, 0.0),
}
"""By queue and name: tasks a minute, seconds of one, and the parts that fail and that are tried again."""


def write_past(transaction: Transaction) -> None:
    """Writes two hours of counters and backlogs into the database, which no worker has used yet."""
    now = values.now(transaction).replace(second=0, microsecond=0)
    for ago in range(_MINUTES, 0, -1):
        _write_minute(transaction, ago)
        moment = as_naive_utc(now - timedelta(minutes=ago))
        transaction.execute("demo_minutes", moment)
        transaction.execute("demo_depths", moment)
        transaction.execute("demo_versions", moment)
    transaction.execute("demo_counters")


def _write_minute(transaction: Transaction, ago: int) -> None:
    is_trouble = ago in _TROUBLE
    busy = 1 + 0.3 * math.sin(ago / 17) + (0.8 if is_trouble else 0.0)
    counts, depths = {}, dict[str, list[int]]()
    for (queue, name), (rate, took, fails, again) in _USUAL.items():
        number = max(0, round(random.gauss(rate * busy, rate**0.5)))
        runs = [random.lognormvariate(math.log(took), 0.6) for _ in range(number)]
        waits = [random.lognormvariate(math.log(2.5 if is_trouble else 0.05), 1) for _ in range(number)]
        failed, retried = (round(number * part * (4 if is_trouble else 1)) for part in (fails, again))
        ended = number - failed - retried, failed, 0, retried
        counts[queue, name] = [*ended, sum(runs), sum(waits), *_histogram(runs), *_histogram(waits)]
        held = round(number / 10) if queue == "mail" else 0
        now = round(sum(waits) / 60), retried, held, round(sum(runs) / 60)
        depths[queue] = [a + b for a, b in zip(depths.get(queue, [0] * 4), now, strict=True)]
    depths[""] = [sum(each) for each in zip(*depths.values(), strict=True)]
    used = min(6, depths[""][3])
    store.put(transaction, counts, [])
    version = "2.3.0" if ago > _TROUBLE.start else app.settings.version
    rows = {queue: (*row[:3], min(6, row[3]), used, 6, version or "") for queue, row in depths.items()}
    store.put_depths(transaction, rows)


def _histogram(times: list[float]) -> list[int]:
    counts = [0] * store.BUCKETS
    for each in times:
        counts[bisect_left(store.BOUNDS, each)] += 1
    return counts


def _traffic(stop: threading.Event) -> None:
    number = 0
    while not stop.wait(random.uniform(0.2, 0.9)):
        number += 1
        call(number)


@contextmanager
def running() -> Iterator[FBTasks]:
    """For the block: the app of the demo on a database of its own, with a worker and traffic. Nothing of it stays."""
    with tempfile.TemporaryDirectory(prefix="fbtasks-demo-") as folder:
        url = f"firebird://{folder}/demo.fdb"
        app.use_database(url)
        with closing(app):
            app.migrate()
            app.database.use(lambda session: session.run(write_past))
            words = ("worker", "-A", __name__, "-c", "6", "-P", "threads", "-n", "demo", "-l", "ERROR")
            with (Path(folder) / "worker.log").open("w") as log:
                worker = subprocess.Popen(
                    [sys.executable, "-m", "fbtasks", *words],
                    env={**os.environ, URL_VARIABLE: url},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for this process, which ends the worker
                )
            stop = threading.Event()
            traffic = threading.Thread(target=_traffic, args=(stop,), daemon=True)
            traffic.start()
            say("A shop with a worker and traffic: all of it goes when this ends.")
            try:
                yield app
            finally:
                stop.set()
                traffic.join()
                worker.terminate()
                worker.wait()
