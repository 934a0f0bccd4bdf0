"""What a thread waits for: it is woken by other threads, by descriptors, or when its time is over."""

import math
import os
import threading
import time

import pytest

from fbtasks.system.waking import Waker

LONG = 60.0


@pytest.fixture
def waker():
    waker = Waker()
    yield waker
    waker.close()


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_a_wake_before_the_wait_ends_it_until_it_is_cleared(waker):
    waker.wake()
    waker.wake()
    assert waker.woken
    assert waker.select(LONG) == waker.select(LONG) == {waker.fileno()}
    waker.clear()
    assert not waker.woken
    assert waker.select(0) == set()


@pytest.mark.parametrize("seconds", [LONG, math.inf])
def test_another_thread_ends_the_wait_each_time(waker, seconds):
    begun = time.monotonic()
    for _ in range(20):
        thread = threading.Thread(target=waker.wake)
        thread.start()
        waker.wait(seconds)
        thread.join()
        waker.clear()
    assert time.monotonic() - begun < LONG


def test_a_descriptor_that_is_readable_ends_the_wait(waker, pipe):
    reader, writer = pipe
    assert waker.select(0, [reader]) == set()
    os.write(writer, b"!")
    assert waker.select(LONG, [reader]) == {reader}
    waker.wake()
    assert waker.select(LONG, [reader]) == {reader, waker.fileno()}


def test_a_moment_that_is_past_is_no_wait(waker):
    assert waker.select(-1.0) == set()


def test_one_that_is_closed_meanwhile_waits_no_more():
    waker = Waker()
    waker.close()
    waker.wake()
    waker.wait(LONG)
