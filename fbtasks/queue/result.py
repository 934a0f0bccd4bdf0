"""Results: what became of a call, asked for by its id."""

from __future__ import annotations

from collections.abc import Callable, Generator
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

from fbtasks.errors import ConfigurationError, ResultTimeout, TaskNotFound, TaskRevoked
from fbtasks.firebird.session import Session
from fbtasks.queue import results, tasks
from fbtasks.queue.notify.outcomes import Wait
from fbtasks.states import State, celery_name
from fbtasks.system.showing import count, ending
from fbtasks.tasks.call import Failed, Stored
from fbtasks.tasks.celery_words import AnswersCelery
from fbtasks.tasks.remote_error import rebuild_exception
from fbtasks.tasks.serialize import Payload

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

R = TypeVar("R", covariant=True)
T = TypeVar("T")


class AsyncResult(AnswersCelery, Generic[R]):
    """The result of a call that may not have run yet.

    States have Celery's names: PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED. An id that the database does
    not know (never enqueued, not committed yet, pruned, or a success whose result is ignored) is PENDING; so is,
    for a user of a server who may only enqueue, the task of another user.
    """

    _known_as = "a result"
    app: FBTasks

    def __init__(
        self,
        id: str | int,
        app: FBTasks | None = None,
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
        self._ignored = ignored
        self._number = number
        self._seen = False

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
        """The result of the task, or the exception that :meth:`get` would raise.

        While it runs, what it has said last by ``self.update_state``; else None. Nothing is waited for.
        """
        stored = self._stored()
        if stored is not None:
            return self._value_or_error(stored)
        said = self._progress()
        from fbtasks.tasks import formats

        return None if said is None else formats.load_json(said[1])

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

    def forget(self) -> bool:
        """Deletes the outcome. False when there is none."""
        with self.app.database.session() as session:
            number = self._find(session)
            return number is not None and bool(session.call("FBTASKS_READER.DISMISS", number))

    @overload
    def get(self, timeout: float | None = None, propagate: Literal[True] = True) -> R: ...
    @overload
    def get(self, timeout: float | None = None, propagate: bool = True) -> R | BaseException: ...
    def get(self, timeout: float | None = None, propagate: bool = True) -> Any:
        """The task's result, waited for up to *timeout* seconds (None: as long as it lives).

        With *propagate* false, the exception of a task that has failed or was cancelled is returned, and not raised.

        Raises the task's own exception where its type can be rebuilt in this process, else
        :class:`TaskFailure`, with the remote traceback in its notes; :class:`TaskRevoked` when it was
        cancelled or expired; :class:`ResultTimeout` when it has not ended in time, with what is known of it;
        :class:`TaskNotFound` when the database has not known the id for five seconds. A task that ended with its result
        ignored returns None.
        """
        wait = self._wait()
        self.app.outcomes.wait([wait], timeout, lambda: self._note(wait))
        if self._is_late(wait):
            raise self._timeout(timeout, self._tell())
        return self._end(wait, propagate=propagate)

    async def aget(self, timeout: float | None = None) -> R:
        """Waits for the result in a coroutine. The event loop goes on meanwhile, and the wait may be cancelled.

        All coroutines that wait for results of the app share one thread, which asks the database for all at once.
        """
        wait = self._wait()
        await self.app.outcomes.until_over(wait, timeout)
        self._note(wait)
        if self._is_late(wait):
            from asyncio import to_thread  # which is there then

            raise self._timeout(timeout, await to_thread(self._tell))
        return cast(R, self._end(wait))

    def __await__(self) -> Generator[Any, None, R]:
        """The result, as :meth:`aget` returns it."""
        return self.aget().__await__()

    def _wait(self) -> Wait:
        return Wait(self.id, self._number, seen=self._seen, ignored=self._ignored)

    def _note(self, wait: Wait) -> None:
        self._number, self._seen = wait.number, wait.seen

    @staticmethod
    def _is_late(wait: Wait) -> bool:
        """Whether the task has not ended in time, as the database says."""
        return not wait.over and wait.error is None

    def _timeout(self, timeout: float | None, known: str) -> ResultTimeout:
        assert timeout is not None  # a wait without one ends with a result, or an error
        after = f" after {count(timeout, 'second')}" if timeout else ""
        return ResultTimeout(f"task {self.id} has not ended{after}: {ending(known)}")

    def _tell(self) -> str:
        """Returns what is known of the task, which has not ended."""
        from fbtasks.queue.operations.waiting import tell  # those whose results come in time do not pay for it

        return tell(self.app.database, self.id, self.app.path)

    def _end(self, wait: Wait, *, propagate: bool = True) -> Any:
        if wait.error is not None:
            raise copy(wait.error)  # other waits may have it as well, and each has a traceback of its own
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
        """Returns the state and the JSON that the running task has set; None: it has set none."""
        return None

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


def _check_id(id: object) -> str:
    """*id* as text. Raises :class:`ConfigurationError` for what cannot be one."""
    if (isinstance(id, str) and id) or (isinstance(id, int) and not isinstance(id, bool)):
        return str(id)
    if hasattr(id, "send_task"):
        raise ConfigurationError(f"the id comes first, as in AsyncResult(17, app=app); {id!r:.80} is an app.")
    raise ConfigurationError(
        f"{id!r:.80} is not the id of a task: give its number, or the string that was its task_id."
    )


def _check_app(app: FBTasks | None, id: str) -> FBTasks:
    if app is None:
        raise ConfigurationError(f"AsyncResult({id!r:.80}) needs its app: AsyncResult({id!r:.80}, app=app).")
    if not hasattr(app, "send_task"):
        raise ConfigurationError(f"{app!r:.80} is not an app of fbtasks: AsyncResult({id!r:.80}, app=app).")
    return app
