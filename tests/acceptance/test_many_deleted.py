"""Commands that delete much: they say how far they are, and when they are interrupted what they did stays done."""

import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from support.sql import one

from fbtasks.cli.tasks import _done

MANY = 20_000


def interrupted(project, *arguments):
    """Runs a command on a terminal, and interrupts it when it says how far it is. Returns all that it says there."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fbtasks", *arguments]
    process = subprocess.Popen(command, env=project.env, cwd=project.folder, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while b"deleted" not in said:
            said += os.read(ours, 1000)
        process.send_signal(signal.SIGINT)
        while True:
            said += os.read(ours, 1000)
    except OSError:  # nobody has the other end open any more
        pass
    finally:
        os.close(ours)
        assert process.wait(60) == 1
    return said.decode()


@pytest.mark.thorough
def test_an_interrupted_purge_says_what_it_has_deleted(project, app):
    app.migrate()
    task = app.task(lambda: None, name="proj.nothing", ignore_result=True)
    for _ in range(0, MANY, 10_000):
        task.delay_many(((),) * 10_000)
    said = interrupted(project, "purge", "default", "-y")
    deleted = int(re.search(r"Interrupted: (\d+) tasks deleted\.", said)[1])
    assert 0 < deleted < MANY
    assert one(app, "SELECT COUNT(*) FROM QUEUE_TASK") == MANY - deleted


def test_an_interrupt_while_a_transaction_is_committed_waits_for_it(capsys):
    def committed():
        yield 200
        signal.raise_signal(signal.SIGINT)
        yield 200
        pytest.fail("it goes on")

    with pytest.raises(KeyboardInterrupt):
        _done(committed(), "task")
    assert capsys.readouterr().err == "Interrupted: 400 tasks deleted.\n"

    def stuck():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("it goes on")
        yield 200

    with pytest.raises(KeyboardInterrupt):
        _done(stuck(), "task")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
