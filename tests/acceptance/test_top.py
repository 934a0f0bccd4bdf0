"""``fbtasks top`` in a terminal: what it shows, what keys do, and that the terminal is afterwards as it was before."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
from support.registering import register
from support.screens import LEFT, Terminal
from support.sql import execute, one

from fbtasks.cli.output import OBEYED, visible
from fbtasks.states import State
from fbtasks.testing import drain

NASTY = "\x1b[31mred\u202eback\x07寿司"
"""Text that a terminal would obey, and characters that are two columns wide."""


@pytest.fixture
def shop(app):
    """A queue with a task that has failed, one that runs, and some that wait where no worker is."""

    @app.task(name="shop.bill", max_retries=0)
    def bill(order):
        raise ValueError(f"{NASTY} order {order}")

    app.task(name="shop.mail")(lambda: None)
    bill.delay(4711)
    drain(app)
    execute(app, "UPDATE QUEUE_HISTORY SET NAME = ?", "shop.bill" + NASTY)
    worker = register(app, name="one@host")
    app.send_task("shop.mail", queue="default")
    execute(app, "UPDATE QUEUE_TASK SET STATE = 2, CLAIM_ID = 1, WORKER_ID = ?, CLAIM_TIME = QUEUE_NOW()", worker)
    for _ in range(3):
        app.send_task("shop.mail", queue="lost")
    return app


@pytest.fixture
def top(project, shop):
    """Starts ``fbtasks top`` in a terminal."""
    shop.close()  # the process is to have the file for itself when it comes and goes

    def start(*arguments, **size):
        return Terminal(project.folder, project.env, "top", "--interval", "0.2", *arguments, **size)

    return start


@pytest.mark.acceptance
def test_what_is_shown_and_what_keys_do(top, shop):
    failed = one(shop, "SELECT ID FROM QUEUE_HISTORY")
    with top() as screen:
        shown = screen.until("No worker serves lost.", "> default", "one@host")
        lines = shown.splitlines()
        assert re.search(r"^  lost +3 +0 +0 +0 +0 +\S+ m?s +0 +none$", shown, re.MULTILINE)
        assert re.search(rf"^ +{failed}  shop.*ValueError: \\x1b\[31mred\\u202e", shown, re.MULTILINE)
        assert not OBEYED.search(shown)
        line = next(place for place, text in enumerate(lines) if text.startswith("  lost"))
        assert screen.cell(line, lines[line].index("none")).fg == "red"
        # A queue: the first task that waits in it; a pause, and its end.
        screen.type("j\r")
        screen.until("It waits: no worker serves its queue lost. Start one:", "fbtasks worker -A MODULE -Q lost")
        screen.type("\x1bp")
        screen.until("The queue lost is paused.", "none, paused")
        screen.type("p")
        screen.until("The queue lost goes on.", gone=["none, paused"])
        # A task that runs is cancelled, if the answer is yes.
        screen.type("\tc")
        screen.until("(shop.mail)? y/n")
        screen.type("n")
        screen.until("q quit")
        screen.type("cy")
        screen.until("runs: its worker was asked to stop it.")
        # The one that has failed is looked into, and put back.
        screen.type("\x1b[F\n")
        shown = screen.until("STATE      failed", "ARGUMENTS  [[4711], {}]", "Traceback (most recent call last)")
        assert not OBEYED.search(shown)
        screen.type("ry")
        screen.until("1 task put back.", "STATE      ready")
        screen.type("q")
        assert screen.end() == 0
        assert_given_back(screen)
    assert one(shop, "SELECT STATE FROM QUEUE_TASK WHERE ID = ?", failed) == State.READY
    assert one(shop, "SELECT COUNT(*) FROM QUEUE_CANCEL") == 1


def assert_given_back(screen):
    """The terminal is as it was before."""
    assert screen.settings() == screen.before
    assert screen.received.endswith(LEFT)


@pytest.mark.acceptance
def test_it_follows_what_happens_and_the_size_of_the_terminal(top, shop, project):
    project.env["NO_COLOR"] = "1"
    with top(lines=40, columns=120) as screen:
        screen.until("AWAITING", "\n\nRunning  1, longest first", "\n\nFailed  1, newest first")
        shop.send_task("shop.bill", (1,), queue="late")
        drain(shop, ["late"])
        screen.until("Failed  2, newest first", "ERROR")
        screen.type("/4711\r")
        screen.until("/4711 ", "Failed  1, newest first", "Nothing matches the filter.")
        screen.type("\x1b")
        screen.until("Failed  2, newest first", gone=["/4711"])
        screen.type("gss")
        screen.until("Queues  2, longest wait first")
        screen.type(" ")
        screen.until("not refreshed")
        screen.resize(12, 40)
        shown = screen.until("q quit", "Queues  2", gone=["Failed", "AWAITING"])
        assert len(shown.splitlines()) == 12
        screen.type("?")
        screen.until("choose another row")
        screen.type("\x03")  # Ctrl-C
        assert screen.end() == 0
        assert not re.search(rb"\x1b\[[\d;]*\b[349]\d[;m]", screen.received)
        assert_given_back(screen)


@pytest.mark.acceptance
@pytest.mark.embedded("it takes the file away")
def test_it_says_that_the_database_is_lost_and_goes_on(top, project, wait_for):
    file = project.folder.parent / "queue.fdb"
    with top() as screen:
        screen.until("No worker serves lost.")
        file.rename(f"{file}.away")
        screen.until("The last look failed: there is no queue at", "> default")
        (file.parent / "queue.fdb.away").rename(file)
        screen.until("No worker serves lost.")
        # Ctrl-Z: the shell has the terminal, and other processes do not wait for what the program has locked.
        screen.type("\x1a")
        process = Path(f"/proc/{screen.process.pid}")
        wait_for(lambda: (process / "stat").read_text().rpartition(")")[2].split()[0] == "T")
        screen.read(0.1)
        assert_given_back(screen)
        assert str(file) not in {os.readlink(each) for each in (process / "fd").iterdir()}
        screen.send("SIGCONT")
        screen.type("?")
        screen.until("choose another row", "OLDEST is how long the first ready one has waited.", "the last two looks.")
        screen.send("SIGTERM")
        assert screen.end() == 128 + signal.SIGTERM
        assert_given_back(screen)


def test_a_frame_is_printed_where_there_is_no_terminal(project, shop):
    shown = project.run("top", "--interval", "0.1").stdout
    assert "\x1b" not in shown
    assert re.search(r"^  lost +3 +0 +0 +0 +0 +0 ", shown, re.MULTILINE)
    assert "\nRunning  1, longest first\n" in shown
    assert f"shop.bill{visible(NASTY)}" in shown  # whole, as in all tables
    found = json.loads(project.run("top", "--json", "--interval", "0.1").stdout)
    assert {
        "time",
        "queues",
        "workers",
        "counters",
        "paused_names",
        "running",
        "failed",
        "rates",
        "transaction_gap",
    } == set(found)
    assert [row["ready"] for row in found["queues"] if row["queue"] == "lost"] == [3]
    assert found["failed"][0]["error_msg"] == f"{NASTY} order 4711"
    assert found["rates"]["default"] == {"started": 0.0, "finished": 0.0, "failed": 0.0, "retried": 0.0}


def test_nothing_is_drawn_on_a_terminal_that_cannot_be_drawn_on(top):
    with top(term="dumb") as screen:
        assert screen.end() == 0
        assert b"\x1b" not in screen.received
        assert b"No worker serves lost." in screen.received
