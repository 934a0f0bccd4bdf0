"""keep_logs: what tasks log while they run, through their workers, and for how long it is kept."""

import json
import logging
import logging.config
from contextlib import closing

import pytest
from support.dashboards import browser
from support.draining import drain
from support.duties import Turn, Worker
from support.programs import command_line
from support.sheets import Shown
from support.sql import execute, one, rows
from support.variants import slow

from fbtasks import FBTasks, TaskDefinitionError, TaskNotFound
from fbtasks.feature import Every
from fbtasks.features.logs import duty, gathering, store
from fbtasks.features.logs.operations import get_log
from fbtasks.features.logs.store import Lines
from fbtasks.sheet import Private, Ref
from fbtasks.tasks.call import Said
from fbtasks.testing import eager

SOURCE = """
    import asyncio, logging, os, time
    from pathlib import Path

    log = logging.getLogger("shop")

    @app.task(keep_logs=True)
    def plain():
        log.info("first")
        log.debug("not kept")
        while not Path("go").exists():
            time.sleep(0.02)
        log.warning("second", stacklevel=9)

    @app.task(keep_logs=True)
    async def coroutine():
        log.info("one")
        await asyncio.create_task(inner())

    async def inner():
        await asyncio.sleep(0)
        log.info("of a task of its own")

    @app.task(keep_logs=True, transactional=True, bind=True, max_retries=1, default_retry_delay=0,
              autoretry_for=(KeyError,), retry_jitter=False)
    def booked(self):
        log.info("try %d", self.request.retries)
        if not self.request.retries:
            raise KeyError("again")

    @app.task(keep_logs=True)
    def killed():
        log.info("before")
        if not Path("killed").exists():
            while not Path("go").exists():
                time.sleep(0.02)
            Path("killed").touch()
            os._exit(3)

    @app.task(keep_logs=True)
    async def stopped():
        log.info("begun")
        try:
            await asyncio.sleep(60)
        finally:
            log.info("left")

    @app.task
    def silent():
        log.info("of no interest")
"""


def texts(app, task, number=None):
    """What is kept of a task, by try: levels and texts."""
    return [
        (log.try_number, [(line.level, line.text) for line in log.lines])
        for log in get_log(app.database, task.id, number)
    ]


@pytest.mark.acceptance
@pytest.mark.parametrize("pool", ["processes", slow("threads"), "asyncio"])
def test_a_worker_keeps_what_its_tasks_log(pool, project, wait_for):
    with project.producer(SOURCE) as app:
        names = ["plain", "coroutine", "booked", "silent", "killed" if pool == "processes" else "stopped"]
        project.worker("-c", "5", "-P", pool)
        plain, coroutine, booked, silent, last = (app.send_task(f"proj.{name}") for name in names)
        # While they run:
        wait_for(lambda: texts(app, plain) == [(1, [("INFO", "first")])])
        wait_for(lambda: texts(app, last) == [(1, [("INFO", "before" if pool == "processes" else "begun")])])
        if pool == "processes":
            (project.folder / "go").touch()
            wait_for(lambda: texts(app, last) == [(1, [("INFO", "before")])] * 2)  # a crash is no try
        else:
            last.revoke(terminate=True)
            wait_for(lambda: texts(app, last) == [(1, [("INFO", "begun"), ("INFO", "left")])])
            (project.folder / "go").touch()
        for each in (plain, coroutine, booked, silent):
            each.get(timeout=30)
        wait_for(lambda: texts(app, plain) == [(1, [("INFO", "first"), ("WARNING", "second")])])
        wait_for(lambda: texts(app, coroutine) == [(1, [("INFO", "one"), ("INFO", "of a task of its own")])])
        wait_for(lambda: texts(app, booked) == [(1, [("INFO", "try 0")]), (2, [("INFO", "try 1")])])
        assert texts(app, booked, 2) == [(2, [("INFO", "try 1")])]
        assert one(app, "SELECT COUNT(*) FROM QUEUE_LOG WHERE TASK_ID = ?", int(silent.id)) == 0


@pytest.fixture
def log(caplog):
    caplog.set_level("INFO")
    return logging.getLogger("shop")


@pytest.fixture
def kept(own_app, log):
    """Runs *work* as a task of an app that keeps its log, and returns its result."""

    def run(work):
        task = own_app.task(name="t", keep_logs=True, max_retries=0)(work)
        result = task.delay()
        drain(own_app)
        return result

    return run


def test_the_first_and_the_last_lines_are_kept_of_many(own_app, kept, log):
    sizes = []

    def work():
        for number in range(5000):
            log.info("line %d %s", number, "x" * 50)
        log.info("y" * 100_000)

    result = kept(work)
    ((_, lines),) = texts(own_app, result)
    sizes = dict(rows(own_app, "SELECT IS_TAIL, SUM(OCTET_LENGTH(DATA)) FROM QUEUE_LOG GROUP BY IS_TAIL"))
    assert sizes[0] <= gathering.HEAD < sizes[0] + 200
    assert sizes[1] <= gathering.TAIL < sizes[1] + 200
    numbers = [int(text.split()[1]) for _, text in lines[:-1] if text.startswith("line ")]
    gap = next(at for at, (_, text) in enumerate(lines) if "not kept" in text)
    assert numbers == [*range(gap), *range(5000 - (len(lines) - gap - 2), 5000)]
    assert lines[gap][1] == f"(lines that are not kept: {5000 - len(numbers):,})"
    assert "... (cut here) ..." in lines[-1][1]
    assert len(lines[-1][1]) == 4000


def test_the_last_lines_are_said_again_and_again(own_app):
    writer, gathered = duty.LogWriter(Turn()), gathering.Gathered(1)

    def said(*texts):
        for text in texts:
            gathered.add(b'[0,"INFO","shop","%s"]\n' % (text * 12_000))
        writer.told(Said(17, 1, "logs", gathered.take(ended=False)))

    with own_app.database.session() as session:
        said(b"a", b"b", b"c", b"d")
        said(b"e")
        writer.do(session)  # two messages, written together
        said(b"f")
        writer.do(session)
        assert gathered.take(ended=True) == b""
        (log,) = store.of_task(session, 17)
    lines = [line.text[:27] for line in log.lines]
    assert lines == ["a" * 27, "b" * 27, "c" * 27, "d" * 27, "(lines that are not kept: 1", "f" * 27]


def test_no_lines_of_tries_are_mixed_up_or_hidden(own_app):
    def lines(claim, number):
        return Lines(17, claim, number, 0, b'[0,"INFO","shop","%d"]\n' % claim, b"")

    with own_app.database.session() as session:
        for each in (lines(9, 2), lines(7, 1), lines(8, 1)):  # as the workers write them: the first is busy meanwhile
            session.run(lambda t: store.put(t, [each]))  # noqa: B023
        assert [(log.try_number, log.lines[0].text) for log in store.of_task(session, 17)] == [
            (1, "7"), (1, "8"), (2, "9"),
        ]  # fmt: skip
    shown = Shown(own_app, "logs").detail("17").tables  # of one second
    assert [[row["Line"] for row in rows] for rows in shown.values()] == [[Private("7"), Private("8")], [Private("9")]]


@pytest.mark.parametrize(
    "configure",
    [
        lambda: logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "root": {"level": "INFO"}}),
        lambda: logging.basicConfig(force=True, level="INFO"),
    ],
    ids=["dictConfig", "basicConfig"],
)
def test_lines_are_kept_after_a_task_has_configured_logging(own_app, kept, log, monkeypatch, configure):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the handlers of the test run are left alone
    monkeypatch.setattr(logging, "_handlerList", [])
    own_app.task(name="configures")(configure).delay()
    assert texts(own_app, kept(lambda: log.info("said"))) == [(1, [("INFO", "said")])]


def test_hostile_text_is_shown_as_text(own_app, url, kept, log, monkeypatch, capsys):
    def work():
        log.info("a\nINFO shop: forged\x1b[2J \u2028end")
        logging.getLogger("bad\x1b]0;").error("%s", "<b>")
        try:
            raise ValueError("\x9b0m")
        except ValueError:
            log.exception("it failed")
        log.info("no %d", "number")  # which logging reports, and the task does not notice

    monkeypatch.setattr(logging, "raiseExceptions", False)
    result = kept(work)
    monkeypatch.setenv("FBTASKS_URL", url)
    assert command_line("inspect", "logs", result.id) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "Try 1"
    assert shown[1].endswith(r" INFO shop: a")
    assert shown[2] == r"    INFO shop: forged\x1b[2J \u2028end"
    assert shown[3].endswith(r" ERROR bad\x1b]0;: <b>")
    assert shown[4].endswith(" ERROR shop: it failed")
    assert shown[5] == "    Traceback (most recent call last):"
    assert shown[-1] == r"    ValueError: \x9b0m"
    assert command_line("inspect", "logs", result.id, "--json") == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["try_number"] == 1
    assert found["lines"][0].keys() == {"time", "level", "logger", "text"}
    assert found["lines"][0]["text"] == "a\nINFO shop: forged\x1b[2J \u2028end"
    assert command_line("inspect", "task", result.id) == 0
    assert f"LOGS       3 lines: fbtasks inspect logs {result.id}" in capsys.readouterr().out
    assert command_line("inspect", "logs", result.id, "--try", "2") == 0
    assert capsys.readouterr().out.startswith("No lines are kept. A task keeps")
    with pytest.raises(TaskNotFound, match="no task '4711', and no log of one"):
        get_log(own_app.database, "4711")


def test_what_a_task_makes_up_is_no_error(own_app, kept, log):
    result = kept(lambda: log.info("one"))
    for bad in ("[1,2]", "{}", '[1e300, "INFO", "shop", "x"]', "half"):
        execute(own_app, "UPDATE QUEUE_LOG SET DATA = ? || DATA", bad.encode() + b"\n")
    assert texts(own_app, result) == [(1, [("INFO", "one")])]
    writer = duty.LogWriter(Turn())
    for bad in (b"", b"x", b"1 2\n", b"9" * 5000 + b" 0 0\n"):
        writer.told(Said(1, 1, "logs", bad))
    with own_app.database.session() as session:
        writer.finish(session)
    assert Lines.of(Said(1, 1, "logs", b"9999999999 -5 3\nabcd")) == (1, 1, 2**31 - 1, 0, b"abc", b"d")


def test_what_cannot_be_written_is_dropped_at_last(own_app, monkeypatch, caplog):
    monkeypatch.setattr(duty, "MOST", 100)
    writer = duty.LogWriter(Turn())
    for _ in range(3):
        writer.told(Said(1, 1, "logs", b"1 0 40\n" + b"x" * 39 + b"\n"))
    with own_app.database.session() as session:
        writer.do(session)
    assert "Lines of tasks were lost" in caplog.text
    assert one(own_app, "SELECT SUM(LINES) FROM QUEUE_LOG") == 2


def test_how_long_lines_are_kept(own_app, kept, log):
    def forget(session):
        for each in own_app.features["logs"].duties(Worker()):
            if isinstance(each, Every):
                each.do(session)
        return [task for (task,) in rows(own_app, "SELECT DISTINCT TASK_ID FROM QUEUE_LOG ORDER BY 1")]

    kept(lambda: log.info("of a failure") or {}[0])
    own_app.task(name="u", keep_logs=True, ignore_result=True)(lambda: log.info("of no result")).delay()
    own_app.task(name="v", keep_logs=True)(lambda: log.info("of a result")).delay()
    drain(own_app)
    failed, ignored, succeeded = (task for (task,) in rows(own_app, "SELECT TASK_ID FROM QUEUE_LOG ORDER BY ID"))
    with own_app.database.session() as session:
        assert forget(session) == [failed, ignored, succeeded]
        execute(own_app, "UPDATE QUEUE_LOG SET WRITE_TIME = DATEADD(-25 HOUR TO QUEUE_NOW())")
        assert forget(session) == [failed, succeeded]
        execute(own_app, f"DELETE FROM QUEUE_HISTORY WHERE ID = {succeeded}")
        assert forget(session) == [failed]
        execute(own_app, "UPDATE QUEUE_LOG SET WRITE_TIME = DATEADD(-169 HOUR TO QUEUE_NOW())")
        assert forget(session) == []


def test_which_tasks_keep_their_logs(url, log, monkeypatch):
    gathered = []
    monkeypatch.setattr(gathering, "gather", lambda: gathered.append(True))
    with closing(FBTasks("none", url)) as app:
        app.task(name="t")(lambda: None).delay()
        drain(app)
    assert not gathered  # what no task uses is not there
    with closing(FBTasks("all", url, keep_logs=True)) as app:
        app.task(name="t")(lambda: None)
        app.task(name="u", keep_logs=False)(lambda: None)
        app.task(name="v", batch=3)(lambda requests: None)
        assert [gathering.keeps_logs(app.tasks[name]) for name in "tuv"] == [True, False, False]
        with eager(app):
            app.tasks["t"].delay()
        assert not gathered
        app.tasks["t"].delay()
        drain(app)
        assert gathered
        with pytest.raises(TaskDefinitionError, match="'w' has keep_logs=True and batch=: a batch is one run"):
            app.task(name="w", batch=3, keep_logs=True)(lambda requests: None)


def test_what_dashboards_show(own_app, kept, log):
    shown = Shown(own_app, "logs")
    first = kept(lambda: log.info("one"))
    second = own_app.task(name="u", keep_logs=True)(lambda: log.info("<b>\n  indented")).delay()
    silent = own_app.task(name="v")(lambda: log.info("not kept")).delay()
    drain(own_app)
    assert shown.keys(1) == [second.id, first.id]
    assert shown.of_task(silent.id) == {}
    assert shown.of_task(first.id) == {"Log": Ref("logs", first.id, "1 line")}
    assert shown.detail(second.id).line.cells["Name"] == "u"
    assert "inspect logs" not in browser(own_app).get(f"/tasks/{first.id}").text  # a link says it
    ((title, (row,)),) = shown.detail(first.id).tables.items()
    assert title.startswith("Try 1, ")
    assert (row["Level"], row["Logger"], row["Line"]) == ("INFO", "shop", Private("one"))
    for key in (silent.id, "x", "9" * 30):
        assert shown.detail(key) is None
    assert "<pre>&lt;b&gt;\n  indented</pre>" in browser(own_app).get(f"/logs/{second.id}").text


def test_lone_surrogates_are_escaped():  # which the tables of a report could not hold
    record = logging.LogRecord("a\udc80", logging.INFO, "", 1, "b%s\udc80", ("\ud800",), None)
    assert json.loads(gathering._Gatherer._line(record))[1:] == ["INFO", "a\\udc80", "b\\ud800\\udc80"]
