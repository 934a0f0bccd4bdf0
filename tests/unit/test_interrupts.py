"""Interruptions of a task of several calls: one for the call before does not hit the next, and no stop is lost."""

import asyncio
import os
import signal
import time
from contextlib import suppress

import pytest

from fbtasks.errors import SoftTimeLimitExceeded
from fbtasks.run.interrupts import SOFT, STOP, AlarmInterrupts, SignalInterrupts, TaskStopped, ThreadInterrupts


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


@pytest.fixture
def aims():
    """For which tasks the signals are meant; a test may set their handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield {SOFT: 1, STOP: 0}
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals(aims):
    interrupts = SignalInterrupts(aims.__getitem__)
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


def by_signal(number):
    os.kill(os.getpid(), number)
    spin()


async def waiting(interruption):
    """Waits for long, after *interruption* has come while its event loop itself, or a callback, was at work."""
    asyncio.get_running_loop().call_soon(interruption)
    await asyncio.sleep(5)


async def computing(interruption):
    interruption()
    await asyncio.sleep(5)


async def waiting_for_another(interruption):
    await asyncio.create_task(computing(interruption))


def awaited(interrupts, coroutine):
    """Calls a coroutine function as the runner does."""
    asyncio.run(interrupts.watched(1, coroutine))


def run_by_itself(_, coroutine):
    """Runs an event loop as a plain function may."""
    asyncio.run(coroutine)


@pytest.fixture
def alarm():
    """The times at which the program's own alarm has rung."""
    rung = []
    former = signal.signal(signal.SIGALRM, lambda *_: rung.append(time.monotonic()))
    yield rung
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


@pytest.mark.parametrize("soft", [None, 0.02])
def test_the_alarm_of_the_program_is_kept_while_a_task_has_limits(alarm, soft):
    handler = signal.getsignal(signal.SIGALRM)
    interrupts = AlarmInterrupts()
    interrupts.limits = soft, 30.0, None
    signal.setitimer(signal.ITIMER_REAL, 60, 7)
    with suppress(SoftTimeLimitExceeded), interrupts.window(1):
        time.sleep(0.04)
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert (50 < left < 60, interval) == (True, 7)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert alarm == []


def test_the_alarm_of_the_program_rings_while_a_task_runs_and_its_limits_hold(alarm):
    interrupts = AlarmInterrupts()
    interrupts.limits = 0.3, None, None
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    with pytest.raises(SoftTimeLimitExceeded), interrupts.window(1):
        while True:
            time.sleep(0.001)
    rung = len(alarm)
    assert rung > 2
    while len(alarm) == rung:
        time.sleep(0.001)


@pytest.fixture(params=[SOFT, STOP, "alarm", "halt"])
def interruption(request, aims):
    """An interruption of the task 1: what knows it, what makes it come, and what it is in the task."""
    if request.param in aims:
        interrupts = SignalInterrupts({SOFT: 1, STOP: 1}.__getitem__)
        number, error = {SOFT: (signal.SIGUSR1, SoftTimeLimitExceeded), STOP: (signal.SIGUSR2, TaskStopped)}[
            request.param
        ]
        return interrupts, lambda: by_signal(number), error
    interrupts = AlarmInterrupts()
    if request.param == "halt":
        interrupts.heed_halt()
        return interrupts, lambda: by_signal(signal.SIGUSR2), TaskStopped
    interrupts.limits = 0.02, None, None
    return interrupts, lambda: time.sleep(0.04), SoftTimeLimitExceeded


@pytest.mark.parametrize("call", [awaited, run_by_itself])
@pytest.mark.parametrize("work", [waiting, computing, waiting_for_another])
def test_a_signal_inside_an_event_loop_is_not_lost(interruption, work, call):
    interrupts, come, error = interruption
    with interrupts.window(1), pytest.raises(BaseException) as raised:  # noqa: PT011
        call(interrupts, work(come))
    assert isinstance(interrupts.meant(1, raised.value), error)


def test_an_interruption_that_a_coroutine_has_caught_is_not_that_of_a_later_run(aims):
    interrupts = SignalInterrupts(aims.__getitem__)

    async def caught():
        with suppress(asyncio.CancelledError):
            await waiting(lambda: by_signal(signal.SIGUSR1))

    with interrupts.window(1):
        awaited(interrupts, caught())
    error = asyncio.CancelledError()
    assert interrupts.meant(1, error) is error


def test_an_interruption_that_comes_when_a_coroutine_has_ended_is_not_that_of_a_later_run(of_threads):
    async def last_act():
        of_threads.interrupt(1, SOFT)  # it takes effect in the next turn of the loop

    asyncio.run(of_threads.watched(1, last_act()))
    error = asyncio.CancelledError()
    assert of_threads.meant(1, error) is error
