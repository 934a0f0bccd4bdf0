"""Tells middlewares what becomes of a run: their observe_run is under way from its begin until its end is known."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from fbtasks.run.invocation import Part, RunResult
from fbtasks.tasks.request import Reports, Request, running

if TYPE_CHECKING:
    from fbtasks.app import Task
    from fbtasks.run.runner import Runner

logger = logging.getLogger(__name__)


class observed(running):  # noqa: N801  # as the class that it derives from
    """As :class:`running`; for the block, the generators that observe_run returns wait at their ``yield``."""

    __slots__ = ("_request", "_runner", "_waiting", "result")
    result: Part | RunResult
    """The result of the run, or its next call: to be set in the block, but where that raises."""

    def __init__(
        self, runner: Runner, request: Request, reports: Reports, number: int, task: Task[..., Any] | None
    ) -> None:
        super().__init__(request, reports, number, task)
        self._request = request
        self._runner = runner
        self._waiting: list[tuple[str, Generator[None, Any, None]]] = []

    def __enter__(self) -> observed:
        super().__enter__()
        for owner, function, _ in self._runner.app.middlewares.observe:
            generator = function(self._request)
            if self._goes_on(owner, next, generator):
                self._waiting.append((owner, generator))
        return self

    def __exit__(self, kind: object = None, *_: object) -> None:
        """Sends them what is tried again, and what has failed; of a call in between nothing. An error closes them."""
        ends = None
        if kind is None:
            ends = (self.result.retried, self.result.failed) if isinstance(self.result, RunResult) else ((), ())
        for owner, generator in reversed(self._waiting):
            if ends is None or self._goes_on(owner, generator.send, ends):
                self._goes_on(owner, generator.close)
        super().__exit__()

    def _goes_on(self, owner: str, step: Callable[..., Any], *values: Any) -> bool:
        """Takes a step of a generator. Returns whether it waits for another one. What it raises is logged."""
        try:
            self._runner.here(step, *values)
        except StopIteration:
            return False
        except BaseException as error:  # SystemExit is no reason to run the task again
            self._runner.let_pass(error)
            text = "observe_run of the middleware %s raised; the outcome of %s stands."
            logger.exception(text, owner, self._request.task)
            return False
        return True
