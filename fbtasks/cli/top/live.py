"""Draws ``fbtasks top`` on the terminal, reads its keys, and asks the database in a thread of its own."""

from __future__ import annotations

import codecs
import math
import os
import re
import select
import signal
import sys
import termios
import threading
import tty
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, Final

from rich.console import Console
from rich.live import Live

from fbtasks import timing as clock
from fbtasks.cli.options import Command
from fbtasks.cli.output import say
from fbtasks.cli.top.pages import joined
from fbtasks.cli.top.sight import Sight, look
from fbtasks.cli.top.view import View
from fbtasks.errors import FBTasksError
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.system.threads import Background, answer, deferred, leaving
from fbtasks.system.waking import Waker

_SENT: Final = {
    "A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "1~": "home", "4~": "end",
    "5~": "pgup", "6~": "pgdn", "7~": "home", "8~": "end",
}  # fmt: skip
"""What keys send behind an escape and a bracket or an O."""
_CONTROLS: Final = {
    "\x1b": "esc", "\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace",
    "\x15": "ctrl-u",
}  # fmt: skip
_KEY: Final = re.compile(r"\x1b[\[O]([0-9;]*[A-Za-z~])|(.)", re.DOTALL)
_BEGUN: Final = re.compile(r"\x1b(?:[\[O][0-9;]*)?\Z")
_REST: Final = 0.05
"""Seconds within which the rest arrives of what a key sends: an escape alone is a key, too."""
_SILENT: Final = 1.0
"""Seconds after which it is shown, again and again, for how long the database has not answered."""
_LOST: Final = 1.0
"""Seconds to the next look at least after one that has failed."""


def watch(command: Command, interval: float, found: Sight) -> None:
    """Shows the queue until a key or a signal ends it. *found*: the first look."""
    with closing(Waker()) as waker, leaving(), suppress(KeyboardInterrupt):
        _Watch(command, interval, found, waker).run()


class _Watch:
    """The loop: looks when it is time, draws, and waits for keys and answers."""

    def __init__(self, command: Command, interval: float, found: Sight, waker: Waker) -> None:
        self._database = command.database
        self._interval = interval
        self._waker = waker
        self._screen = _Screen()
        self._asker = _Asker(waker)
        self._view = View(command, found, self._ask)
        self._next = clock.monotonic() + interval
        """When to look again; infinite while it looks."""
        self._began = 0.0
        """When the last look has begun."""
        self._is_stopped = False

    def run(self) -> None:
        mutex_repair.exit_when_engine_hangs(self._give_up)
        answer(signal.SIGWINCH, lambda *_: self._waker.wake())
        if signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN:
            answer(signal.SIGTSTP, self._stop)
        try:
            self._asker.start()
            self._screen.enter()
            while not self._view.done:
                self._look()
                self._screen.draw(self._view)
                self._wait()
                if self._is_stopped:
                    self._stay_stopped()
        finally:
            self._screen.leave()
            self._asker.end()

    def _ask(self, work: Callable[[], Any], then: Callable[[Any], object]) -> None:
        self._asker.ask(work, then, self._view.failed)

    def _look(self) -> None:
        """Looks when it is time, or at once when something was changed; one look after the other."""
        view = self._view
        if self._next < math.inf and (view.is_old or (not view.is_held and clock.monotonic() >= self._next)):
            self._next, self._began = math.inf, clock.monotonic()
            self._asker.ask(partial(look, self._database, view.sight), self._saw, self._lost)

    def _saw(self, found: Sight) -> None:
        self._view.saw(found)
        self._next = clock.monotonic() + self._interval

    def _lost(self, error: FBTasksError) -> None:
        view = self._view
        view.lost, view.silence, view.is_old = str(error), 0.0, False
        self._next = clock.monotonic() + max(self._interval, _LOST)

    def _wait(self) -> None:
        """Waits for a key, for an answer, or until it is time to look again."""
        looks = self._next == math.inf
        seconds = _SILENT if looks else math.inf if self._view.is_held else self._next - clock.monotonic()
        ready = self._waker.select(seconds, [self._screen.input])
        self._waker.clear()
        self._view.silence = clock.monotonic() - self._began if looks else 0.0
        self._asker.hear()
        if self._screen.input in ready:
            for key in self._screen.pressed():
                self._view.press(key)

    def _stop(self, *_: object) -> None:
        self._is_stopped = True
        self._waker.wake()

    def _stay_stopped(self) -> None:
        """Stops until the shell goes on with it: with no connection, for whose locks other processes would wait."""
        self._is_stopped = False
        self._screen.leave()
        closed = threading.Event()
        self._asker.ask(self._database.close, lambda _: None, self._view.failed)
        self._asker.ask(closed.set, lambda _: None, self._view.failed)
        closed.wait()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._screen.enter()
        self._view.is_old = True

    def _give_up(self, why: str) -> None:
        self._screen.leave()
        say(f"Error: {why}", err=True)


class _Asker(Background):
    """Asks the database, so that keys are answered meanwhile."""

    def __init__(self, waker: Waker) -> None:
        super().__init__(name="fbtasks-top")
        self._waker = waker
        self._asked: SimpleQueue[
            tuple[Callable[[], Any], Callable[[Any], object], Callable[[FBTasksError], object]] | None
        ]
        self._asked = SimpleQueue()
        self._answers: deque[Callable[[], object]] = deque()

    def ask(
        self, work: Callable[[], Any], then: Callable[[Any], object], failed: Callable[[FBTasksError], object]
    ) -> None:
        """Has *work* done, and then one of the others called with what it returns or raises; see :meth:`hear`."""
        self._asked.put((work, then, failed))

    def run(self) -> None:
        """Does what it is asked to, until it is to end."""
        while (asked := self._asked.get()) is not None:
            work, then, failed = asked
            answer: Callable[[], object]
            try:
                answer = partial(then, work())
            except FBTasksError as error:
                answer = partial(failed, error)
            except Exception as error:  # noqa: BLE001  # raised in the main thread
                answer = partial(_raise, error)
            self._answers.append(answer)
            self._waker.wake()

    def hear(self) -> None:
        """Takes the answers that have come."""
        while self._answers:
            self._answers.popleft()()

    def end(self) -> None:
        """Ends the thread when what it does is done."""
        self._asked.put(None)
        self.join()


def _raise(error: Exception) -> None:
    raise error


class _Screen:
    """The terminal while it is drawn on: keys arrive one by one, and when it is left it is as it was before."""

    def __init__(self) -> None:
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # it is a terminal's
        self.input = sys.stdin.fileno()
        self._before = termios.tcgetattr(self.input)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)

    def enter(self) -> None:
        """Begins to draw."""
        tty.setcbreak(self.input, termios.TCSANOW)
        self._live.start()

    def leave(self) -> None:
        """Gives the terminal back. Does nothing when that was done, or when it is gone."""
        with deferred(), suppress(OSError, termios.error):
            try:
                self._live.stop()
            finally:
                termios.tcsetattr(self.input, termios.TCSANOW, self._before)

    def draw(self, view: View) -> None:
        """Draws all lines anew."""
        width, height = self._console.size
        self._live.update(joined(view.lines(width, height)), refresh=True)

    def pressed(self) -> Iterator[str]:
        """Yields the keys that were pressed: characters, and names of others. Ends the program with the terminal."""
        text = self._read()
        while _BEGUN.search(text) and select.select([self.input], [], [], _REST)[0]:
            text += self._read()
        for sent, character in _KEY.findall(text):
            yield _SENT.get(sent, "") if sent else _CONTROLS.get(character, character)

    def _read(self) -> str:
        with suppress(OSError):  # the terminal is gone
            if data := os.read(self.input, 4096):
                return self._decoder.decode(data)
        raise KeyboardInterrupt
