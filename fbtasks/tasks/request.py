"""The call that is being run, as its task sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from fbtasks.errors import FBTasksError
from fbtasks.tasks.call import Outcome
from fbtasks.tasks.celery_words import AnswersCelery

if TYPE_CHECKING:
    from fbtasks.tasks.definition import Task

Hook = Callable[["Request", Any], None]
"""Called with the request and the result (``on_success``) or the exception (``on_failure``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(AnswersCelery):
    """The call that is being run."""

    _known_as = "a request"

    id: str
    task: str
    queue: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int = 0
    retries: int = 0
    """Tries that ended before this one."""
    max_retries: int | None = None
    """None: without limit."""
    eta: datetime | None = None
    expires: datetime | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    """What the call carries beside its arguments, such as the context of a trace."""
    connection: Any = None
    """For a transactional task: the connection whose transaction also records the outcome."""
    eager: bool = False
    """Whether the call is run where it was made, without a worker and a database."""


class RetryRequested(FBTasksError):
    """The task asked to be tried again. Let it pass: it is how ``self.retry()`` leaves the function."""

    def __init__(self, exc: BaseException | None, countdown: float | None, max_retries: int | None) -> None:
        super().__init__(f"retry requested: {exc!r}" if exc else "retry requested")
        self.exc = exc
        self.countdown = countdown
        self.max_retries = max_retries


class EndsWith(FBTasksError):
    """The task has ended with *outcome*. Let it pass: it is how a method of the task leaves the function."""

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome


class Gathering(Protocol):
    """What one run says to a feature, until its worker is told. Used by several threads."""

    def take(self, *, ended: bool) -> bytes:
        """Returns what the worker was not told before; empty: nothing. *ended*: the run has ended, and says no more."""


G = TypeVar("G", bound=Gathering)


class Reports:
    """Takes what tasks say, each by the number of its run. This one drops it."""

    def beat(self, number: int) -> None:
        """The run *number* is at work."""

    def gather(self, number: int, feature: str, make: Callable[[], G]) -> G:  # noqa: ARG002
        """Returns what the run *number* says to *feature*: an object that *make* makes once for the run.

        It is asked once a second, and when the run ends, for what the worker is to be told (:meth:`Duty.told`).
        """
        return make()


SILENT = Reports()


class Current(NamedTuple):
    """The running task of a context."""

    request: Request | None
    reports: Reports
    """Who takes what it says of itself."""
    number: int
    """What they call it."""
    task: Task[..., Any] | None = None


_NONE: Final = Current(None, SILENT, 0)
_current: ContextVar[Current] = ContextVar("fbtasks_request", default=_NONE)


def current_request() -> Request | None:
    """The request of the task that runs in this context, or None outside of one."""
    return _current.get().request


def current() -> Current:
    """Returns the running task of this context."""
    return _current.get()


class running:  # noqa: N801  # a function to its callers; a class costs a third of a generator, and each run has one
    """Makes *request* the current one for the block; *reports* take what it says, as of the run *number*."""

    __slots__ = ("_current", "_token")

    def __init__(
        self, request: Request, reports: Reports = SILENT, number: int = 0, task: Task[..., Any] | None = None
    ) -> None:
        self._current = Current(request, reports, number, task)

    def __enter__(self) -> running:
        self._token = _current.set(self._current)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
