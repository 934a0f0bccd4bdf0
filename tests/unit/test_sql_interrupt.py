"""Ctrl-C while a statement runs."""

import os
import signal
import threading
import time

import pytest

from fbtasks.cli.sql import _interruptible


class Statements:
    """Stands in for a connection whose statement takes a moment to be cancelled."""

    def __init__(self):
        self.cancelled = threading.Event()
        self.ended = False

    def cancel(self):
        self.cancelled.set()

    def run(self):
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        self.cancelled.wait(10)
        time.sleep(0.2)
        self.ended = True


def test_the_command_ends_when_the_cancelled_statement_has_ended():
    """Else its connection would be closed beside it."""
    statements = Statements()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _interruptible(statements.run, statements)
    finally:
        signal.signal(signal.SIGINT, before)
    assert statements.ended
