"""What the page "Deploying an application" promises of new code, of two versions at once and of programs that fork."""

import textwrap

import pytest

from fbtasks import FBTasks, TaskFailure
from fbtasks.queue.operations import tasks

pytestmark = pytest.mark.acceptance

BEFORE = """
@app.task(name="shop.send_mail")
def send_mail(order): return f"old {order}"

@app.task(name="shop.price")
def price(order, currency): return f"{order} {currency}"
"""
AFTER = """
@app.task(name="shop.send", aliases=["shop.send_mail"], on_failure=lambda request, error: print(request.task))
def send(order, copy=False): return f"new {order} {copy}"

@app.task(name="shop.price")
def price(order): return f"{order}"

@app.task(name="shop.extra")
def extra(): return "extra"
"""


def start(project, wait_for, name, source):
    """Starts a worker of a version of the code, in a module of that name."""
    project.write(source, name)
    process = project.worker("-A", name, "-n", name, "-c", "1", "-P", "threads", "-Q", "default")
    wait_for(lambda: f"Worker {name}@" in project.logs() and project.logs().count("is ready") == len(project.workers))
    return process


@pytest.mark.thorough
def test_two_versions_of_an_application_run_side_by_side(project, wait_for, url):
    """A name that the old one does not know is parked by it and run by the new one; a former name is run by both."""
    app = FBTasks("caller", url)
    project.anew = True
    old = start(project, wait_for, "before", BEFORE)
    first, extra = app.send_task("shop.send_mail", (1,)), app.send_task("shop.extra")
    assert first.get(20) == "old 1"
    wait_for(lambda: tasks.get_task(app.database, extra.id).row.state.name == "PARKED")
    new = start(project, wait_for, "after", AFTER)
    assert extra.get(20) == "extra"
    old.terminate()
    assert old.wait(30) == 0
    assert [app.send_task(name, (n,)).get(20) for n, name in enumerate(("shop.send_mail", "shop.send"))] == [
        "new 0 False",
        "new 1 False",
    ]
    new.terminate()
    assert new.wait(30) == 0
    app.close()


def test_a_call_that_the_new_code_does_not_take_fails_and_is_put_back(project, url):
    app = FBTasks("caller", url)
    result = app.send_task("shop.price", (1, "EUR"))
    project.write(AFTER)
    project.run("worker", "-A", "proj", "--burst", "-P", "threads", "-Q", "default")
    with pytest.raises((TaskFailure, TypeError), match=r"price\(\) takes 1 positional argument"):
        result.get(1)
    project.write(AFTER.replace("price(order)", "price(order, currency=None)"))
    assert project.run("retry", "--all-failed", "--name", "shop.price").stdout == "1 task put back.\n"
    project.run("worker", "-A", "proj", "--burst", "-P", "threads", "-Q", "default")
    assert result.get(1) == "1"
    app.close()


@pytest.mark.parametrize("used", ["", "add.delay(0, 0); app.close()"])
def test_a_server_that_preloads_the_application_and_forks(project, used):
    """As gunicorn --preload does: nothing was used before the fork, or the app was closed."""
    project.write("@app.task\ndef add(a, b): return a + b\n")
    out = project.python(
        textwrap.dedent("""
        import os
        from proj import add, app
        {used}
        children = []
        for number in range(2):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    add.delay_many([(number, n) for n in range(20)])
                    app.close()  # os._exit() would not, and a zombie that was connected keeps its locks
                    status = 0
                finally:
                    os._exit(status)
            children.append(child)
        add.delay_many([(9, n) for n in range(20)])
        print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
        with app.connect() as connection, connection.cursor() as cursor:
            print(cursor.execute("SELECT COUNT(*) FROM QUEUE_TASK").fetchone()[0])
        """).format(used=used)
    )
    assert out.splitlines() == ["[0, 0]", "61" if used else "60"]
