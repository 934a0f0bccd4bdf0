"""Checks of values, and the words that a wrong one may have been meant to be."""

import pytest

from fbtasks.system.checks import did_you_mean

NAMES = ["tasks.add", "tasks.load", "tasks.read", "mail.send", "report"]


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("tasks.ad", "tasks.add"),  # and not all that begins with "tasks."
        ("taks.add", "tasks.add"),
        ("add", "tasks.add"),
        ("shop.send", ""),
        ("reprot", "report"),
        ("tasks.x", ""),
    ],
)
def test_names_that_are_close_are_proposed_and_no_others(word, meant):
    assert did_you_mean(word, NAMES) == (meant and f" Did you mean {meant!r}?")


def test_names_that_are_equally_close_are_all_proposed():
    assert did_you_mean("--quee", ["--queue", "--queues", "--limit"]) == " Did you mean '--queue' or '--queues'?"
