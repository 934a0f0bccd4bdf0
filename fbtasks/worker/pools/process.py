"""One child process of a worker, and what it is running."""

from __future__ import annotations

import math
import os
import signal
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fbtasks import timing as clock
from fbtasks.run.interrupts import LOOK, PING, SOFT, STOP
from fbtasks.system import sockets
from fbtasks.tasks.call import Claim, Outcome
from fbtasks.worker.pools.channel import LONGEST, Full, Hearing, send_task, task_sockets, unread_tasks
from fbtasks.worker.pools.child_status import ChildStatus
from fbtasks.worker.pools.processes import Process, leave_descriptors, starting
from fbtasks.worker.pools.wire import Ended, Ready, Reported, pack_word

_SIGNALS = {SOFT: signal.SIGUSR1, STOP: signal.SIGUSR2}
_CUT_OFF: Final = "it had closed its connection to the worker"
_LOOK: Final = 1.0
"""Seconds between looks whether a task has ended and its end was not heard."""
_UNANSWERED: Final = 5
"""Such looks in a row in which a child has answered nothing, before it is killed with all that runs in it."""
_AT_ONCE: Final = 0.2
"""Seconds in which a process has ended whose sockets are closed since it ends."""
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


@dataclass(slots=True)
class Run:
    """One claim in a child. Times are monotonic, limits in seconds."""

    claim: Claim
    since: float
    soft: float = math.inf
    hard: float = math.inf
    quiet: float = math.inf
    """For how long it may not say that it is at work."""
    due: float = math.inf
    """When a limit of it is over at the earliest; or patience, with one that was told to stop."""
    outcome: Outcome | None = None
    """What it was stopped for; whatever the child says of it no longer counts."""
    beaten: float = 0.0
    """When it said last that it is at work, as far as is known."""
    is_told: bool = False
    """Whether it was told that its soft limit is over."""
    sent: float = 0.0
    """When it was sent, or a little before."""
    asker: str = ""
    """The feature that has asked for its stack."""

    def __post_init__(self) -> None:
        self.sent = self.since
        if min(self.soft, self.hard, self.quiet) < math.inf:
            self.begin(self.since)

    def __str__(self) -> str:
        return f"Task {self.claim.label}"

    def begin(self, since: float) -> None:
        """Its time runs from *since* on: when it was sent, or as far as is known that it has begun.

        So does that of another of its calls, when it is a run of several.
        """
        if since > self.since:
            self.is_told = False
        self.since = since
        self.due = min(math.inf if self.is_told else since + self.soft, since + self.hard, self.silent_at)

    @property
    def silent_at(self) -> float:
        """When it has been silent for too long, unless it says something before."""
        return max(self.since, self.beaten) + self.quiet

    @property
    def elapsed(self) -> float:
        """Seconds since it began."""
        return clock.monotonic() - self.since


class Child:
    """A new interpreter at the other end of two sockets; never a fork, which would inherit open connections."""

    def __init__(
        self,
        mode: str,
        app_path: str,
        worker_id: int,
        number: int,
        slots: int,
        log: str,
        longest: int = LONGEST,
        folder: str | None = None,
    ) -> None:
        """Starts it, in *folder*. It may say *longest* bytes in one message.

        Raises :class:`CannotStart`, and leaves nothing open, when the machine has no room for it now.
        """
        with starting(), ExitStack() as undo:
            self._socket, theirs = sockets.pair()
            undo.enter_context(self._socket)
            with theirs:
                self._tasks, self._taken = map(undo.enter_context, task_sockets())
                self.status = ChildStatus(slots)
                undo.callback(self.status.close)
                leave_descriptors(self.status.file)
                self.status.shared.worker_id = worker_id
                files = (theirs.fileno(), self._taken.fileno(), self.status.file)
                arguments = (os.getpid(), *files, mode, app_path, number, slots, log)
                self.started = clock.monotonic()
                self.process = Process("fbtasks.worker.pools.child", arguments, files, folder)
            undo.pop_all()
        self.number = number
        self.one = mode == "processes"
        self.slots = slots
        self.running: dict[int, Run] = {}
        """What was sent and has not ended, begun or not."""
        self.served = 0
        self.ready = False
        self.stuck = False
        """Whether what it runs takes so long that nothing should wait for it; until it says something."""
        self.apart = False
        """Whether it gets no more tasks, and ends when what runs in it has ended: another one takes its place."""
        self.is_to_end = False
        """Whether a task that had it to itself was stopped, and has ended: it is not to run another."""
        self.message = ""
        """Why it cannot become ready, as the child says."""
        self.for_now = False
        """Whether that may be over in a moment."""
        self.fault = ""
        """Why it cannot go on although it lives: the worker kills it."""
        self._next_look = 0.0
        self._asked: float | None = None
        """The moment at which it was asked for an answer, since a task in it does not stop; None: it was not."""
        self._unanswered = 0
        self._hearing = Hearing(self._socket, longest)
        self.unsent = b""
        """What the child has no room for, since it does not read: it may hold its interpreter."""

    def submit(self, run: Run) -> bool:
        """Sends a claim; False when it takes no more. One that has just died is found out by the next :meth:`read`.

        Raises :class:`OSError` when the claim cannot be sent to any child now.
        """
        try:
            send_task(self._tasks, run.claim)
        except Full:
            self.stuck = True
            return False
        except (BrokenPipeError, ConnectionResetError):
            self.fault = _CUT_OFF
        self.running[run.claim.id] = run
        self.served += 1
        return True

    def take_back(self) -> list[Run]:
        """Takes back the claims that were sent and that the child has not read."""
        numbers = list(unread_tasks(self._taken))
        self.served -= len(numbers)
        return [self.running.pop(number) for number in numbers if number in self.running]

    def interrupt(self, run: Run, kind: str) -> None:
        """Raises an exception inside *run*."""
        if self.one:
            self.status.aim(kind, run.claim.id)
            self.process.signal(_SIGNALS[kind])
        else:
            self._say(kind, run)

    def look(self, run: Run) -> None:
        """Asks for the stack of *run*."""
        self._say(LOOK, run)

    def ask(self, run: Run) -> None:
        """Asks whether it answers, since *run* does not stop; and again, as long as that runs.

        A task that holds the interpreter, or the event loop, keeps the others in the child from ending as well.
        """
        self._asked = clock.monotonic()
        self._say(PING, run)

    def _say(self, kind: str, run: Run) -> None:
        self.unsent += pack_word(kind, run.claim.id)
        self.speak()

    def speak(self) -> None:
        """Says, without ever waiting, what the child had no room for."""
        with suppress(OSError):
            while self.unsent:
                self.unsent = self.unsent[self._socket.send(self.unsent, socket.MSG_DONTWAIT) :]

    def read(self) -> tuple[list[Ended | Reported], bool]:
        """Returns the messages since the last call, and whether the child is dead."""
        dead = self.process.ended  # asked first: what it said before it died is still read
        unheard = self._look()
        messages, over = self._hearing.messages()
        if over and not dead:
            self.fault = self.fault or self._hearing.junk or _CUT_OFF
        said: list[Ended | Reported] = []
        for message in messages:
            if not isinstance(message, Ready):
                said.append(message)
            elif self.ready:
                self.fault = self.fault or "it said again whether it is ready"
            else:
                self.ready, self.message, self.for_now = not message.why_not, *message
        ended = {each.task for each in said if isinstance(each, Ended)}
        self.stuck = self.stuck and not ended
        if not dead and not self.fault and not unheard <= ended:
            self.fault = "it said how a task had ended in a way that was not heard"
        return said, dead or bool(self.fault)

    def _look(self) -> set[int]:
        """From time to time: the runs whose ends have been said by now, and were not read before."""
        now = clock.monotonic()
        if now < self._next_look or not self.running:
            return set()
        self._next_look = now + _LOOK
        self._look_for_answer()
        return self._ended()

    def _look_for_answer(self) -> None:
        if self._asked is None:
            return
        if self.status.shared.answered < self._asked:
            self._unanswered += 1  # looks, and not seconds: both sides may have been stopped together
            if self._unanswered >= _UNANSWERED:
                self.fault = f"it answered nothing for {_UNANSWERED * _LOOK:g} s while a task in it was to stop"
            return
        self._unanswered, self._asked = 0, None
        if (run := next((run for run in self.running.values() if run.outcome is not None), None)) is not None:
            self.ask(run)

    @property
    def next_look(self) -> float:
        """The moment of the next look at it, also when it says nothing."""
        return math.inf if self._asked is None or not self.running else self._next_look

    def _ended(self) -> set[int]:
        """The runs whose ends have been said, and are still to be read, if they can be."""
        moments = self.status.ended()
        return {task for task, run in self.running.items() if run.sent < moments.get(task, 0.0)}

    def begun(self) -> list[int]:
        """Returns the runs that have begun and whose end was not read."""
        seen = self.status.running().keys() | self._ended()
        if self.one:  # one after the other: what comes before one that is seen has begun as well
            numbers = list(self.running)
            return numbers[: 1 + max((at for at, number in enumerate(numbers) if number in seen), default=-1)]
        return [number for number in self.running if number in seen]

    def to_blame(self) -> list[int]:
        """Returns the runs of which one may have ended the child.

        Of several at a time that is any of them. After what cannot be read the worker does not know which of the
        others have ended.
        """
        if self.one:
            return self.begun()[:1]
        if self.fault:
            return list(self.running)
        return self.begun()

    def how_it_ended(self) -> str:
        """The signal or the exit code, once it has ended; and why the worker killed it, when that was a fault of it."""
        how = self.process.how_it_ended()
        return f"{how}, by its worker, since {self.fault}" if self.fault else how

    def filenos(self) -> list[int]:
        """Readable when the child has said something or has died."""
        death = self.process.fileno
        return [self._socket.fileno()] if death is None else [self._socket.fileno(), death]

    def memory(self) -> int:
        """Bytes of memory that the child has in use; 0 where that cannot be known."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * _PAGE
        except (OSError, IndexError):
            return 0

    def look_again(self) -> None:
        """Forgets a fault that was none: the child was ending, and its sockets were closed a moment before."""
        if self.fault == _CUT_OFF and self.process.wait(_AT_ONCE):
            self.fault = ""

    def kill(self, patience: float = 0.0) -> None:
        """Ends the child, at the latest after *patience* seconds, with all that it has started; reaps it."""
        if patience:
            self.hang_up()  # an idle child ends by itself
        self.process.kill(patience)

    def close(self) -> None:
        """Kills the child and frees what belongs to it."""
        self.kill()
        self.hang_up()
        self._taken.close()
        self.status.close()
        self.process.close()

    def hang_up(self) -> None:
        """Closes the sockets, upon which an idle child ends by itself."""
        for end in (self._socket, self._tasks):
            with suppress(OSError):
                end.close()
