"""What a worker logs, and what it says when it is asked to stop."""

import json
import logging
import os
import re
import signal
import time
from pathlib import Path

import pytest
from support.programs import program, started
from support.signals import inherited
from support.sql import rows
from support.variants import slow

from fbtasks.system.threads import LEFT_ALONE
from fbtasks.worker.logs import JsonFormatter

pytestmark = pytest.mark.acceptance

SOURCE = """
    import asyncio, logging, os, time
    from pathlib import Path

    log = logging.getLogger("shop")

    @app.task
    def told(n):
        log.info("number %d\\nFORGED \\x1b[31mred", n)

    @app.task
    async def step(name):
        for number in range(3):
            log.warning("%s %d", name, number)
            await asyncio.sleep(0.02)

    @app.task(max_retries=0)
    def bad():
        raise ValueError("bad \\x07 news\\nFORGED")

    @app.task(max_retries=1, autoretry_for={OSError: 0})
    def flaky():
        raise OSError("flaky")

    @app.task
    def wait(name):
        while not Path(name).exists():
            time.sleep(0.01)
        log.info("saw it")

    @app.task(max_retries=0)
    def die():
        os._exit(3)

    @app.task(time_limit=0.2, max_retries=0)
    def long():
        time.sleep(60)

    @app.task
    def slow(seconds):
        Path("began").touch()
        time.sleep(seconds)

    @app.task(bind=True, transactional=True)
    def slow_statement(self):
        Path("began").touch()
        with self.connection.cursor() as cursor:
            cursor.execute(
                "EXECUTE BLOCK AS DECLARE N BIGINT = 0; BEGIN WHILE (N < 4000000000) DO N = N + 1; END"
            )
"""
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR|CRITICAL) (.*)")


@pytest.fixture
def producer(project):
    with project.producer(SOURCE) as app:
        yield app


def said(text):
    """Level and message of each line of a log, with the indented lines that belong to it."""
    found = []
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        if match:
            found.append((match[1], match[2]))
        elif found:
            assert line.startswith("  "), line
            found[-1] = found[-1][0], f"{found[-1][1]}\n{line}"
    return found


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio", "solo"])
def test_the_log_names_the_task_of_each_line_and_shows_each_failure_once(project, producer, pool):
    """In ``asyncio`` the functions among these run in threads, as in ``threads``."""
    told = producer.send_task("proj.told", (5,))
    steps = [producer.send_task("proj.step", (name,), task_id=f"own-{name}") for name in ("a", "b")]
    bad, flaky = producer.send_task("proj.bad"), producer.send_task("proj.flaky")
    text = project.run("worker", "-A", "proj", "-c", "2", "--pool", pool, "--burst").stderr
    log = said(text)
    assert ("INFO", f"Task {told.id} (proj.told): number 5\n  FORGED \\x1b[31mred") in log
    own = [(level, message) for level, message in log if "(proj.step): " in message]
    assert sorted(own) == [("WARNING", f"Task {r.id} (proj.step): {r.id[-1]} {n}") for r in steps for n in range(3)]
    assert any(re.fullmatch(r"Task \d+ \(proj\.step, own-a\) succeeded in .*", message) for _, message in log)
    failed = {message.split()[1]: (level, message) for level, message in log if ") failed in" in message}
    assert failed.keys() == {bad.id, flaky.id}
    level, message = failed[bad.id]
    assert level == "ERROR"
    head, *trace = message.splitlines()
    assert head.endswith(": ValueError: bad \\x07 news FORGED")
    assert trace[0] == "  Traceback (most recent call last):"
    assert "in bad" in trace[1]
    assert trace[-2:] == ["  ValueError: bad \\x07 news", "  FORGED"]
    assert [(level, message) for level, message in log if "is tried again" in message] == [
        ("WARNING", f"Task {flaky.id} (proj.flaky) is tried again in 0.0 s after: OSError: flaky")
    ]
    assert text.count("Traceback") == 2
    assert not {c for c in text if c != "\n" and not c.isprintable()}
    # On a busy machine some may wait for so long that they are given back.
    assert re.fullmatch(
        r"Worker \S+ has ended after \d+\.\d s\. Tasks: 3 succeeded, 2 failed, 1 retried, \d+ given back\.", log[-1][1]
    )


def test_the_traceback_of_a_retry_is_for_debugging_and_a_long_one_is_cut(project, producer):
    project.write("""
        @app.task(max_retries=1, autoretry_for={OSError: 0})
        def flaky():
            raise OSError("begin" + 9000 * "x" + "end")
    """)
    task = producer.send_task("proj.flaky")
    log = said(project.run("worker", "-A", "proj", "-c", "1", "--burst", "-l", "debug").stderr)
    (tried,) = (message for level, message in log if level == "DEBUG" and "is to be tried again" in message)
    assert tried.startswith(f"Task {task.id} (proj.flaky) is to be tried again after:\n  Traceback")
    (failed,) = (message for level, message in log if level == "ERROR")
    head, trace = failed.split("\n", 1)
    assert len(head) < 700
    assert 5000 < len(trace) < 6500
    assert "(cut here)" in trace
    assert trace.endswith("end")
    assert len(task.traceback) > 9000


def test_a_log_file_in_json_is_written_by_all_processes_and_followed_when_it_is_rotated(project, producer, wait_for):
    log = project.folder / "worker.log"
    log.write_text("{}\n")
    waiting = producer.send_task("proj.wait", ("go",), task_id="own")
    worker = project.worker("-c", "1", "-n", "main", "--logfile", "worker.log", "--log-format", "json")
    wait_for(lambda: waiting.status == "STARTED")
    log.rename(project.folder / "worker.log.1")
    (project.folder / "go").touch()
    bad = producer.send_task("proj.bad")
    wait_for(bad.ready)
    wait_for(lambda: log.exists() and "failed in" in log.read_text())
    worker.terminate()
    assert worker.wait(20) == 0
    before = [json.loads(line) for line in (project.folder / "worker.log.1").read_text().splitlines()]
    after = [json.loads(line) for line in log.read_text().splitlines()]
    assert before[0] == {}
    assert before[1]["message"].startswith("Worker main@")
    assert before[-1]["message"].endswith("is ready.")
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["time"]) for line in after)
    assert {line["worker"].partition("@")[0] for line in [*before[1:], *after]} == {"main"}
    (saw,) = (line for line in after if line["logger"] == "shop")
    assert (saw["message"], saw["level"], saw["task_id"], saw["task_name"]) == ("saw it", "INFO", "own", "proj.wait")
    assert saw["task_try"] == 1
    assert saw["pid"] != worker.pid
    (failed,) = (line for line in after if "failed in" in line["message"])
    assert (failed["pid"], failed["level"], failed["task_id"]) == (worker.pid, "ERROR", bad.id)
    assert (failed["task_name"], failed["task_try"]) == ("proj.bad", 1)
    assert {"trace_id", "span_id"}.isdisjoint(saw.keys() | failed.keys())
    assert "\n" not in failed["message"]
    assert failed["traceback"].startswith("Traceback (most recent call last):\n")
    assert {"task_id", "task_try", "traceback"}.isdisjoint(after[-1])
    assert [line["message"] for line in after if "Signal" in line["message"]] == ["Signal SIGTERM: stopping."]
    assert "Tasks: 1 succeeded, 1 failed, 0 retried, 0 given back." in after[-1]["message"]
    assert [line.split()[0] for line in project.logs().splitlines()] == [
        "fbtasks", "app", "url", "queues", "pool", "tasks",
    ]  # fmt: skip


def test_a_line_of_json_is_valid_unicode_on_one_line_whatever_is_logged():
    hostile = "\ud800 \n \x1b \u2028 \x85 \U0001f600"
    record = logging.makeLogRecord({"msg": hostile, "name": hostile, "task_id": hostile, "task_name": {1}})
    line = JsonFormatter("w").format(record)
    assert line.isprintable()
    assert line.isascii()
    found = json.loads(line)
    assert found["message"] == found["logger"] == found["task_id"] == hostile.replace("\ud800", "\\ud800")
    assert found["task_name"] == "{1}"


def test_an_application_keeps_its_own_logging_and_its_broken_handler_harms_no_outcome(project, producer):
    project.write("""
        import logging, logging.config, sys

        class Broken(logging.Handler):
            def emit(self, record):
                if record.name.startswith("fbtasks"):
                    raise RuntimeError("no such host")

        logging.config.dictConfig({
            "version": 1,
            "formatters": {"own": {"format": "OWN %(levelname)s %(task_id)s %(task_name)s %(message)s"}},
            "filters": {"task": {"()": "fbtasks.worker.logs.TaskFilter"}},
            "handlers": {
                "err": {"class": "logging.StreamHandler", "formatter": "own", "filters": ["task"]},
                "broken": {"()": Broken},
            },
            "root": {"level": "WARNING", "handlers": ["err", "broken"]},
        })

        @app.task
        def add(a, b):
            logging.getLogger("shop").warning("adding")
            return a + b

        @app.task(max_retries=0)
        def bad():
            raise ValueError("bad news")
    """)
    found = [producer.send_task("proj.add", (n, n)) for n in range(3)]
    bad = producer.send_task("proj.bad")
    text = project.run("worker", "-A", "proj", "-c", "1", "--burst").stderr
    assert [result.get(timeout=5) for result in found] == [0, 2, 4]
    assert bad.failed()
    lines = [line for line in text.splitlines() if line.startswith("OWN")]
    assert [line for line in lines if line.endswith("adding")] == [
        f"OWN WARNING {result.id} proj.add adding" for result in found
    ]
    outcomes = [line.split()[1:4] for line in lines if re.search(r"succeeded in|failed in", line)]
    assert sorted(outcomes) == sorted(
        [["ERROR", bad.id, "proj.bad"], *(["INFO", result.id, "proj.add"] for result in found)]
    )
    assert sum("is ready" in line for line in lines) == 1
    assert text.count("Traceback") == 1
    assert not [line for line in text.splitlines() if LINE.match(line)]
    assert "fbtasks: a log handler of the application raised RuntimeError: no such host" in text


SET_UP = """
import logging, sys
{app}
from fbtasks.worker.logs import LogOptions, set_up
set_up(LogOptions.of(sys.argv[1]))
logging.getLogger("shop").info("from the app")
logging.getLogger("fbtasks.worker").info("from the worker")
"""


def lines_of(app, *options):
    """The lines that a process logs which has done *app* at its import; with the file that *options* name."""
    done = program(SET_UP.format(app=app), json.dumps(options) if options else "INFO")
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def test_where_the_lines_go_that_an_application_has_not_arranged_for():
    text = r"\S+ \S+ INFO from the (app|worker)"
    for app in ("", "logging.warning('x')", "logging.basicConfig(level='DEBUG')"):  # the second calls basicConfig too
        *_, first, second = lines_of(app)
        assert [re.fullmatch(text, line)[1] for line in (first, second)] == ["app", "worker"], app
    own = "logging.basicConfig(format='OWN %(message)s')"
    assert lines_of(own) == ["OWN from the worker"]  # its root logger lets warnings pass; -l is for the worker's own
    assert len(lines_of(own, "INFO", "json", None, "w")) == 2  # in place of the app's on this stream
    (only,) = lines_of("logging.getLogger('fbtasks').setLevel('ERROR')")
    assert only.endswith("from the app")


def test_a_log_file_stands_beside_the_logging_of_an_application(tmp_path):
    file = tmp_path / "log"
    own = "logging.basicConfig(format='OWN %(message)s')"
    assert lines_of(own, "INFO", "text", str(file), "w") == ["OWN from the app", "OWN from the worker"]
    assert [message for _, message in said(file.read_text())] == ["from the app", "from the worker"]


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_a_terminal_gets_colours_unless_its_user_wants_none(env, coloured):
    ours, theirs = os.openpty()
    env = {**os.environ, "TERM": "xterm", "NO_COLOR": "", **env}
    assert started(SET_UP.format(app=""), "INFO", env=env, stderr=theirs).wait(60) == 0
    os.close(theirs)
    text = os.read(ours, 10_000).decode()
    os.close(ours)
    assert "from the worker" in text
    assert ("\x1b[32mINFO\x1b[0m" in text) == coloured
    assert ("\x1b" in text) == coloured


def test_a_log_file_that_cannot_be_written_is_one_clear_message(project, producer):
    done = project.run("worker", "-A", "proj", "--burst", "--logfile", "nosuch/log", check=False)
    assert done.returncode == 2
    assert f"Error: the log file {project.folder}/nosuch/log cannot be written: No such file" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("number", "pool"),
    [
        slow(signal.SIGTERM, "threads"),  # as others, which test_worker.py and test_liveness.py send
        (signal.SIGHUP, "processes"),
        (signal.SIGQUIT, "asyncio"),
        (signal.SIGINT, "solo"),
    ],
)
def test_each_signal_that_asks_to_end_drains_and_twice_at_once_is_once(project, producer, wait_for, number, pool):
    result = producer.send_task("proj.wait", ("go",))
    rest = producer.send_task("proj.wait", ("go",), countdown=3600)
    worker = project.worker("-c", "1", "--pool", pool)
    wait_for(lambda: result.status == "STARTED")
    for _ in range(3):
        for pid in (worker.pid, *children(worker.pid)):  # as a terminal or a service manager may do
            os.kill(pid, number)
    wait_for(lambda: "Waiting up to" in project.logs())
    (project.folder / "go").touch()
    assert worker.wait(20) == 0
    assert (result.status, rest.status) == ("SUCCESS", "PENDING")
    log = [message for _, message in said(project.logs())]
    assert [message for message in log if "ignal" in message and "already" not in message] == [
        f"Signal {signal.Signals(number).name}: stopping.",
        f"Waiting up to 30 s for task {result.id} (proj.wait); a second signal stops it.",
    ]
    assert log[-1].endswith("Tasks: 1 succeeded, 0 failed, 0 retried, 0 given back.")


@pytest.mark.parametrize(
    ("pool", "task"),
    [("threads", "slow"), slow("solo", "slow"), ("solo", "slow_statement")],
)
def test_a_second_signal_after_a_second_stops_what_runs(project, producer, wait_for, pool, task):
    result = producer.send_task(f"proj.{task}", (300,) if task == "slow" else ())
    worker = project.worker("-c", "1", "--pool", pool)
    wait_for((project.folder / "began").exists)
    begun = time.monotonic()
    wait_for(lambda: "again" in project.logs() or worker.send_signal(signal.SIGTERM))
    assert time.monotonic() - begun > 1
    assert worker.wait(20) == 0
    assert rows(producer, "SELECT STATE, TRY_COUNT, CRASH_COUNT FROM QUEUE_TASK") == [(0, 0, 0)]
    log = [message for _, message in said(project.logs())]
    assert [message for message in log if message.startswith("Signal ")] == [
        "Signal SIGTERM: stopping.",
        "Signal SIGTERM: stopping already; one more stops at once, 1 s after the first.",  # once, however many come
        "Signal SIGTERM again: stopping at once.",
    ]
    assert log[-1].endswith("Tasks: 0 succeeded, 0 failed, 0 retried, 1 given back.")
    assert result.status == "PENDING"


def test_the_grace_period_holds_in_the_solo_pool(project, producer, wait_for):
    result = producer.send_task("proj.slow", (300,))
    worker = project.worker("--pool", "solo", "--grace", "0.2")
    wait_for((project.folder / "began").exists)
    worker.terminate()
    assert worker.wait(20) == 0
    assert result.status == "PENDING"
    assert f"Waiting up to 0.2 s for task {result.id} (proj.slow)" in project.logs()


def test_a_death_and_a_time_limit_have_one_line_each(project, producer):
    dies, long = producer.send_task("proj.die"), producer.send_task("proj.long")
    project.run("worker", "-A", "proj", "--burst", "-c", "1", "--logfile", "log")
    log = [message for _, message in said((project.folder / "log").read_text())]
    of_each = [[each for each in log if f"ask {task.id} (" in each] for task in (dies, long)]
    how = "its process ended with exit code 3 while it ran"
    assert of_each[0] == [
        *(f"Task {dies.id} (proj.die) crashed (crash {number} of 3): {how}" for number in (1, 2)),
        f"Task {dies.id} (proj.die) failed: it crashed (crash 3 of 3): {how}",
    ]
    (failed,) = [each for each in of_each[1] if "given back" not in each]
    assert re.fullmatch(r".* failed in 0\.\d+ s: TimeLimitExceeded: it was stopped at its time_limit of 0.2 s", failed)


def test_what_was_ignored_at_the_start_stays_ignored(project, producer, wait_for):
    """SIGHUP for nohup; SIGINT and SIGQUIT for what a script puts into the background."""
    ignored = [number for number in LEFT_ALONE if number != signal.SIGTERM]
    told = producer.send_task("proj.told", (1,))
    worker = project.worker("-c", "1", signals=inherited(signal.SIG_IGN, *LEFT_ALONE))
    wait_for(lambda: "is ready" in project.logs())
    for number in ignored:
        for pid in (worker.pid, *children(worker.pid)):
            os.kill(pid, number)
    assert [producer.send_task("proj.told", (2,)).get(timeout=20), told.get(timeout=20)] == [None, None]
    assert "Signal" not in project.logs()
    worker.terminate()  # and is heard even so
    assert worker.wait(20) == 0


def test_a_worker_that_is_asked_to_end_while_it_starts_ends(project, producer, wait_for):
    project.write("""
        import os, sys, time
        from pathlib import Path
        if "fbtasks.worker.pools.child" in " ".join(sys.orig_argv):
            Path("importing").touch()
            time.sleep(300)
    """)
    worker = project.worker("-c", "1")
    wait_for((project.folder / "importing").exists)
    worker.send_signal(signal.SIGHUP)
    assert worker.wait(20) == 0
    log = [message for _, message in said(project.logs())]
    assert log[0] == "Signal SIGHUP: stopping."
    assert log[-1].endswith("Tasks: 0 succeeded, 0 failed, 0 retried, 0 given back.")
    assert rows(producer, "SELECT * FROM QUEUE_PROCESS") == []
