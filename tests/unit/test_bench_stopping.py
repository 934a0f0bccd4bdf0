"""The benchmark's requests to end: obeyed at once, but never inside of what must not be cut in two."""

import signal

import pytest

from benchmarks.stopping import heed_signals, held


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def number(request):
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    heed_signals()
    yield request.param
    for each, handler in before.items():
        signal.signal(each, handler)


def test_what_is_held_runs_to_its_end(number):
    steps = []
    with pytest.raises(SystemExit) as ended, held():
        with held():
            signal.raise_signal(number)
            steps.append("inner")
        steps.append("outer")
    assert steps == ["inner", "outer"]
    assert ended.value.code == 128 + number
    with held():  # it is obeyed once
        pass
    with pytest.raises(SystemExit):
        signal.raise_signal(number)


def test_an_error_does_not_take_the_place_of_the_request(number):
    with pytest.raises(SystemExit) as ended, held():
        signal.raise_signal(number)
        raise ValueError("a conflict")
    assert ended.value.code == 128 + number
    with pytest.raises(ValueError, match="a conflict"), held():
        raise ValueError("a conflict")
