"""Processes that react to signals as one started in a terminal does, or as one started by nohup."""

import signal
from contextlib import contextmanager

from .forkserver import OF_A_TERMINAL


@contextmanager
def inherited(disposition, *numbers):
    """A process that the block starts has *disposition* for the signals *numbers*, whatever pytest was started with.

    Only for the main thread: dispositions are the whole process's, and what ignores a signal passes that on.
    """
    before = {number: signal.signal(number, disposition) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def as_in_a_terminal():
    """A process that the block starts has the default for what a terminal sends."""
    return inherited(signal.SIG_DFL, *OF_A_TERMINAL)
