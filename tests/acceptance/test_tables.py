"""What operators look at: tables that fit 80 columns, or are whole in a pipe, filters, and acting on many tasks."""

import json
import re

import pytest
from rich.cells import cell_len
from support.programs import command_line
from support.sql import execute

from fbtasks import FBTasks
from fbtasks.cli.output import visible
from fbtasks.testing import drain

NAME = "shop.orders.invoices.monthly.send_reminder_to_the_customer_x"  # 60 characters
QUEUE = "a-queue-with-a-name-as-long-as-names-of-queues-are-allowed-to-b"  # 63
ERROR = (
    "Käse: 寿司を注文できませんでした [bold]no[/bold] " + "ein_sehr_langes_wort_" * 8 + "\x1b[31mred\ttab\nnext line"
)


@pytest.fixture
def fb(url, capsys, monkeypatch):
    """Runs a command here and gives what it prints."""
    monkeypatch.setenv("FBTASKS_URL", url)

    def run(*arguments, code=0):
        capsys.readouterr()
        left = command_line(*arguments)
        printed, error = capsys.readouterr()
        assert left == code, error
        return printed

    return run


@pytest.fixture
def busy(url):
    """A database with a task of each kind, all with long names."""
    app = FBTasks("busy", url)

    @app.task(name=NAME, queue=QUEUE, max_retries=0)
    def fail(*args):
        raise ValueError(ERROR)

    good = app.task(name="good" + NAME[4:], queue=QUEUE)(lambda: 1)
    app.migrate()
    execute(app, "ALTER SEQUENCE QUEUE_TASK_SEQ RESTART WITH 1234567890123")  # as after years
    app.failed = [fail.delay("ä" * 200), fail.delay(), good.delay()]
    app.send_task("unknown" + NAME[7:], queue=QUEUE)
    drain(app)
    app.revoked = good.delay()
    app.revoked.revoke()
    good.apply_async(countdown=3600 * 24 * 400, priority=-9999)
    good.delay()
    yield app
    app.close()


LISTS = ["failed", "ready", "scheduled", "parked", "succeeded", "cancelled"]


def test_tables_fit_80_columns_and_cut_no_id(busy, fb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    execute(  # a worker as no host names it
        busy,
        f"""INSERT INTO QUEUE_PROCESS (ID, KIND, NAME, HOST, PID, PID_START, START_TIME, HEARTBEAT_TIME, LEASE_UNTIL,
            QUEUES, POOL, CONCURRENCY, VERSION, DRAINING)
        VALUES (123456789, 'worker', '{"w" * 120}', 'host', 4194304, 1, QUEUE_NOW(), QUEUE_NOW(),
            QUEUE_NOW(), '{QUEUE},default', 'processes', 1000, '1', TRUE)""",
    )
    execute(busy, "UPDATE QUEUE_TASK SET STATE = 2, WORKER_ID = 123456789, CLAIM_TIME = START_TIME WHERE STATE = 0")
    for what in [
        ["active"],
        ["queues"],
        ["workers"],
        ["stats"],
        ["task", busy.failed[0].id],
        *([name] for name in LISTS),
    ]:
        text = fb("inspect", *what)
        if what[0] == "task":
            text = text.partition("Traceback")[0]  # that is not a table
        for line in text.splitlines():
            assert cell_len(line) <= 80, line
            assert line == line.rstrip()
        assert "\x1b" not in text
        if what[0] in ("active", *LISTS):
            ids = [str(row["id"]) for row in json.loads(fb("inspect", *what, "--json"))]
            assert [line.split()[0] for line in text.splitlines()[1:]] == ids
        else:
            assert "…" not in text
    shown = fb("inspect", "failed")
    assert re.search(r" shop\.o\S*…mer_x +a-que\S*…\S*-to-b +1 +\d+ m?s ago +ValueError: Käse:…", shown)
    whole = fb("inspect", "task", busy.failed[0].id)
    assert "寿司を注文できませんでした [bold]no[/bold]" in whole


def test_a_pipe_and_wide_have_names_whole(busy, fb, monkeypatch):
    first_line = visible(ERROR.expandtabs(4)).partition("\n")[0]
    for what in (["failed"], ["ready"], ["queues"]):
        piped = fb("inspect", *what)
        assert QUEUE in piped
        assert (first_line in piped) == (what == ["failed"])
        monkeypatch.setenv("COLUMNS", "80")
        assert ages(fb("inspect", *what, "--wide")) == ages(piped)
        assert QUEUE not in fb("inspect", *what)
        monkeypatch.delenv("COLUMNS")
    assert NAME in fb("inspect", "failed")


def ages(table):
    """A table without what changes while one looks: ages, and the widths of their columns."""
    return re.sub(r" +", " ", re.sub(r" +\d+ m?s( ago)?", "", table))


def test_filters(busy, fb):
    def ids(*arguments):
        return [row["id"] for row in json.loads(fb("inspect", *arguments, "--json"))]

    two = sorted(int(result.id) for result in busy.failed[:2])
    assert sorted(ids("failed")) == two
    assert sorted(ids("failed", "--queue", QUEUE, "--name", NAME, "--since", "1h")) == two
    assert len(ids("failed", "--limit", "1")) == 1
    assert ids("failed", "--name", "other") == []
    assert ids("failed", "--since", "2099-01-01") == []
    assert ids("succeeded") == [int(busy.failed[2].id)]
    assert ids("cancelled") == [int(busy.revoked.id)]
    assert [row["queue"] for row in json.loads(fb("inspect", "queues", "--queue", QUEUE, "--json"))] == [QUEUE]
    fb("inspect", "queues", "--queue", "mial", code=2)
    fb("inspect", "stats", "--queue", "mial", code=2)
    counters = json.loads(fb("inspect", "stats", "--queue", QUEUE, "--since", "1h", "--json"))["counters"]
    assert [(row["queue"], row["succeeded"], row["failed"]) for row in counters] == [(QUEUE, 1, 2)]
    assert json.loads(fb("inspect", "stats", "--since", "2099-01-01", "--json"))["counters"] == []
    assert "ERROR                   2" in fb("inspect", "stats")
