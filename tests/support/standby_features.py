"""Each feature once, with an app: what of fbtasks writes to the tables of the queue, and what ends well and badly."""

import time
from collections import Counter
from datetime import timedelta
from unittest import mock

from fbtasks import Ordered, Unique, chain, chord, debounce, group
from fbtasks.contrib.celery.store import chords, keyvalues, messages
from fbtasks.contrib.celery.store.chords import Part
from fbtasks.contrib.celery.store.messages import DONE, GIVEN_BACK, REJECTED, Publication, QueueSpec
from fbtasks.database import generations, packages
from fbtasks.features.logs import store as logs
from fbtasks.features.logs.store import Lines
from fbtasks.features.progress import store as progress
from fbtasks.features.progress.store import Progress
from fbtasks.features.schedules.duty import Ticks
from fbtasks.features.schedules.upkeep import sync_schedules
from fbtasks.features.sources import managing as subscriptions
from fbtasks.features.sources.store import polling
from fbtasks.features.web import store as web
from fbtasks.features.web.duty import Depths, Upkeep
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing, queues
from fbtasks.queue.operations import tasks as service
from fbtasks.queue.register import processes
from fbtasks.states import State
from fbtasks.tasks.call import RELEASED, Finished, Succeeded

from .capture import script
from .draining import drain
from .polls import Poller
from .sql import execute, one, rows


def plain_tasks(app):
    ok = app.task(name="ok")(lambda x=None: x)
    results = [ok.delay(1), ok.delay("x" * 5000), ok.apply_async(task_id="mine", priority=9)]
    assert ok.apply_async(task_id="mine").duplicate
    drain(app)
    assert [each.get(timeout=1) for each in results] == [1, "x" * 5000, None]
    results[0].forget()


def extras(app):
    """Tasks that need a feature of another distribution, which is not here: one is parked, and both are cancelled."""
    app.task(name="extra")(lambda: None)
    call = app.enqueuer.make_call("extra", (), {})._replace(extras=(("elsewhere", b"1"), ("other", b"2")))
    parked, waiting = app.enqueuer.enqueue([call])[0], app.enqueuer.enqueue([call._replace(queue="waits")])[0]
    drain(app)
    assert service.cancel(app.database, [str(parked.id), str(waiting.id)]).count == 2


def failures_and_retries(app):
    tries = Counter()

    @app.task(name="fails", max_retries=1, default_retry_delay=0, autoretry_for=(ValueError,))
    def fails(least):
        tries[least] += 1
        if tries[least] < least:
            raise ValueError(least)

    second, never, gone = fails.delay(2), fails.delay(100), fails.delay(200)
    _drain_until(app, lambda: all(each.ready() for each in (second, never, gone)))
    assert (second.successful(), never.failed(), gone.failed()) == (True, True, True)
    tries[100] = 100
    assert service.retry(app.database, [never.id]).count == 1
    assert service.discard(app.database, [gone.id]).count == 1
    drain(app)
    assert never.successful()


def priorities(app):
    heard = []
    task = app.task(name="ranked")(heard.append)
    for priority in (-5, 0, 7):
        task.apply_async((priority,), priority=priority)
    task.apply_async(("idle",), priority=-9999)
    drain(app)
    assert heard == [7, 0, -5, "idle"]


def scheduled_tasks(app):
    late = app.task(name="late")(lambda: 1)
    soon, expired = late.apply_async(countdown=0.05), late.apply_async(countdown=0.05, expires=0.051)
    cancelled = late.apply_async(countdown=3600)
    assert service.cancel(app.database, [cancelled.id]).count == 1
    execute(app, "UPDATE QUEUE_TASK SET EXPIRE_TIME = START_TIME WHERE ID = ?", int(expired.id))
    _drain_until(app, lambda: soon.ready() and expired.ready())
    assert (soon.get(timeout=1), expired.status) == (1, "REVOKED")


def workflows(app):
    add = app.task(name="add")(lambda *numbers: sum(_flat(numbers)))
    bad = app.task(name="bad", max_retries=0, on_failure=lambda *_: None)(lambda *numbers: 1 / 0)
    told = app.task(name="told")(lambda *_: None)
    results = [
        chain(add.s(1), add.s(2), add.s(3)).delay(),
        chord([add.s(1), add.s(2)], add.s(10)).delay(),
        (group(add.s(1), add.s(2)) | add.s(5) | group(add.s(1), add.s(1))).delay(),
        (bad.s() | add.s(1)).apply_async(link_error=told.s()),
    ]
    group(add.s(1), add.s(2)).delay().save()
    drain(app)
    assert [results[0].get(timeout=1), results[1].get(timeout=1)] == [6, 13]
    assert service.retry(app.database, [str(one(app, "SELECT ID FROM QUEUE_HISTORY WHERE NAME = 'bad'"))]).count == 1
    drain(app)


def periodic_tasks(app):
    app.periodic(every=timedelta(hours=1))(app.task(name="hourly")(lambda: None))
    with app.database.session() as session:
        sync_schedules(session, app, app.schedules)
        execute(app, "UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 HOUR TO NEXT_TIME)")
        ticks = Ticks(lambda: True)
        assert ticks.do(session)
    drain(app)


def limits_of_tasks(app):
    app.limit("once", at_once=1)
    app.limit("rated", rate="1000/s", burst=10)
    both = app.task(name="both", limits={"once": "key", "rated": None})(lambda key: None)
    one_by_one = app.task(name="ordered", ordered=Ordered("key", stop_on_failure=True), max_retries=0)(
        lambda key: 1 / key
    )
    for key in (1, 1, 2):
        both.delay(key)
    for key in (1, 0, 0, 2):
        one_by_one.delay(key)
    _drain_until(app, lambda: not one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'both'"))
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == 1
    (closed,) = rows(app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE = 11 AND NAME = 'ordered'")
    service.discard(app.database, [str(closed[0])])
    drain(app)


def limits_of_queues(app):
    app.queue("small", max_length=2, when_full="drop_oldest", at_once=1)
    app.queue("nightly", run_between=("00:00", "23:59"), tz="UTC", age=60)
    drain(app, ["small", "nightly"])
    for queue in ("small", "small", "small", "nightly"):
        app.send_task("ok", queue=queue)
    drain(app, ["small", "nightly"])
    execute(app, "UPDATE QUEUE_POLICY SET MAX_LENGTH = 1 WHERE QUEUE = 'small'")
    with app.database.session() as session:
        session.run(lambda t: t.rows("FBTASKS_QUEUES.SET_PLACES", "small"))
    app.send_task("ok", queue="small", countdown=3600)
    assert sum(queues.purge(app.database, "small")) == 1


def unique_tasks(app):
    first = app.task(name="first", unique=Unique(by="key"))(lambda key, text="": None)
    last = app.task(name="last", unique=Unique(by="key", conflict=debounce(0.05)))(lambda key, text="": None)
    held = app.task(name="held", unique=Unique(by="key", until="end"))(lambda key, text="": None)
    for task in (first, last, held):
        for text in "abc":
            task.delay(1, text)
    drain(app)


def batches(app):
    task = app.task(name="sums", batch=3, wait=0.05)(lambda requests: [sum(each.args) for each in requests])
    results = [task.delay(number, 1) for number in range(4)]
    _drain_until(app, lambda: all(each.ready() for each in results))
    assert [each.get(timeout=1) for each in results] == [1, 2, 3, 4]


def changes(app):
    script(app, "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, TOTAL INTEGER, NOTE VARCHAR(6000))")
    heard = Counter()
    options = {"insert": True, "update": True, "delete": True}

    def handler(name):
        def handle(change):
            heard[name] += 1
            if name == "halting" and change.new and change.new.get("TOTAL") == 13:
                raise ValueError(13)

        return handle

    for name, more in (
        ("keyed", {"order": "key"}),
        ("total", {"order": "total"}),
        ("unordered", {"order": None}),
        ("halting", {"order": "key", "stop_on_failure": True, "max_retries": 0}),
        ("failing", {"order": None, "when": "100 / new.TOTAL > 1", "max_retries": 0}),
    ):
        app.on_change("ORDERS", name=name, **options, **more)(handler(name))
    _deploy(app)
    for number in range(1, 4):
        execute(app, "INSERT INTO ORDERS (ID, TOTAL, NOTE) VALUES (?, ?, ?)", number, number % 3, "x" * 2000 * number)
    execute(app, "UPDATE ORDERS SET TOTAL = 13 WHERE ID = 1")
    execute(app, "UPDATE ORDERS SET ID = 10 WHERE ID = 2")
    execute(app, "DELETE FROM ORDERS WHERE ID = 1")
    drain(app)
    assert min(heard.values()) > 0, heard
    execute(app, "UPDATE ORDERS SET TOTAL = 1")
    drain(app)
    halted = rows(app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE = 11 AND NAME = 'halting'")
    service.discard(app.database, [str(number) for (number,) in halted])
    drain(app)
    subscriptions.pause(app.database, ["keyed"])
    subscriptions.resume(app.database, ["keyed"])
    subscriptions.drop(app.database, ["total"])


def events(app):
    app.raise_event("order.paid", {"id": 0})  # nobody hears it yet
    app.on_event("order.paid", name="mail")(lambda event: None)

    @app.on_event("order.paid", name="books", order="key", max_retries=0)
    def books(event):
        return 1 / (event.data["id"] - 1)

    _deploy(app)
    for number in range(3):
        app.raise_event("order.paid", {"id": number, "text": "x" * 3000 * number}, order_key="a")
    app.raise_event("order.paid", {"id": 9})
    drain(app)
    app.raise_event("order.paid", {"id": 10}, order_key="a")
    running = app.database.use(lambda session: session.run(_claim))
    failed = rows(app, "SELECT ID FROM QUEUE_HISTORY WHERE STATE = 11 AND NAME = 'books'")
    assert service.retry(app.database, [str(number) for (number,) in failed]).count == 1  # while its lane is shut
    app.database.use(lambda session: session.run(_claim))
    ended = [Finished(each, Succeeded(keep=False)) for each in running]
    app.database.use(lambda session: session.run(lambda t: tasks.finish(t, 1, 0, ended)))
    drain(app)
    execute(app, "EXECUTE PROCEDURE FBTASKS.RAISE_EVENT('order.sent')")


def _claim(transaction):
    return tasks.claim(transaction, 1, "default", 10, from_start=True)


def polls(app):
    script(
        app,
        "CREATE TABLE INBOX (ID VARCHAR(10) NOT NULL PRIMARY KEY, S CHAR(1), DATA VARCHAR(20))",
        "CREATE TABLE LINES (ID INTEGER, DATA VARCHAR(20))",
    )
    status = {"status": "S", "ready": "R", "taken": "T", "done": "D", "failed": "E"}
    options = {"columns": ("DATA",), "max_retries": 0}
    inbox = app.poll_table("INBOX", name="inbox", **status, **options)(lambda row: 1 / (row.values["DATA"] != "bad"))
    lines = app.poll_table("LINES", name="lines", sequence="ID", **options)(lambda row: None)
    for number in (1, 2, 5, 4):
        execute(app, "INSERT INTO INBOX VALUES (?, 'R', ?)", str(number), "bad" if number == 2 else "good")
        execute(app, "INSERT INTO LINES VALUES (?, 'x')", number)
    for task in (inbox, lines):
        poller = Poller(app, task)
        poller.look()
        with app.database.session() as session:
            for error in ("it cannot be read", None):
                polling.note_failure(session, poller.id, error)
    execute(app, "INSERT INTO LINES VALUES (3, 'late')")
    drain(app)
    assert dict(rows(app, "SELECT TRIM(ID), S FROM INBOX")) == {"1": "D", "2": "E", "4": "D", "5": "D"}


def what_running_tasks_say(app):
    task = app.task(name="long")(lambda: None)
    task.delay()
    with app.database.session() as session:
        (claim,) = session.run(lambda t: tasks.claim(t, 1, "default", 5))
        for word in ("BEGUN", "HALF"):
            session.run(lambda t, w=word: progress.put(t, [Progress(claim.id, claim.claim_id, w, b"{}")]))
            lines = Lines(claim.id, claim.claim_id, 1, 3, b'[0,"INFO","shop","first"]\n', b'[0,"INFO","shop","last"]\n')
            session.run(lambda t, some=lines: logs.put(t, [some]))
        asked = [session.call("FBTASKS_STACKS_ADMIN.ASK", claim.id) for _ in range(2)]
        session.call("FBTASKS_STACKS.REPLY", claim.id, "here")
        session.call("FBTASKS_STACKS_ADMIN.TAKE_BACK", asked[0])
        session.run(lambda t: tasks.finish(t, 1, 0, [Finished(claim, Succeeded())]))
        session.call("FBTASKS_PROGRESS.PRUNE_PROGRESS", 200)
        session.call("FBTASKS_LOGS.FORGET_LINES", 0, 86_400_000, 86_400_000, 200)


def dashboards(app):
    app.send_task("ok")
    drain(app)
    with app.database.session() as session:
        Depths()(session)
        session.run(lambda t: web.put_depths(t, {"": (0,) * 6 + ("1.0",)}))
        session.run(lambda t: web.note(t, None, "ann", "pause", "queue mail", "done"))
        for table in ("QUEUE_MINUTE", "QUEUE_DEPTH"):
            execute(app, f"UPDATE {table} SET AT_TIME = DATEADD(-5 HOUR TO AT_TIME)")
        for tried in (1, 99):
            session.run(lambda t, n=tried: web.put(t, {}, [web.Tried(n, 1, "retry", "w", 0.0, 0.0, "E", "m", "t")]))
        Upkeep()(session)


def pauses(app):
    app.send_task("ok")
    pausing.pause(app.database, queues=["default"], names=["ok"])
    drain(app)
    pausing.resume(app.database, queues=["default"])
    drain(app)  # it is parked
    pausing.resume(app.database, names=["ok"])
    drain(app)
    assert not one(app, "SELECT COUNT(*) FROM QUEUE_TASK WHERE NAME = 'ok'")


def rescues(app):
    facts = {"name": "w", "host": "elsewhere", "pid": 1, "pid_start": 1, "queues": ["default"], "pool": "threads"}
    for _ in range(3):
        app.send_task("ok")
    with app.database.session() as session:
        worker = session.run(
            lambda t: processes.register(t, "worker", lease=0.001, concurrency=1, version="1", **facts)
        )
        claims = session.run(lambda t: tasks.claim(t, worker, "default", 2))
        session.run(lambda t: tasks.revoke(t, claims[1].id, terminate=True))
        session.run(lambda t: processes.heartbeat(t, "worker", worker, lease=0.001))
        session.run(lambda t: tasks.finish(t, worker, 0, [Finished(claims[0], RELEASED)]))
        execute(app, "UPDATE QUEUE_PROCESS SET ATTACHMENT_ID = 987654321, LEASE_UNTIL = TIMESTAMP '2000-01-01'")
        assert session.run(lambda t: processes.rescue(t, worker, gone=True, awake=1e6, crash_limit=3)).why
    drain(app)


def messages_of_kombu(app):
    def run(work):
        return app.database.use(lambda session: session.run(work))

    def put(exchange, key, *bodies, **options):
        run(lambda t: messages.publish(t, [Publication(exchange, key, body, **options) for body in bodies]))

    consumer = run(lambda t: processes.register(t, "consumer", host="here", pid=1, pid_start=1, lease=3600.0))
    run(lambda t: t.call("FBTASKS_CELERY_API.DECLARE_EXCHANGE", "logs", "topic", 1, 0))
    own = QueueSpec("own", max_length=5, dead_exchange="", dead_routing_key="own")
    queue = run(lambda t: messages.declare_queue(t, own, None)).id
    run(lambda t: t.call("FBTASKS_CELERY_API.BIND", "own", "logs", "a.#"))
    run(lambda t: t.call("FBTASKS_CELERY.USE_QUEUE", consumer, "own", 1))
    claims = iter(range(1, 100))

    def claim(most=10, settled=b""):
        number = next(claims)
        return run(lambda t: messages.claim(t, consumer, number, queue, most, settled))

    put("logs", "a.b", b"1", b"2", b"x" * 9000)
    put("", "own", b"4", ttl=1)
    put("", "own", b"5", start=1, priority=3)
    settled = b""
    for kind in (REJECTED, GIVEN_BACK, DONE, REJECTED):  # each with the next claim: what was rejected is claimed anew
        found = claim(2, settled)
        settled = b"".join(each.settle(kind) for each in found)
        assert found
    run(lambda t: t.call("FBTASKS_CELERY.SETTLE", consumer, settled))
    put("", "own", *[b"6"] * 7)
    claim(1)
    run(lambda t: messages.sweep(t))
    run(lambda t: t.call("FBTASKS_CELERY_UPKEEP.PURGE", "own", 200))
    run(lambda t: t.call("FBTASKS_CELERY.UNBIND", "own", "logs", "a.#"))
    run(lambda t: t.call("FBTASKS_WORKER.UNREGISTER", consumer))


def results_of_celery(app):
    def run(work):
        return app.database.use(lambda session: session.run(work))

    for final in (False, True):
        run(lambda t, f=final: keyvalues.store(t, "key", b"x" * 9000, final=f, expires=0.001))
    number = run(lambda t: chords.begin(t, "chord", b"shape", 0.001))
    run(lambda t: t.call("FBTASKS_CELERY_API.CHORD_SIZE", "chord", 2, 0))
    for index, value in enumerate((b"1", b"y" * 9000)):
        run(lambda t, i=index, v=value: chords.ended(t, "chord", Part(f"part{i}", i, v), final=True, expires=0.001))
    run(lambda t: t.call("FBTASKS_CELERY.CHORD_END", "chord", number))
    deadline = time.monotonic() + 10
    while one(
        app, "SELECT (SELECT COUNT(*) FROM QUEUE_CELERY) + (SELECT COUNT(*) FROM QUEUE_CELERY_CHORD) FROM RDB$DATABASE"
    ):
        assert time.monotonic() < deadline
        run(lambda t: t.call("FBTASKS_CELERY.PRUNE", 100))


def pruning(app):
    execute(app, "UPDATE QUEUE_STAT SET HOUR_TIME = DATEADD(-60 DAY TO HOUR_TIME)")
    with app.database.session() as session:
        session.run(lambda t: t.rows("FBTASKS_WORKER.FOLD_STATS", 30, 100))
        for state in (State.SUCCEEDED, State.FAILED, State.CANCELLED):
            session.run(lambda t, s=state: tasks.prune(t, s, timedelta(0)))


def upgrades(app):
    """A release with another text of the packages; all that follows in this process is of it."""
    text = packages.packages()
    more = text["FBTASKS_UPKEEP"][0]._replace(name="MORE", head="PROCEDURE MORE", body="\nBEGIN\nEND", private=False)
    changed = {**text, "FBTASKS_UPKEEP": (*text["FBTASKS_UPKEEP"], more)}
    mock.patch.object(packages, "packages", return_value=changed).start()
    generations.fingerprint.cache_clear()
    assert app.migrate() == []
    assert one(app, "SELECT NUMBER FROM QUEUE_GENERATION") == 2


class Shop:
    """An app with a task and two sources, and what they have been called with."""

    def __init__(self, app):
        self.app = app
        self.heard = []
        self.note = app.task(name="note")(self.heard.append)
        app.on_change("STOCK", insert=True, order="key", name="stock")(lambda change: self._hear("STOCK", change.key))
        app.poll_table("TAKEN", columns=("ID",), name="taken")(lambda row: self._hear("TAKEN", row.values))

    def _hear(self, table, key):
        self.heard.append((table, key["ID"]))

    def insert(self, number):
        for table in ("STOCK", "TAKEN"):
            execute(self.app, f"INSERT INTO {table} VALUES (?)", number)


def left_behind(app):
    """What is there when the primary is lost: a task that runs, one that waits, one that is due later, and rows."""
    script(
        app,
        "CREATE TABLE STOCK (ID INTEGER NOT NULL PRIMARY KEY)",
        "CREATE TABLE TAKEN (ID INTEGER NOT NULL PRIMARY KEY)",
    )
    shop = Shop(app)
    _deploy(app)
    shop.insert(1)
    drain(app)
    assert sorted(shop.heard) == [("STOCK", 1), ("TAKEN", 1)]
    facts = {"name": "w", "host": "elsewhere", "pid": 1, "pid_start": 1, "queues": ["default"], "pool": "threads"}
    shop.note.delay("it ran")
    with app.database.session() as session:
        lost = session.run(lambda t: processes.register(t, "worker", lease=0.001, concurrency=1, version="1", **facts))
        session.run(lambda t: tasks.claim(t, lost, "default", 1))
    shop.note.delay("it waited")
    shop.note.apply_async(("it was scheduled",), countdown=0.01)
    shop.insert(2)


def taken_over(app):
    """What runs on the copy when it was promoted: of what was left behind, and of what comes."""
    shop = Shop(app)
    shop.insert(3)
    lost = one(app, "SELECT MAX(WORKER_ID) FROM QUEUE_TASK")
    with app.database.session() as session:
        session.run(lambda t: processes.rescue(t, lost, gone=False, awake=1e6, crash_limit=3))
    _drain_until(app, lambda: len(shop.heard) >= 7)
    return shop.heard


def _deploy(app):
    assert not subscriptions.apply(app.database, app.name, app.features["sources"].feeds()).problems


def _drain_until(app, condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        drain(app)


def _flat(values):
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


ALL = [
    plain_tasks, extras, failures_and_retries, priorities, scheduled_tasks, workflows, periodic_tasks, limits_of_tasks,
    limits_of_queues, unique_tasks, batches, changes, events, polls, what_running_tasks_say, dashboards, pauses,
    rescues, messages_of_kombu, results_of_celery, pruning, left_behind,
]  # fmt: skip
