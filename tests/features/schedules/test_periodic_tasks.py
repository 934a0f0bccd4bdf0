"""Periodic tasks on the command line, and with real workers of which some are killed."""

import json
import time
from collections import Counter
from datetime import timedelta

import click
import pytest
from support.sql import NOW, execute, rows

from fbtasks.cli.groups import CommandGroup

pytestmark = pytest.mark.acceptance
SOURCE = """
    from datetime import timedelta

    @app.periodic(every=timedelta(hours=36), args=(7,), name="seven")
    @app.periodic(cron="30 2 * * mon-fri", kwargs={"n": 8}, tz="Europe/Vienna", paused=True)
    @app.task(name="report", queue="reports")
    def report(n):
        return n
"""


def schedules(project, command, *arguments, **options):
    done = project.run("schedules", command, "-A", "proj", *arguments, **options)
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def test_the_life_of_a_schedule(project):
    project.write(SOURCE)
    assert schedules(project, "list").startswith("There are no schedules")
    migrated = json.loads(project.run("migrate", "-A", "proj", "--json").stdout)
    assert migrated["schedules"] == ["new: report", "new: seven"]
    listed = {row["name"]: row for row in schedules(project, "list", "--json")}
    assert listed["report"].items() >= {
        "app": "proj", "task": "report", "cron": "30 2 * * mon-fri", "every": None, "tz": "Europe/Vienna",
        "missed": "one", "args": [], "kwargs": {"n": 8}, "queue": "reports", "priority": 0, "state": "paused",
        "next": None, "last": None, "error": None, "set": [],
    }.items()  # fmt: skip
    assert (listed["seven"]["every"], listed["seven"]["state"]) == (36 * 3600, "active")
    lines = schedules(project, "list").splitlines()
    assert [line.split("  ")[0] for line in lines] == ["NAME", "report", "seven"]
    assert "30 2 * * mon-fri Europe/Vienna" in lines[1]
    assert "every 36 h" in lines[2]

    assert schedules(project, "resume", "report") == "report: resumed.\n"
    assert schedules(project, "pause", "report") == "report: no tick until: fbtasks schedules resume report\n"
    assert "(set)" not in schedules(project, "list")
    assert schedules(project, "resume", "report") == "report: resumed.\n"
    assert schedules(project, "pause", "report", "seven", "--json") == {"changed": ["report", "seven"]}
    assert schedules(project, "resume", "seven") == "seven: resumed.\n"
    assert schedules(project, "resume", "seven") == "Nothing to do: neither paused nor failed.\n"
    assert schedules(project, "pause", "seven") == "seven: no tick until: fbtasks schedules resume seven\n"
    assert schedules(project, "pause", "seven") == "Nothing to do: paused already.\n"
    said = schedules(project, "set", "seven", "--every", "90m", "--args", "[]", "--kwargs", '{"n": 9}')
    assert said == "seven: every 90 min, report(n=9).\n"
    assert schedules(project, "set", "seven", "--cron", "@daily", "--json")["cron"] == "@daily"
    assert schedules(project, "set", "seven", "--reset") == "seven: every 36 h, report(7).\n"
    number = schedules(project, "run", "seven").strip()
    project.run("worker", "-A", "proj", "--burst", "--pool", "solo")
    assert project.run("result", number).stdout == "7\n"
    removed = project.run("schedules", "remove", "-A", "proj", "-y", "seven")
    assert removed.stdout == "seven: gone.\n"
    assert removed.stderr == "Note: the app still defines seven, and the next worker makes it anew.\n"


REFUSED = [
    (["pause", "nosuch"], "there is no schedule 'nosuch'. They are in: fbtasks schedules list"),
    (["set", "seven"], "give --reset alone, or what is to be changed"),
    (["set", "seven", "--reset", "--tz", "UTC"], "give --reset alone, or what is to be changed"),
    (["set", "seven", "--every", "soon"], "--every 'soon' must be seconds, or such as 15m, 2h, 1d."),
    (["set", "seven", "--every", "0"], "--every '0' must be from a second to a hundred years, such as 15m, 2h, 1d."),
    (["remove", "nosuch"], "there is no schedule 'nosuch'"),
    (["set", "seven", "--args", "{}"], "--args '{}' must be a JSON list."),
    (["set", "seven", "--cron", "0 0 30 2 *"], "cron '0 0 30 2 *' never ticks"),
    (["set", "seven", "--cron", "@daily", "--every", "60"], "cron and every both say when"),
    (["set", "seven", "--tz", "UTC"], "tz UTC is the zone of a cron expression"),
    (["set", "report", "--tz", "Europe/Wien"], "there is no tz 'Europe/Wien'"),
    (["stop", "seven"], "No such command 'stop'"),
]


def test_what_is_refused(project):
    project.write(SOURCE)
    project.run("migrate", "-A", "proj")
    before = schedules(project, "list", "--json")
    group = CommandGroup("schedules", place="schedules ")
    assert set(group.table(click.Context(group))) == {"list", "pause", "resume", "set", "run", "remove"}
    for arguments, said in REFUSED:
        done = project.run("schedules", *arguments, check=False)
        assert (done.returncode, said in done.stderr) == (2, True), (arguments, done.stderr)
    assert schedules(project, "list", "--json") == before


def test_health_names_a_schedule_that_stands_still(project):
    project.write(SOURCE)
    project.run("migrate", "-A", "proj")
    with project.producer(SOURCE, "UPDATE QUEUE_SCHEDULE SET ERROR_MSG = 'full'") as _:
        done = project.run("health", check=False)
    assert done.returncode == 1
    assert "schedule seven: it stands still: full (fbtasks schedules resume seven)" in done.stdout


EACH_SECOND = """
    @app.periodic(every=1, missed="all", name="each second")
    @app.task(name="note", ignore_result=False)
    def note():
        pass
"""


@pytest.mark.parametrize(
    ("workers", "seconds"), [(2, 4), pytest.param(8, 600, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_workers_tick_each_second_once_though_some_are_killed(project, wait_for, workers, seconds):
    """One task for each tick, none missing, in the time of the database; each worker that is killed is replaced."""
    arguments = ["--pool", "threads", "--concurrency", "1", "--lease", "5"]
    with project.producer(EACH_SECOND) as app:
        running = [project.worker(*arguments, "--name", f"w{number}") for number in range(workers)]
        wait_for(lambda: _found(app))
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            last = max(_found(app))
            wait_for(lambda last=last: max(_found(app)) > last)
            if len(_found(app)) % 3 == 0:
                victim = running.pop(0)
                victim.kill()
                victim.wait()
                running.append(project.worker(*arguments, "--name", f"again{time.monotonic()}"))
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
        found = _found(app)
        steps = Counter(later - earlier for earlier, later in zip(sorted(found), sorted(found)[1:], strict=False))
        assert set(steps) == {timedelta(seconds=1)}
        assert set(found.values()) == {1}
        assert sum(steps.values()) >= seconds - 1


def _found(app):
    """How many tasks there are for each tick."""
    statement = "SELECT START_TIME FROM QUEUE_TASK UNION ALL SELECT START_TIME FROM QUEUE_HISTORY"
    return Counter(start for (start,) in rows(app, statement))


def test_a_worker_that_sleeps_hears_of_a_schedule_that_is_resumed(project, wait_for):
    with project.producer(EACH_SECOND.replace("missed=", "paused=True, missed=")) as app:
        project.worker("--pool", "threads", "--concurrency", "1")
        wait_for(lambda: rows(app, "SELECT 1 FROM QUEUE_PROCESS"))
        execute(app, f"UPDATE QUEUE_SCHEDULE SET NEXT_TIME = DATEADD(-1 HOUR TO {NOW})")
        project.run("schedules", "resume", "-A", "proj", "each second")
        wait_for(lambda: len(_found(app)) >= 2)
