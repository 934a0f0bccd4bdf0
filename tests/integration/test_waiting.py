"""Waiting for results in asyncio: one thread, one listener and one statement for all; nothing is left behind."""

import asyncio
import gc
import threading
import time
from contextlib import suppress

import pytest
from support.draining import drain
from support.sql import execute
from support.variants import slow

from fbtasks import DatabaseUnavailable, ResultTimeout, TaskNotFound, TaskRevoked
from fbtasks.firebird.session import Transaction
from fbtasks.queue.notify import outcomes

pytestmark = pytest.mark.emptied

OUTCOMES = "FBTASKS_READER.OUTCOMES"
NAMES = ("fbtasks-results", "fbtasks-events")


@pytest.fixture
def threads(monkeypatch):
    """The threads that were started since: ours by their names, and how many there are of others."""
    before = set(threading.enumerate())

    def found():
        new = [thread.name for thread in set(threading.enumerate()) - before if not thread.name.startswith("fbtasks-w")]
        return sorted(name for name in new if name in NAMES), sum(name.startswith("asyncio") for name in new)

    return found


@pytest.fixture
def asked(monkeypatch):
    """What is asked of the database, and in which threads."""
    seen = []
    rows = Transaction.rows

    def noted(self, name, *params, more=""):
        seen.append((name, threading.current_thread().name))
        return rows(self, name, *params, more=more)

    monkeypatch.setattr(Transaction, "rows", noted)
    return seen


def names_of(asked):
    """What was asked, but for what each new connection asks: one is opened in the place of one that rested for long."""
    return [name for name, _ in asked if name != "generation"]


@pytest.mark.parametrize("count", [200, slow(1000)])
def test_many_waiters_share_one_thread_one_listener_and_each_look(app, add, threads, asked, wait_for, count):
    results = add.delay_many([(n, 1) for n in range(count)])
    asked.clear()

    async def main():
        waiting = [asyncio.ensure_future(result.aget(timeout=120)) for result in results]
        while not asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert threads() == (sorted(NAMES), 0)
        looks, statements = names_of(asked).count(OUTCOMES), len(asked)
        before = len(asked)
        await asyncio.to_thread(drain, app)
        found = await asyncio.gather(*waiting)
        after = [name for name, thread in asked[before:] if thread == "fbtasks-results"]
        return found, looks, statements, after

    found, looks, statements, after = asyncio.run(main())
    assert found == [n + 1 for n in range(count)]
    assert looks < 20  # the pauses grow from 20 ms to a second
    assert statements <= 2 * looks + 2  # what the schema is, once, comes with the first connection
    assert set(after) <= {OUTCOMES, "generation"}  # that with each new connection
    assert len(after) < count + 200  # one for each event at most, and one a second
    assert {thread for name, thread in asked if name == OUTCOMES} == {"fbtasks-results"}
    wait_for(lambda: threads()[0] == ["fbtasks-events"])
    app.close()
    wait_for(lambda: threads()[0] == [])


def test_two_hundred_timeouts_leave_nothing(app, add, threads, wait_for):
    results = [add.delay(n, 1) for n in range(20)]

    async def main():
        for n in range(200):
            with suppress(TimeoutError):
                await asyncio.wait_for(results[n % 20], 0.002)
        assert threads()[1] == 0
        return await asyncio.to_thread(lambda: "runs")

    assert asyncio.run(asyncio.wait_for(main(), 60)) == "runs"
    assert app.outcomes._awaited == set()
    drain(app)
    assert asyncio.run(results[3].aget(timeout=10)) == 4
    wait_for(lambda: threads()[0] == ["fbtasks-events"])


def test_a_timeout_is_a_result_timeout_that_says_what_is_known(app, add):
    result = add.delay(1, 1)

    async def main():
        with pytest.raises(ResultTimeout, match="it is ready, and no worker serves its queue default"):
            await result.aget(timeout=0.05)
        with pytest.raises(ResultTimeout):
            await result.aget(timeout=0)
        drain(app)
        assert await result.aget(timeout=0) == 2
        assert await asyncio.wait_for(result, 10) == 2
        assert [*await asyncio.gather(result, result), await result] == [2, 2, 2]

    asyncio.run(main())


def test_outcomes_are_those_of_get(app, monkeypatch):
    monkeypatch.setattr(outcomes, "GRACE", 0.1)
    bad = app.task(name="bad", max_retries=0)(lambda: 1 / 0)
    quiet = app.task(name="quiet", ignore_result=True)(lambda: 1)
    large = app.task(name="large")(lambda: "x" * 100_000)
    failed, silent, cancelled, long = bad.delay(), quiet.delay(), bad.delay(), large.delay()
    named = large.apply_async(task_id="größe")
    cancelled.revoke()

    async def main():
        seen = asyncio.ensure_future(app.AsyncResult(silent.id).aget(timeout=30))
        while silent.status != "PENDING" or not any(w.wait.seen for w in app.outcomes._awaited):
            await asyncio.sleep(0.01)
        drain(app)
        assert await seen is None
        assert await silent is None
        assert await long == await app.AsyncResult(named.id) == "x" * 100_000
        with pytest.raises(ZeroDivisionError) as caught:
            await failed
        assert "1 / 0" in "".join(caught.value.__notes__)
        with pytest.raises(TaskRevoked):
            await cancelled
        for unknown in ("nobody's", 987654, "9" * 30, "x" * 1000):
            with pytest.raises(TaskNotFound):
                await app.AsyncResult(unknown)

    asyncio.run(main())


def test_an_unknown_id_is_waited_for_while_its_transaction_may_commit(app, add, monkeypatch):
    app.migrate()
    connection = app.connect()
    first = add.using(connection).delay(1, 1)
    other = add.using(connection).apply_async((2, 2), task_id="later")

    async def main():
        waiting = asyncio.gather(first.aget(timeout=30), other.aget(timeout=30))
        await asyncio.sleep(0.2)
        connection.commit()
        await asyncio.to_thread(drain, app)
        return await waiting

    try:
        assert asyncio.run(main()) == [2, 4]
    finally:
        connection.close()


def test_many_names_cost_one_statement(app, add, asked):
    *_, last = [add.apply_async((n, 0), task_id=f"order-{n}") for n in range(50)]
    drain(app)
    asked.clear()
    assert last.get(timeout=5) == 49
    assert names_of(asked) == [OUTCOMES], "what was enqueued here is known by its number"

    async def main():
        return await asyncio.gather(*(app.AsyncResult(f"order-{n}").aget(timeout=30) for n in range(50)))

    assert asyncio.run(main()) == list(range(50))
    assert names_of(asked).count("FBTASKS_READER.NUMBERS") <= 3
    assert names_of(asked).count(OUTCOMES) <= 3


def test_several_loops_and_one_that_ends_with_waiters(app, add, wait_for):
    result = add.delay(1, 1)

    def abandon():
        """A loop that is closed in the middle of a wait, and not even cancels it."""
        loop = asyncio.new_event_loop()
        task = loop.create_task(result.aget())
        loop.run_until_complete(asyncio.sleep(0.1))
        task._log_destroy_pending = False
        loop.close()
        return task

    found = []
    threads = [threading.Thread(target=lambda: found.append(asyncio.run(result.aget(timeout=60)))) for _ in range(3)]
    kept = abandon()
    for thread in threads:
        thread.start()
    wait_for(lambda: len(app.outcomes._awaited) == 3)
    drain(app)
    for thread in threads:
        thread.join(60)
    assert found == [2, 2, 2]
    kept.get_coro().close()
    del kept
    gc.collect()
    wait_for(lambda: app.outcomes._awaited == set())


def test_cancelled_waits_are_forgotten(app, add, wait_for):
    result = add.delay(1, 1)

    async def main():
        waiting = [asyncio.ensure_future(result.aget()) for _ in range(100)]
        while not all(w.wait.seen for w in app.outcomes._awaited):
            await asyncio.sleep(0.01)
        for task in waiting[:99]:
            task.cancel()
        await asyncio.wait(waiting[:99])
        assert len(app.outcomes._awaited) == 1
        drain(app)
        return await waiting[99]

    assert asyncio.run(main()) == 2


def test_closing_the_app_ends_waits(app, add, threads, wait_for):
    result = add.delay(1, 1)
    caught = []

    def get():
        try:
            result.get(timeout=60)
        except DatabaseUnavailable as error:
            caught.append(str(error))

    thread = threading.Thread(target=get)
    thread.start()

    async def main():
        waiting = [asyncio.ensure_future(result.aget()) for _ in range(10)]
        await asyncio.sleep(0.2)
        app.close()
        return await asyncio.gather(*waiting, return_exceptions=True)

    found = asyncio.run(main())
    thread.join(30)
    wanted = f"the app was closed while task {result.id} was waited for. Its task is left as it is."
    assert [str(error) for error in found] == [wanted] * 10
    assert {type(error) for error in found} == {DatabaseUnavailable}
    assert caught == [wanted]
    wait_for(lambda: threads()[0] == [])
    drain(app)  # the next use opens new connections
    assert asyncio.run(result.aget(timeout=30)) == 2


@pytest.mark.parametrize("how", ["get", "aget"])
def test_a_wait_outlives_a_database_that_is_away_for_a_while(app, add, away, how, monkeypatch):
    result = add.delay(1, 1)
    wait = (lambda: result.get(timeout=60)) if how == "get" else (lambda: asyncio.run(result.aget(timeout=60)))
    found = []
    thread = threading.Thread(target=lambda: found.append(wait()))
    thread.start()
    time.sleep(0.3)
    away.set()
    time.sleep(0.3)
    drain(app)
    assert not found
    away.clear()
    thread.join(60)
    assert found == [2]
    away.set()
    with pytest.raises(DatabaseUnavailable, match="away"):
        wait()  # who has never had an answer is told at once


@pytest.mark.parametrize("how", ["get", "aget"])
def test_a_database_that_stays_away_ends_waits(app, add, away, how, monkeypatch):
    monkeypatch.setattr(outcomes, "OUTAGE", 0.5)
    result = add.delay(1, 1)
    for timeout in (None, 0.4):
        timer = threading.Timer(0.2, away.set)
        timer.start()
        with pytest.raises(DatabaseUnavailable, match="away"):
            result.get(timeout) if how == "get" else asyncio.run(result.aget(timeout))
        timer.join()
        away.clear()


@pytest.mark.usefixtures("url")
def test_an_error_that_is_no_outage_is_told_to_all(app, add):
    results = [add.delay(n, 1) for n in range(3)]
    execute(app, f"DROP PACKAGE BODY FBTASKS_READER_{app.database.generation}")

    async def main():
        return await asyncio.gather(*(result.aget() for result in results), return_exceptions=True)

    found = asyncio.run(main())
    assert len({id(error) for error in found}) == 3
    assert len({str(error) for error in found}) == 1
    assert {type(error).__name__ for error in found} == {"StatementRefused"}


def test_a_wait_is_for_its_own_tasks_events_alone(app, add, asked):
    """A thread that waits is not woken by the ends of tasks with another event."""
    first = add.apply_async((0, 0), countdown=3600)

    def wait():
        with pytest.raises(TaskRevoked):
            first.get(timeout=60)

    thread = threading.Thread(target=wait, name="waits")
    thread.start()
    while not app._listener._waiters or next(iter(app._listener._waiters)).only is None:
        time.sleep(0.01)
    time.sleep(1)
    for _ in range(13):  # none of the same event
        add.delay(1, 1)
    asked.clear()
    began = time.monotonic()
    drain(app)
    time.sleep(0.2)
    looks = [name for name, thread in asked if thread == "waits"]
    assert len(looks) <= 2 + (time.monotonic() - began) / outcomes.POLL_LAST
    first.revoke()
    thread.join(60)


def test_a_forked_child_is_refused_at_once_unless_its_parent_has_closed_the_app(project):
    printed = project.python("""
        import asyncio, os
        from fbtasks import FBTasks, ForkError
        from fbtasks.testing import drain
        app = FBTasks("parent")
        result = app.task(name="t")(lambda: 1).delay()

        async def main():
            try:
                await result.aget(timeout=1)
            except TimeoutError:
                pass

        asyncio.run(main())
        child = os.fork()
        if child == 0:
            try:
                asyncio.run(main())
            except ForkError as error:
                print("refused", flush=True)
            app.outcomes.close()
            os._exit(0)
        os.waitpid(child, 0)
        asyncio.run(main())
        app.close()
        print("parent goes on", flush=True)
        child = os.fork()
        if child == 0:
            drain(app)
            print(asyncio.run(result.aget(timeout=30)), flush=True)
            app.close()
            os._exit(0)
        print(os.waitpid(child, 0)[1])
    """)
    assert printed == "refused\nparent goes on\n1\n0\n"


def test_asyncio_run_ends_cleanly(project):
    """By Ctrl+C in the middle of a wait, and with a wait that is dropped; nothing is printed at the end."""
    printed = project.python("""
        import asyncio, os, signal, threading
        from fbtasks import FBTasks
        app = FBTasks("ends")
        result = app.task(name="t")(lambda: 1).delay()

        async def main(interrupt):
            waiting = [asyncio.ensure_future(result.aget()) for _ in range(50)]
            await asyncio.sleep(0.3)
            if interrupt:
                os.kill(os.getpid(), signal.SIGINT)
                await result

        for interrupt in (False, True):
            try:
                asyncio.run(main(interrupt))
            except KeyboardInterrupt:
                print("interrupted")
            print(len(app.outcomes._awaited))
    """)
    assert printed == "0\ninterrupted\n0\n"
