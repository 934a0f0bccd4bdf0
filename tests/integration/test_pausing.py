"""Queues and names of tasks that are paused: nothing begins, and nothing is lost."""

import pytest
from support.draining import drain
from support.programs import command_line_in
from support.sql import execute, rows

from fbtasks import ConfigurationError
from fbtasks.queue import tasks
from fbtasks.queue.operations import pausing
from fbtasks.queue.operations.queues import list_queues

pytestmark = pytest.mark.emptied


@pytest.fixture
def add(app):
    return app.task(name="add", ignore_result=True)(lambda n=0: n)


def names(claims):
    return sorted(each.name for each in claims)


def state_counts(app):
    return dict(rows(app, "SELECT STATE, COUNT(*) FROM QUEUE_TASK GROUP BY STATE"))


def test_nothing_is_claimed_from_a_paused_queue(app, add, claim, end):
    add.delay_many([()] * 3)
    (begun,) = claim(1)
    assert pausing.pause(app.database, ["default"]).queues == ["default"]
    assert pausing.pause(app.database, ["default"]).queues == []
    add.delay()
    assert claim() == []
    drain(app)
    (row,) = list_queues(app.database)
    assert (row.paused, row.is_open, row.ready, row.running) == (True, False, 3, 1)
    end([begun])
    assert pausing.resume(app.database, ["default"]).queues == ["default"]
    assert len(claim()) == 3


def test_tasks_of_a_paused_name_are_parked_and_others_run(app, add, claim):
    other = app.task(name="other")(lambda: None)
    for _ in range(3):
        add.delay()
        other.delay()
    assert pausing.pause(app.database, names=["add"]).tasks == ["add"]
    assert names(claim()) == ["other"] * 3
    assert state_counts(app) == {2: 3, 3: 3}
    add.delay()
    assert claim() == []
    assert claim(parked_name="add") == []
    done = pausing.resume(app.database, names=["add"])
    assert (done.tasks, done.put_back) == (["add"], 4)
    assert names(claim()) == ["add"] * 4
    assert rows(app, "SELECT * FROM QUEUE_RULE") == []


def test_what_is_due_later_is_parked_when_its_turn_comes(app, add, claim):
    add.apply_async(countdown=60)
    pausing.pause(app.database, names=["add"])
    execute(app, "UPDATE QUEUE_TASK SET START_TIME = DATEADD(-1 HOUR TO START_TIME)")
    with app.database.session() as session:
        session.run(lambda t: tasks.promote(t))
    assert claim() == []
    assert state_counts(app) == {3: 1}


def test_a_name_with_another_space_is_not_the_name_of_the_task(app, add):
    add.delay()
    for queues, names in ((["default "], []), ([], ["add "])):
        with pytest.raises(ConfigurationError, match=r"'(add|default) '"):
            pausing.pause(app.database, queues, names)
    assert state_counts(app) == {0: 1}


def test_a_long_queue_is_parked_bit_by_bit(app, add, claim):
    add.delay()
    pausing.pause(app.database, names=["add"])
    assert state_counts(app) == {3: 1}  # what is ready is parked by the command, and what comes later by claims
    execute(app, "DELETE FROM QUEUE_TASK")
    add.delay_many([(n,) for n in range(450)])
    sizes = []
    while claim().unseen:
        sizes.append(state_counts(app)[3])
    assert sizes == [200, 400]
    assert state_counts(app) == {3: 450}
    assert pausing.resume(app.database, names=["add"]).put_back == 450
    assert [each.payload for each in claim(450)] == [b"[[%d],{}]" % n for n in range(450)]


def test_the_parked_ones_of_a_paused_name_do_not_fail_with_time(app, add, claim):
    add.delay()
    pausing.pause(app.database, names=["add"])
    claim()
    execute(app, "UPDATE QUEUE_TASK SET CLAIM_TIME = DATEADD(-100 DAY TO CLAIM_TIME)")
    with app.database.session() as session:
        assert session.run(lambda t: t.rows("FBTASKS_WORKER.FAIL_PARKED", 1000, 10, None)) == []
        assert session.read("parked_names", "") == []
    pausing.resume(app.database, names=["add"])
    assert state_counts(app) == {0: 1}


def test_a_paused_task_gives_its_places_to_others_and_waits_for_them_again(app, claim, end):
    app.limit("customer", at_once=1)
    first = app.task(name="first", limits={"customer": "n"}, ignore_result=True)(lambda n: None)
    second = app.task(name="second", limits={"customer": "n"}, ignore_result=True)(lambda n: None)
    first.delay(1)
    second.delay(1)
    pausing.pause(app.database, names=["first"])
    claims = claim() or claim()
    assert names(claims) == ["second"]
    first.delay(1)
    pausing.resume(app.database, names=["first"])
    assert claim() == []
    end(claims)
    for _ in range(2):
        claims = claim()
        assert names(claims) == ["first"]
        assert claim() == []
        end(claims)
    claim()
    assert rows(app, "SELECT * FROM QUEUE_GATE WHERE USED + WAITS <> 0") == rows(app, "SELECT * FROM QUEUE_TASK") == []


def test_an_order_stands_over_a_pause(app, claim, end):
    book = app.task(name="book", ordered="n", ignore_result=True)(lambda n, text: None)
    for text in "abc":
        book.delay(1, text)
    pausing.pause(app.database, names=["book"])
    assert claim() == claim() == []
    book.delay(1, "d")
    assert claim() == []
    pausing.resume(app.database, names=["book"])
    book.delay(1, "e")
    order = []
    while claims := claim():
        order += [each.payload for each in claims]
        end(claims)
    assert order == [b'[[1,"%s"],{}]' % text for text in (b"a", b"b", b"c", b"d", b"e")]


def test_a_pause_that_is_lost_between_is_taken_up_by_the_next_resume(app, add, claim):
    add.delay_many([()] * 3)
    pausing.pause(app.database, names=["add"])
    claim()
    execute(app, "UPDATE QUEUE_RULE SET PAUSED = 0")  # where a resume ended that was killed
    assert len(claim(1, parked_name="add")) == 1
    assert pausing.resume(app.database, names=["add"]).put_back == 2


def test_unknown_names_are_refused_and_nothing_is_changed(app, add):
    add.delay()
    with pytest.raises(ConfigurationError, match="unknown queue 'defualt'"):
        pausing.pause(app.database, ["default", "defualt"])
    with pytest.raises(ConfigurationError, match=r"'ad'.*Did you mean 'add'"):
        pausing.pause(app.database, ["default"], ["ad"], app)
    assert not any(row.paused for row in list_queues(app.database))
    with pytest.raises(ConfigurationError, match=r"'ad'.* -A MODULE"):
        pausing.resume(app.database, ["default"], ["ad"])


PROJECT = """
from fbtasks import FBTasks

app = FBTasks("proj")
app.queue("reports", at_once=2)


@app.task(queue="mail")
def send(): ...
"""


def test_from_the_command_line(app, add, url, tmp_path, claim):
    add.delay()

    def run(*arguments):
        done = command_line_in(tmp_path, {"FBTASKS_URL": str(url)}, *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def refused(*arguments):
        done = command_line_in(tmp_path, {"FBTASKS_URL": str(url)}, *arguments)
        assert done.returncode == 2
        return done.stderr

    assert run("pause", "default", "--task", "add") == (
        "Nothing of default, add begins until: fbtasks resume default --task add\n"
    )
    assert run("pause", "default", "--task", "add") == "Nothing to do: paused already.\n"
    shown = run("inspect", "queues")
    assert "paused" in shown
    assert "Paused tasks, which are parked: add." in shown
    run("resume", "default")
    claim()
    assert "LAST ERROR" not in run("inspect", "parked")
    execute(app, "UPDATE QUEUE_TASK SET ERROR_MSG = 'gone'")
    assert "LAST ERROR\n" in run("inspect", "parked")
    assert run("inspect", "parked").endswith("Paused tasks, which are parked: add. Go on: fbtasks resume --task add\n")
    assert run("resume", "--task", "add") == "add: tasks begin again, 1 task put back.\n"
    assert '"put_back": 0' in run("resume", "default", "--json")
    assert run("resume", "default") == "Nothing to do: not paused.\n"
    (tmp_path / "proj.py").write_text(PROJECT)
    known = ("-A", "proj")
    assert "no task and no worker has it. " in refused("pause", "mail")
    assert "no task and no worker has it, nor does the app. " in refused("pause", "mial", *known)
    assert "One that only an app has is known with -A MODULE" in refused("pause", "--task", "proj.send")
    assert "'proj.sent', nor does the app" in refused("resume", "--task", "proj.sent", *known)
    assert run("inspect", "queues", "--queue", "mail", *known, "--json").count('"queue": "mail"') == 1
    assert run("purge", "--yes", "mail", *known) == "0 tasks deleted.\n"
    assert run("pause", "mail", *known) == "Nothing of mail begins until: fbtasks resume mail\n"
    run("pause", "reports", *known)
    assert run("resume", "mail") == "mail: tasks begin again.\n"
    run("pause", "--task", "proj.send", *known)
    assert run("resume", "--task", "proj.send") == "proj.send: tasks begin again, 0 tasks put back.\n"
