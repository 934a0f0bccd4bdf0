"""Interruptions of a task of several calls: one for the call before does not hit the next, and no stop is lost."""

import asyncio
import os
import signal
import time

import pytest

from fbtasks.errors import SoftTimeLimitExceeded
from fbtasks.run.interrupts import SOFT, STOP, SignalInterrupts, TaskStopped, ThreadInterrupts


def spin():
    """Runs Python code, in which an interruption takes effect."""
    for _ in range(1000):
        time.sleep(0)


@pytest.fixture
def of_threads():
    return ThreadInterrupts()


def step(interrupts, soft_after=0.0):
    with interrupts.window(1):
        interrupts.begin_step(1, soft_after)
        spin()


def test_a_stop_between_two_calls_ends_the_next(of_threads):
    with of_threads.run(1):
        step(of_threads)
        of_threads.interrupt(1, STOP)
        with pytest.raises(TaskStopped):
            step(of_threads)
    with of_threads.run(1):  # another run of the same task
        step(of_threads)


def test_a_soft_limit_of_the_call_before_does_not_hit_the_next(of_threads):
    with of_threads.run(1), of_threads.window(1):
        of_threads.begin_step(1, time.monotonic() + 60)
        of_threads.interrupt(1, SOFT)
        spin()
        of_threads.begin_step(1, time.monotonic())
        with pytest.raises(SoftTimeLimitExceeded):  # its own
            of_threads.interrupt(1, SOFT)
            spin()


def test_coroutines_are_told_in_their_loop(of_threads):
    async def call(soft_after, kind):
        of_threads.begin_step(1, soft_after)
        of_threads.interrupt(1, kind)
        await asyncio.sleep(0.05)

    async def run():
        with of_threads.run(1):
            await of_threads.watched(1, call(time.monotonic() + 60, SOFT))
            for kind, error in ((SOFT, SoftTimeLimitExceeded), (STOP, TaskStopped)):
                with pytest.raises(asyncio.CancelledError) as raised:
                    await of_threads.watched(1, call(0.0, kind))
                asyncio.current_task().uncancel()
                assert isinstance(of_threads.meant(1, raised.value), error)
            with pytest.raises(TaskStopped):  # also when the call before has caught it
                await of_threads.watched(1, call(0.0, SOFT))

    asyncio.run(run())


def test_signals():
    aims = {SOFT: 1, STOP: 0}
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    interrupts = SignalInterrupts(aims.__getitem__)
    try:
        with interrupts.run(1):
            with interrupts.window(1):
                interrupts.begin_step(1, time.monotonic() + 60)
                os.kill(os.getpid(), signal.SIGUSR1)
                spin()
                interrupts.begin_step(1, 0.0)
                with pytest.raises(SoftTimeLimitExceeded):
                    os.kill(os.getpid(), signal.SIGUSR1)
                    spin()
            aims[STOP] = 1
            os.kill(os.getpid(), signal.SIGUSR2)  # between two calls
            spin()
            with pytest.raises(TaskStopped):
                step(interrupts)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
