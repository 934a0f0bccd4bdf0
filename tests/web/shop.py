"""A shop with two hours behind it, as a dashboard would show it."""

import inspect
import math
import random
from bisect import bisect_left
from datetime import timedelta
from pathlib import Path

from support.draining import drain
from support.registering import register
from support.sql import execute, one

from fbtasks import chain, group
from fbtasks.features.web import store
from fbtasks.queue import results, tasks

MINUTES = 125
KINDS = (
    # Queue, name, how many a minute, seconds of a run, seconds of a wait.
    ("orders", "shop.send_invoice", 34, 0.22, 0.05),
    ("orders", "shop.charge", 21, 0.9, 0.08),
    ("orders", "stock.reserve", 48, 0.03, 0.03),
    ("mail", "mail.send", 62, 0.4, 0.3),
    ("imports", "import.prices", 3, 9.0, 0.9),
    ("images", "images.resize", 17, 1.6, 0.5),
)
COLUMNS = (
    "SPAN, AT_TIME, QUEUE, NAME_HASH, NAME, WRITER, SUCCEEDED, FAILED, CANCELLED, RETRIED, ELAPSED_MS, WAITED_MS, "
    + ", ".join(f"{kind}_{n}" for kind in ("RUN", "WAIT") for n in range(store.BUCKETS))
)


def declare(app):
    app.limit("smtp", at_once=2)

    @app.task(name="shop.send_invoice", queue="orders", max_retries=3)
    def send_invoice(order, customer):
        if order % 5 == 0:
            raise ConnectionError(f"printer {order % 3} does not answer")
        if order % 11 == 0:
            raise ValueError(f"order {order} has no address")
        return {"invoice": f"INV-{order:06d}", "pages": 1 + order % 3, "total": round(order * 1.19, 2)}

    @app.task(name="shop.charge", queue="orders", max_retries=0)
    def charge(order, amount, card_token):
        if order % 4 == 0:
            raise PermissionError(f"the bank refuses order {order}: insufficient funds")
        return {"receipt": f"R-{order}"}

    @app.task(name="stock.reserve", queue="orders")
    def reserve(order, items):
        return len(items)

    @app.task(name="mail.send", queue="mail", limits={"smtp": None}, max_retries=0)
    def send(to, template, order=None):
        if "hotmial" in to:
            raise TimeoutError("mx.hotmial.example did not answer within 30 s")

    @app.task(name="import.prices", queue="imports", max_retries=0)
    def prices(file):
        if file.endswith("17.csv"):
            raise ValueError(f"{file}: line 17 has no price")
        return {"file": file, "rows": 18_250, "changed": 412}

    @app.task(name="images.resize", queue="images", max_retries=0)
    def resize(article, width):
        return width

    @app.task(name="reports.monthly", queue="reports", priority=-5)
    def monthly(month):
        return None


SOURCE = f"{inspect.getsource(declare)}\napp = FBTasks('shop')\ndeclare(app)"


def fill(app, project):
    declare(app)
    chance = random.Random(5)
    with app.database.session() as session:
        moment = results.now(session).replace(tzinfo=None)
    _history(app, chance, moment.replace(second=0, microsecond=0))
    workers = [
        register(
            app, name=f"{name}@{host}", host=host, pid=pid, lease=900.0, queues=queues, concurrency=8, version="2.3.1",
            features=" app=shop ", tasks=list(app.tasks),
        )
        for name, host, pid, queues in (
            ("orders", "app1", 2114, ["orders", "mail"]),
            ("orders", "app2", 988, ["orders", "mail"]),
            ("imports", "app2", 991, ["imports", "images"]),
        )
    ]  # fmt: skip
    _ended(app, chance, moment)
    _tried(app, moment)
    _live(app, workers)
    _noted(app, moment)
    execute(app, "DELETE FROM QUEUE_MINUTE WHERE SPAN = 10")  # of the tasks that ran just now
    execute(app, "UPDATE QUEUE_PROCESS SET START_TIME = DATEADD(-3 HOUR TO START_TIME)")
    execute(
        app,
        "UPDATE QUEUE_HISTORY SET TRACEBACK = REPLACE(TRACEBACK, ?, '/srv/shop') WHERE TRACEBACK IS NOT NULL",
        str(Path(__file__).parent),
    )


def _histogram(chance, count, middle):
    found = [0] * store.BUCKETS
    for _ in range(count):
        found[bisect_left(store.BOUNDS, chance.lognormvariate(math.log(middle), 0.7))] += 1
    return found


def _history(app, chance, minute):
    """Two hours of counters and depths; 25 minutes ago the mail server did not answer for a while."""
    counters, depths, hours = [], [], {}
    for ago in range(MINUTES, -1, -1):
        time = minute - timedelta(minutes=ago)
        trouble = 18 <= ago <= 27
        rows = {}
        for queue, name, often, run, wait in KINDS:
            wave = 1 + 0.35 * math.sin((ago + 10) / 19) + chance.uniform(-0.25, 0.25)
            count = max(0, round(often * wave * (0.4 if ago == 0 else 1)))
            failed = count // 3 if trouble and queue == "mail" else chance.choice((0,) * 9 + (1, 2))
            retried = count // 2 if trouble and queue == "mail" else chance.choice((0,) * 6 + (1,))
            slow = 6 if trouble and queue == "mail" else 1
            numbers = [max(0, count - failed), failed, 0, retried, int(count * run * 1000), int(count * wait * 1000)]
            numbers += _histogram(chance, count, run * slow) + _histogram(chance, count, wait * slow)
            for own, called in ((queue, name), (queue, ""), ("", "")):
                former = rows.get((own, called), [0] * len(numbers))
                rows[own, called] = [a + b for a, b in zip(former, numbers, strict=True)]
        counters += [(60, time, queue, name, name, 1, *numbers) for (queue, name), numbers in rows.items()]
        for (queue, name), numbers in rows.items():
            if queue and not name:
                counted = hours.setdefault((time.replace(minute=0), queue), [0] * 4)
                counted[:] = [a + b for a, b in zip(counted, numbers[:4], strict=True)]
        waiting = {"orders": chance.randint(2, 12), "mail": 9 + (0, 40 * (28 - ago))[trouble] + max(0, ago < 18) * 3}
        waiting |= {"imports": chance.randint(0, 2), "images": chance.randint(0, 7)}
        for queue, ready in waiting.items():
            depths.append((60, time, queue, 1, ready, 14, 0, 2, 4, 8))
        busy = min(24, chance.randint(7, 13) + 9 * trouble)
        depths.append((60, time, "", 1, sum(waiting.values()), 14, (0, 120)[trouble], busy, busy, 24))
    with app.connect() as connection, connection.cursor() as cursor:
        marks = ", ".join("?" * (5 + 2 * store.BUCKETS))
        cursor.executemany(
            f"INSERT INTO QUEUE_MINUTE ({COLUMNS}) VALUES (?, ?, ?, CRYPT_HASH(CAST(? AS QUEUE_TEXT) USING SHA256), ?, "
            f"?, {marks}, ?)",
            counters,
        )
        cursor.executemany(f"INSERT INTO QUEUE_DEPTH VALUES ({', '.join('?' * 10)})", depths)
        cursor.executemany(
            "INSERT INTO QUEUE_STAT (HOUR_TIME, QUEUE, WORKER_ID, SLOT, SUCCEEDED, FAILED, CANCELLED, RETRIED) "
            "VALUES (?, ?, 1, 0, ?, ?, ?, ?)",
            [(*key, *numbers) for key, numbers in hours.items()],
        )
        for queue in ("", *waiting):
            for ago, version in ((200, "2.3.0"), (29, "2.3.0, 2.3.1"), (27, "2.3.1")):
                row = queue, minute - timedelta(minutes=ago), version
                cursor.execute("INSERT INTO QUEUE_VERSION (QUEUE, AT_TIME, WRITER, VERSIONS) VALUES (?, ?, 1, ?)", row)
        connection.commit()


CUSTOMERS = ("anna.berg", "li.wei", "t.okafor", "m.rossi", "j.novak", "s.haddad")


def _ended(app, chance, moment):
    calls = []
    for order in range(48_120, 48_150):
        calls += [
            ("shop.send_invoice", (order, chance.choice(CUSTOMERS)), "orders"),
            ("shop.charge", (order, round(chance.uniform(9, 240), 2), "tok_1"), "orders"),
            ("stock.reserve", (order, [chance.randint(100, 999) for _ in range(order % 4 + 1)]), "orders"),
        ]
    calls += [("mail.send", (f"{who}@example.com", "invoice"), "mail") for who in CUSTOMERS * 4]
    calls += [("mail.send", (f"{who}@hotmial.example", "invoice"), "mail") for who in CUSTOMERS[:5]]
    calls += [("import.prices", (f"supplier-{n}.csv",), "imports") for n in (12, 17, 21)]
    chance.shuffle(calls)
    shop = app.tasks
    resized = [shop["images.resize"].si(4411, width) for width in (320, 640)]
    paid = shop["shop.charge"].si(48_151, 89.0, "tok_2")
    reserved, invoice = shop["stock.reserve"].si(48_151, [102, 377]), shop["shop.send_invoice"].si(48_151, "li.wei")
    chain(reserved, group(paid, *resized), invoice).delay()
    for name, args, queue in calls:
        app.send_task(name, args, queue=queue, max_retries=0)
    drain(app)
    numbers = execute(app, "SELECT ID, QUEUE FROM QUEUE_HISTORY ORDER BY ID")
    ago = sorted((chance.uniform(1, 3000) for _ in numbers), reverse=True)
    for (number, queue), seconds in zip(numbers, ago, strict=True):
        took, waited = chance.lognormvariate(-1.2, 0.9), chance.lognormvariate(-2, 1)
        end = moment - timedelta(seconds=seconds)
        begin = end - timedelta(seconds=took)
        raised = begin - timedelta(seconds=waited)
        execute(
            app,
            "UPDATE QUEUE_HISTORY SET RAISE_TIME = ?, START_TIME = ?, CLAIM_TIME = ?, FINISH_TIME = ?, ELAPSED_MS = ?, "
            "WORKER = ?, ENQUEUED_BY = 'SHOP_WEB' WHERE ID = ?",
            raised, raised, begin, end, int(1000 * took),
            "imports@app2" if queue in ("imports", "images") else chance.choice(("orders@app1", "orders@app2")), number,
        )  # fmt: skip


def _tried(app, moment):
    """One invoice was tried three times."""
    number = one(app, "SELECT MAX(ID) FROM QUEUE_HISTORY WHERE STATE = 11 AND NAME = 'shop.send_invoice'")
    app.tried = number
    text = one(app, "SELECT ERROR_MSG FROM QUEUE_HISTORY WHERE ID = ?", number)
    end = one(app, "SELECT CLAIM_TIME FROM QUEUE_HISTORY WHERE ID = ?", number)
    trace = one(app, "SELECT TRACEBACK FROM QUEUE_HISTORY WHERE ID = ?", number)
    execute(app, "UPDATE QUEUE_HISTORY SET TRY_COUNT = 3, MAX_TRIES = 4, RAISE_TIME = ? WHERE ID = ?",
            end - timedelta(seconds=9), number)  # fmt: skip
    for n, (ago, took) in enumerate(((8.6, 1.4), (5.2, 1.1)), 1):
        execute(
            app,
            "INSERT INTO QUEUE_TRY VALUES (NEXT VALUE FOR QUEUE_TRY_SEQ, ?, ?, 'retry', 'orders@app1', ?, ?, "
            "'builtins.ConnectionError', ?, ?)",
            number, n, end - timedelta(seconds=ago), end - timedelta(seconds=ago - took), text,
            trace.replace(str(Path(__file__).parent), "/srv/shop"),
        )  # fmt: skip


def _live(app, workers):
    """What waits and runs now."""
    for order in range(48_150, 48_156):
        app.send_task("shop.send_invoice", (order, CUSTOMERS[order % 6]), queue="orders")
    app.send_task("import.prices", ("supplier-22.csv",), queue="imports")
    for article in range(4_400, 4_407):
        app.send_task("images.resize", (article, 640), queue="images")
    with app.database.session() as session:
        for worker, queue, most in ((workers[0], "orders", 3), (workers[2], "imports", 1), (workers[2], "images", 2)):
            session.run(lambda t, w=worker, q=queue, n=most: tasks.claim(t, w, q, n))
    send = app.tasks["mail.send"]
    send.delay_many([(f"{who}@example.com", "newsletter") for who in CUSTOMERS])
    for hours, who in enumerate(CUSTOMERS, 1):
        send.apply_async((f"{who}@example.com", "reminder"), countdown=3600 * hours)
    app.scheduled = app.tasks["reports.monthly"].apply_async(("2026-10",), countdown=5400).id
    app.running = one(app, "SELECT MIN(ID) FROM QUEUE_TASK WHERE STATE = 2")


def _noted(app, moment):
    lines = (
        (52, "maria", "retry", "failures of mail.send: builtins.TimeoutError", "pace=30"),
        (41, "maria", "queues.pause", "queue reports", ""),
        (23, "jonas", "cancel", "task 212 (reports.monthly)", ""),
        (4, "jonas", "run", "task 187 (import.prices)", "file"),
    )
    for ago, who, action, what, said in lines:
        execute(app, "INSERT INTO QUEUE_AUDIT VALUES (NEXT VALUE FOR QUEUE_AUDIT_SEQ, ?, ?, ?, ?, ?, 'OPERATOR')",
                moment - timedelta(minutes=ago), who, action, what, said)  # fmt: skip
