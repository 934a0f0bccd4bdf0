"""Results: what became of a call, asked for by its id."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, cast, overload

from fbtasks import clock
from fbtasks.call import Call, Enqueued, Failed, Stored
from fbtasks.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    ResultTimeout,
    TaskNotFound,
    TaskRevoked,
)
from fbtasks.firebird.session import Session
from fbtasks.notify.outcomes import POLL_FIRST, POLL_LAST, SLOWER, Wait, closed, look
from fbtasks.notify.results import event_of
from fbtasks.remote_error import rebuild_exception
from fbtasks.serialize import Payload
from fbtasks.states import State, celery_name
from fbtasks.store import flows, progress, results, tasks

if TYPE_CHECKING:
    from fbtasks.config import Settings
    from fbtasks.notify.outcomes import OutcomeReader
    from fbtasks.notify.results import Waiter
    from fbtasks.serialize import Serializer
    from fbtasks.store.database import Database

R = TypeVar("R", covariant=True)
T = TypeVar("T")
REVOKED_AT_ONCE: Final = 500
"""Tasks that are cancelled in one transaction."""


class Application(Protocol):
    """The app as its results know it. :class:`fbtasks.definition.App` adds the tasks."""

    name: str
    settings: Settings
    serializer: Serializer
    database: Database
    outcomes: OutcomeReader

    def waiting(self) -> AbstractContextManager[Waiter]:
        """A wait that ends early when some task finishes."""

    def connect(self, **options: Any) -> Any:
        """A connection of firebird-driver to the app's database, for the application's own data."""

    def migrate(self) -> list[int]:
        """Brings the database's schema up to date. Returns the versions applied now."""

    def close(self) -> None:
        """Closes all connections; the next use opens new ones."""


class AsyncResult(Generic[R]):
    """The result of a call that may not have run yet.

    States have Celery's names: PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED. An id that the database does
    not know (never enqueued, not committed yet, pruned, or a success whose result is ignored) is PENDING; so is,
    for a user of a server who may only enqueue, the task of another user.
    """

    def __init__(
        self,
        id: str | int,
        app: Application | None = None,
        *,
        duplicate: bool = False,
        ignored: bool = False,
        number: int | None = None,
    ) -> None:
        self.id = _check_id(id)
        self.app = _check_app(app, self.id)
        self.duplicate = duplicate
        """Whether a task was there already, so that this call enqueued nothing: one of this ``task_id``, or of a unique
        task one with the same key. This is the result of that one. A call that is merged later says False."""
        self.parent: NodeResult | None = None
        """In a workflow that was enqueued here: the result of what it follows."""
        self._ignored = ignored
        self._number = number
        self._seen = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.celery_words import RESULT_ATTRIBUTES, no_attribute

            raise AttributeError(no_attribute("a result", name, RESULT_ATTRIBUTES), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<AsyncResult {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AsyncResult) and (self.app, self.id) == (other.app, other.id)

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def status(self) -> str:
        """The state, as Celery names it."""
        found = self._state()
        if found is None:
            return "PENDING"
        said = self._progress() if found[0] is State.RUNNING else None
        return celery_name(*found) if said is None else said[0]

    state = status

    def ready(self) -> bool:
        """Whether the task has ended."""
        return self._stored() is not None

    def successful(self) -> bool:
        """Whether the task has returned."""
        return self.status == "SUCCESS"

    def failed(self) -> bool:
        """Whether the task has failed for good."""
        return self.status == "FAILURE"

    @property
    def traceback(self) -> str | None:
        """The remote traceback of a failed task."""
        stored = self._stored()
        return None if stored is None else stored.traceback

    @property
    def result(self) -> Any:
        """What the task has come to: its result, or the exception that :meth:`get` would raise.

        While it runs, what it has said last by ``self.update_state``; else None. Nothing is waited for.
        """
        stored = self._stored()
        if stored is not None:
            return self._value_or_error(stored)
        said = self._progress()
        return None if said is None else self.app.serializer.load_meta(said[1])

    info = result

    def revoke(self, *, terminate: bool = False) -> bool:
        """Cancels the task if it waits. False when it has ended or is not known.

        One that runs may end as it does, and is not tried again; with *terminate* its worker stops it.
        """
        with self.app.database.session() as session:
            number = self._find(session)
            if number is None:
                return False
            return session.run(lambda t: tasks.revoke(t, number, terminate=terminate), point="cancel") is not None

    def cancel(self, *, terminate: bool = False) -> int:
        """Cancels all that has not ended of the workflow of which this is the last step. Returns how many tasks.

        Those that run are as after :meth:`revoke`.
        """
        return cancel_all(self, terminate=terminate)

    def forget(self) -> bool:
        """Deletes the outcome. False when there is none."""
        with self.app.database.session() as session:
            number = self._find(session)
            return number is not None and session.run(lambda t: tasks.dismiss(t, number))

    @overload
    def get(self, timeout: float | None = None, propagate: Literal[True] = True) -> R: ...
    @overload
    def get(self, timeout: float | None = None, *, propagate: bool) -> R | BaseException: ...
    @overload
    def get(self, timeout: float | None, propagate: bool) -> R | BaseException: ...
    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """The task's result, waited for up to *timeout* seconds (None: as long as it lives).

        With *propagate* false, the exception of a task that has failed or was cancelled is returned, and not raised.

        Raises the task's own exception where its type can be rebuilt in this process, else
        :class:`TaskFailure`, with the remote traceback in its notes; :class:`TaskRevoked` when it was
        cancelled or expired; :class:`ResultTimeout` when it has not ended in time; :class:`TaskNotFound` when
        the database has not known the id for five seconds. A task that ended with its result ignored returns None.
        """
        started = clock.monotonic()
        wait = self._wait()
        with self.app.waiting() as waiter:
            pause = POLL_FIRST
            while not self._look(wait):
                left = None if timeout is None else started + timeout - clock.monotonic()
                if left is not None and left <= 0:
                    raise self._too_late(wait, timeout)
                waiter.only = None if wait.number is None else event_of(wait.number)
                waiter.wait(pause if left is None else min(pause, left))
                if waiter.closed:
                    raise closed(self.id)
                pause = min(pause * SLOWER, POLL_LAST)
        return self._end(wait, propagate=propagate)

    async def aget(self, timeout: float | None = None) -> R:
        """The same for coroutines: the event loop goes on meanwhile, and the wait may be cancelled.

        All coroutines that wait for results of the app share one thread, which asks the database for all at once.
        """
        wait = self._wait()
        await self.app.outcomes.until_over(wait, timeout)
        self._note(wait)
        if not wait.over:
            raise self._too_late(wait, timeout)
        return cast(R, self._end(wait))

    def __await__(self) -> Generator[Any, None, R]:
        """The result, as :meth:`aget` returns it."""
        return self.aget().__await__()

    def _wait(self) -> Wait:
        return Wait(self.id, self._number, seen=self._seen, ignored=self._ignored)

    def _look(self, wait: Wait) -> bool:
        """Whether *wait* is over, after a look at the database."""
        try:
            self.app.database.use(partial(look, [wait]))
        except DatabaseUnavailable as error:
            if not wait.outlives(error):
                raise
        self._note(wait)
        return wait.over

    def _note(self, wait: Wait) -> None:
        self._number, self._seen = wait.number, wait.seen

    def _too_late(self, wait: Wait, timeout: float | None) -> Exception:
        if wait.error is not None:
            return copy(wait.error)  # other waits may have it as well, and each has a traceback of its own
        return ResultTimeout(f"task {self.id} has not ended after {timeout:g} seconds; it goes on.")

    def _end(self, wait: Wait, *, propagate: bool = True) -> Any:
        if wait.unknown:
            raise TaskNotFound(
                f"the database knows no task {self.id!r}: it was never committed, was pruned, or succeeded "
                "with ignore_result."
            )
        if wait.stored is None:
            return None
        return self._value(wait.stored) if propagate else self._value_or_error(wait.stored)

    def _find(self, session: Session) -> int | None:
        if self._number is None:
            self._number = results.find_id(session, self.id)
        return self._number

    def _stored(self) -> Stored | None:
        return self._read(results.outcome)

    def _state(self) -> tuple[State, int] | None:
        return self._read(results.state)

    def _read(self, query: Callable[[Session, int], T | None]) -> T | None:
        def read(session: Session) -> T | None:
            number = self._find(session)
            return None if number is None else query(session, number)

        return self.app.database.use(read)

    def _progress(self) -> tuple[str, bytes] | None:
        return self._read(progress.of_task)

    def _value_or_error(self, stored: Stored) -> R | BaseException:
        """The result, or the exception that the task has ended with."""
        if stored.state is State.SUCCEEDED:
            return self._value(stored)
        return self._error(stored)

    def _value(self, stored: Stored) -> R:
        if stored.state is not State.SUCCEEDED:
            raise self._error(stored)
        payload = Payload(stored.content_type or "application/json", stored.result or b"null")
        return cast(R, self.app.serializer.load_result(payload, number=self._number or 0))

    def _error(self, stored: Stored) -> BaseException:
        """The exception of a task that has not succeeded."""
        if stored.state is State.CANCELLED:
            return TaskRevoked(f"task {self.id} did not run to its end: {stored.error_msg or 'cancelled'}.")
        failed = Failed(stored.error_type or "", stored.error_msg or "", stored.traceback or "", stored.result)
        return rebuild_exception(failed)


class GroupResult:
    """The results of a group of a workflow, in the order of its members."""

    def __init__(self, results: Iterable[NodeResult], app: Application | None) -> None:
        self.results = list(results)
        """Those of its members: a group's own for a group in it."""
        self.parent: NodeResult | None = None
        """The result of what the group follows."""
        self.app = app

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, which says what to use here for a word of Celery's."""
            from fbtasks.celery_words import RESULT_ATTRIBUTES, no_attribute

            raise AttributeError(no_attribute("a group's result", name, RESULT_ATTRIBUTES), name=name, obj=self)

    def __repr__(self) -> str:
        return f"<GroupResult of {len(self.results)}>"

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[NodeResult]:
        return iter(self.results)

    def __getitem__(self, number: int) -> NodeResult:
        return self.results[number]

    def tasks(self) -> list[AsyncResult[Any]]:
        """The results of all its tasks, with those of the groups in it."""
        found: list[AsyncResult[Any]] = []
        for each in self.results:
            found += each.tasks() if isinstance(each, GroupResult) else [each]
        return found

    def completed_count(self) -> int:
        """How many of its tasks have succeeded and have a result that is kept."""
        return sum(_outcome_of(wait) is State.SUCCEEDED for wait in self._look())

    def ready(self) -> bool:
        """Whether all of them have ended."""
        return all(wait.over for wait in self._look())

    def successful(self) -> bool:
        """Whether all of them have returned."""
        return all(_outcome_of(wait) is State.SUCCEEDED for wait in self._look())

    def failed(self) -> bool:
        """Whether some have failed for good."""
        return any(_outcome_of(wait) is State.FAILED for wait in self._look())

    def waiting(self) -> bool:
        """Whether some have not ended."""
        return not self.ready()

    def get(self, timeout: float | None = None, *, propagate: bool = True) -> list[Any]:
        """The results of all, waited for up to *timeout* seconds, with a list for each group in it.

        Raises what :meth:`AsyncResult.get` raises when one of them has not succeeded, as soon as that has ended; with
        *propagate* false the exception is in the place of the result.
        """
        tasks = self.tasks()
        if not tasks:
            return [each.get() for each in self.results if isinstance(each, GroupResult)]
        assert self.app is not None
        waits = [each._wait() for each in tasks]
        started, pause = clock.monotonic(), POLL_FIRST
        with self.app.waiting() as waiter:
            while left := self._unended(tasks, waits, propagate=propagate):
                seconds = None if timeout is None else started + timeout - clock.monotonic()
                if seconds is not None and seconds <= 0:
                    raise ResultTimeout(f"{len(left)} of {len(tasks)} tasks have not ended after {timeout:g} seconds.")
                waiter.wait(pause if seconds is None else min(pause, seconds))
                if waiter.closed:
                    raise closed(tasks[0].id)
                pause = min(pause * SLOWER, POLL_LAST)
        ended = {id(task): _ended(task, wait, propagate) for task, wait in zip(tasks, waits, strict=True)}
        return self._values(ended)

    join = get

    def _unended(self, tasks: list[AsyncResult[Any]], waits: list[Wait], *, propagate: bool) -> list[Wait]:
        """Those of *waits* that are not over after a look. Raises when one has failed, with *propagate*."""
        assert self.app is not None
        left = [wait for wait in waits if not wait.over]
        try:
            if left:
                self.app.database.use(partial(look, left))
        except DatabaseUnavailable as error:
            lasts = [wait.outlives(error) for wait in left]
            if not all(lasts):
                raise
        for task, wait in zip(tasks, waits, strict=True):
            task._note(wait)
            if propagate and wait.over and _outcome_of(wait) is not State.SUCCEEDED:
                task._end(wait)
        return [wait for wait in left if not wait.over]

    def _values(self, ended: Mapping[int, Any]) -> list[Any]:
        return [each._values(ended) if isinstance(each, GroupResult) else ended[id(each)] for each in self.results]

    def revoke(self, *, terminate: bool = False) -> int:
        """Cancels those of its tasks that have not ended. Returns how many."""
        return revoke_all(self.app, self.tasks(), terminate=terminate)

    def cancel(self, *, terminate: bool = False) -> int:
        """Cancels all that has not ended of the workflow of which this group is the end. Returns how many tasks."""
        return cancel_all(self, terminate=terminate)

    def forget(self) -> None:
        """Deletes the outcomes."""
        for each in self.tasks():
            each.forget()

    def _look(self) -> list[Wait]:
        waits = [each._wait() for each in self.tasks()]
        if left := [wait for wait in waits if not wait.over]:
            assert self.app is not None
            self.app.database.use(partial(look, left))
        return waits


NodeResult = AsyncResult[Any] | GroupResult


def _outcome_of(wait: Wait) -> State | None:
    """How the task has ended: one whose outcome was not kept has succeeded. None: it has not, or is not known."""
    return wait.stored.state if wait.stored is not None else State.SUCCEEDED if wait.gone else None


def _ended(task: AsyncResult[Any], wait: Wait, propagate: bool) -> Any:
    try:
        return task._end(wait)
    except Exception as error:
        if propagate:
            raise
        return error


def cancel_all(result: NodeResult, *, terminate: bool) -> int:
    """Cancels *result* and all that it follows, the last ones first. Returns how many tasks."""
    tasks: dict[int, AsyncResult[Any]] = {}
    todo: list[NodeResult] = [result]
    while todo:
        node = todo.pop(0)
        if isinstance(node, GroupResult):
            todo += node.results
        else:
            tasks.setdefault(id(node), node)
        if node.parent is not None and id(node.parent) not in tasks:
            todo.append(node.parent)
    return revoke_all(result.app, list(tasks.values()), terminate=terminate)


def revoke_all(app: Application | None, wanted: Sequence[AsyncResult[Any]], *, terminate: bool) -> int:
    """Cancels those tasks that have not ended. Returns how many, with those whose workers are asked to stop them."""
    if app is None:
        return 0
    count = 0
    with app.database.session() as session:
        ids = [number for each in wanted if (number := each._find(session)) is not None]
        for at in range(0, len(ids), REVOKED_AT_ONCE):
            some, left, pause = ids[at : at + REVOKED_AT_ONCE], True, POLL_FIRST
            while left:
                revoke = partial(flows.revoke_many, ids=some, terminate=terminate)
                done, left = session.run(revoke, point="cancel")
                count += done
                if left:
                    time.sleep(pause)
                    pause = min(pause * SLOWER, POLL_LAST)
    return count


def results_of(
    app: Application, calls: Sequence[Call], found: Sequence[Enqueued], *, ignored: bool = False, committed: bool = True
) -> list[AsyncResult[Any]]:
    """Returns the results of *calls* that were enqueued; while that is not *committed* they have no number."""
    return [
        AsyncResult(
            call.task_id or str(enqueued.id),
            app,
            duplicate=enqueued.duplicate,
            ignored=ignored,
            number=(enqueued.id or None) if committed else None,
        )
        for call, enqueued in zip(calls, found, strict=True)
    ]


def _check_id(id: object) -> str:
    """*id* as text. Raises :class:`ConfigurationError` for what cannot be one."""
    if (isinstance(id, str) and id) or (isinstance(id, int) and not isinstance(id, bool)):
        return str(id)
    if hasattr(id, "send_task"):
        raise ConfigurationError(f"the id comes first, as in AsyncResult(17, app=app); {id!r:.80} is an app.")
    raise ConfigurationError(
        f"{id!r:.80} is not the id of a task: give its number, or the string that was its task_id."
    )


def _check_app(app: Application | None, id: str) -> Application:
    if app is None:
        raise ConfigurationError(f"AsyncResult({id!r:.80}) needs its app: AsyncResult({id!r:.80}, app=app).")
    if not hasattr(app, "send_task"):
        raise ConfigurationError(f"{app!r:.80} is not an app of fbtasks: AsyncResult({id!r:.80}, app=app).")
    return app
