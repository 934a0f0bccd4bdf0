"""What a worker that is to end says of what it waits for."""

import logging
from types import SimpleNamespace

import pytest

from fbtasks.worker.drain import Drain


def claims(number):
    return [SimpleNamespace(label=f"{each} (shop.send)") for each in range(1, number + 1)]


@pytest.mark.parametrize(
    ("running", "duties", "what"),
    [
        (1, [], "task 1 (shop.send); a second signal stops it."),
        (2, [], "task 1 (shop.send) and task 2 (shop.send); a second signal stops them."),
        (1, ["polling X"], "task 1 (shop.send) and polling X; a second signal stops them."),
        (7, [], "task 5 (shop.send) and 2 more; a second signal stops them."),
        (6, ["polling X"], "task 5 (shop.send), 1 more and polling X; a second signal stops them."),
    ],
)
def test_it_names_what_it_waits_for_once(caplog, running, duties, what):
    drain = Drain(30, lambda: None)
    with caplog.at_level(logging.INFO, "fbtasks.worker"):
        drain.say_waiting([])
        for _ in range(2):
            drain.say_waiting(claims(running), duties)
    (said,) = caplog.messages
    assert said.startswith("Waiting up to 30 s for task 1 (shop.send)")
    assert said.endswith(what)
