"""Runs of changes or events: which calls are made of them, and which go on when a run ends early.

:mod:`fbtasks.features.sources.run` makes the calls.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Final, NamedTuple

from fbtasks.errors import CaptureError, SerializationError
from fbtasks.features.sources.coalescing import join, key_of
from fbtasks.features.sources.kinds.changes import Change
from fbtasks.features.sources.subscription import Occurrence, Subscription
from fbtasks.tasks.call import Cancelled, Claim, Crashed, Extra, Failed, Outcome, Reason, Requeue

_DECODER: Final = json.JSONDecoder(strict=False)
_BETWEEN: Final = re.compile(r"[ \t\r\n]*,?[ \t\r\n]*")
_OPENS: Final = re.compile(r"[ \t\r\n]*\[[ \t\r\n]*\[[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class Rest(Extra):
    """The payloads that go on when a run ends before its last call."""

    feature: ClassVar[str] = "sources"
    own: bytes | None = None
    """That of the task from now on; None: the one it had."""
    next: bytes | None = None
    """That of a new task, when this one has failed; None: there is none."""
    tries: int | None = None
    """The tries that have ended of the change that *own* begins with; None: it begins as before."""
    next_tries: int = 0
    """The same of *next*."""

    def is_sound(self) -> bool:
        """Returns whether these are payloads, and numbers."""
        return (
            isinstance(self.own, bytes | None)
            and isinstance(self.next, bytes | None)
            and isinstance(self.tries, int | None)
            and isinstance(self.next_tries, int)
        )


class Step(NamedTuple):
    """One call of a run, which may be made of several of its members, or what is known of one without a call."""

    numbers: tuple[int, ...]
    """Which members of the payload it is made of, from 0 on."""
    argument: Any
    """What the function is given: a change or an event, or a list of them. None: it is not called."""
    error: BaseException | None = None
    """Why it fails without a call."""


class FedRun:
    """The members of one task's payload, and the calls that are made of them."""

    def __init__(self, name: str, subscription: Subscription, claim: Claim, members: Sequence[Any]) -> None:
        """*name* is that of the task; *members* are the JSON objects of the *claim*'s payload."""
        self._name = name
        self._subscription = subscription
        self._claim = claim
        self._members = members
        delivery = subscription.delivery
        self._is_apart = delivery.batch is not None and claim.try_count > 0
        self._tried = int(self._is_apart)
        """The tries that have ended of those that come behind the first: those of a batch that failed have had one."""
        self._occurrences = list(read(subscription, members))

    @cached_property
    def steps(self) -> list[Step]:
        """The calls in their order. A batch that is tried again is taken apart: each is a list of one.

        With *coalesce* there is one for all members of a key, at the place of the last of them.
        """
        delivery = self._subscription.delivery
        steps = [self._single(number, occurrence) for number, occurrence in enumerate(self._occurrences)]
        if delivery.coalesce:
            steps = self._joined(steps)
        if delivery.batch is None:
            return steps
        if self._is_apart:
            return [step if step.argument is None else step._replace(argument=[step.argument]) for step in steps]
        failed = [step for step in steps if step.error is not None]
        numbers = tuple(sorted(n for step in steps if step.error is None for n in step.numbers))
        called = [step.argument for step in steps if step.argument is not None]
        return [Step(numbers, called or None), *failed] if numbers else failed

    def _single(self, number: int, occurrence: Occurrence | SerializationError) -> Step:
        if isinstance(occurrence, SerializationError):
            return Step((number,), None, occurrence)
        if isinstance(occurrence, Change) and occurrence.error is not None:
            return Step((number,), None, self._capture_error(occurrence))
        return Step((number,), occurrence)

    def _joined(self, steps: Iterable[Step]) -> list[Step]:
        found: list[Step] = []
        groups: dict[str, list[Step]] = {}
        for step in steps:
            if step.error is None:
                groups.setdefault(key_of(step.argument), []).append(step)
            else:
                found.append(step)
        for group in groups.values():
            joined = join(self._subscription.source, [step.argument for step in group])
            found.append(Step(tuple(number for step in group for number in step.numbers), joined))
        return sorted(found, key=lambda step: step.numbers[-1])

    def _capture_error(self, change: Change) -> CaptureError:
        columns = change.key.items() if isinstance(change.key, Mapping) else ()
        key = ", ".join(f"{column}={value!r}" for column, value in columns) or "unknown"
        return CaptureError(
            f"a change for the task {self._name!r} could not be recorded (key: {key}; {change.op} by {change.user} in "
            f"transaction {change.transaction}): {change.error}"
        )

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the whole run, as hooks of the task see them."""
        return arguments(self._subscription, self._occurrences)

    def tries(self, step: int) -> int:
        """Returns how many tries have ended of the first member of *step*."""
        return self._claim.try_count if step == 0 else self._tried

    def ended(self, outcome: Outcome, step: int, *, undone: bool = False) -> Outcome:
        """Returns *outcome*, by which the run has ended in *step*, with what goes on.

        *undone*: what the steps before have done is undone with it.
        """
        crashes = self._claim.crash_count if step == 0 or undone else 0
        if isinstance(outcome, Failed) or (
            isinstance(outcome, Crashed) and outcome.charged and crashes + 1 >= outcome.limit
        ):
            return replace(outcome, extra=self._failed(step, undone=undone))
        if step == 0 or undone:
            return outcome
        rest = Rest(self._payload(self._behind(step - 1)), tries=self._tried)
        match outcome:
            case Requeue(Reason.RELEASE | Reason.CONTINUE):
                return Requeue(Reason.CONTINUE, extra=rest)
            case Requeue() | Cancelled() | Crashed():
                return replace(outcome, extra=rest)
        return outcome

    def _failed(self, step: int, *, undone: bool) -> Rest | None:
        """Returns what goes on when *step* has failed for good: the task keeps that step alone."""
        before = [n for each in self.steps[:step] for n in each.numbers] if undone else []
        others = [*before, *self._behind(step)]
        if not others and (step == 0 or undone):
            return None
        everything = len(self.steps[step].numbers) == len(self._members)
        return Rest(
            None if everything else self._payload(self.steps[step].numbers),
            self._payload(others) if others else None,
            None if step == 0 or undone else self._tried,
            self._tried,
        )

    def _behind(self, step: int) -> list[int]:
        """The members of the steps after *step*."""
        return [number for each in self.steps[step + 1 :] for number in each.numbers]

    def _payload(self, numbers: Iterable[int]) -> bytes:
        """The payload of these members, as they are in the run's own."""
        return f"[[{','.join(self._pieces[number] for number in sorted(numbers))}],{{}}]".encode()

    @cached_property
    def _pieces(self) -> list[str]:
        return list(pieces(self._claim.payload or b""))


def arguments(subscription: Subscription, occurrences: Iterable[Occurrence | SerializationError]) -> tuple[Any, ...]:
    """Returns what the function is given for *occurrences*; what could not be read is left out."""
    found = [each for each in occurrences if not isinstance(each, SerializationError)]
    return tuple(found) if subscription.delivery.batch is None else (found,)


def read(subscription: Subscription, members: Iterable[Any]) -> Iterator[Occurrence | SerializationError]:
    """Yields what *members*, JSON objects, stand for, or why one cannot be read."""
    for each in members:
        try:
            yield subscription.source.read(each)
        except SerializationError as error:
            yield error


def members(payload: bytes) -> list[Any]:
    """The JSON objects of a payload. Raises :class:`ValueError` for what cannot be read."""
    from fbtasks.tasks import formats

    return [formats.load_json(piece.encode()) for piece in pieces(payload)]


def pieces(payload: bytes) -> Iterator[str]:
    """The positional arguments of a JSON payload, each as the text that it is there."""
    text = payload.decode()
    opening = _OPENS.match(text)
    at = len(text) if opening is None else opening.end()
    while at < len(text) and text[at] != "]":
        end = _DECODER.raw_decode(text, at)[1]
        yield text[at:end]
        between = _BETWEEN.match(text, end)
        at = end if between is None else between.end()
