"""Results: what became of a call, asked for by its id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from fbtasks import clock
from fbtasks.call import Stored
from fbtasks.errors import ResultTimeout, SerializationError, TaskFailure, TaskNotFound, TaskRevoked
from fbtasks.serialize import Payload, RemoteError, rebuild_exception
from fbtasks.states import State, celery_name
from fbtasks.store import results
from fbtasks.store.session import Session

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

R = TypeVar("R", covariant=True)

GRACE: Final = 5.0
"""Seconds that ``get()`` waits for an id the database does not know: its transaction may still commit."""
POLL_FIRST: Final = 0.02
POLL_LAST: Final = 1.0


class AsyncResult(Generic[R]):
    """The result of a call that may not have run yet.

    States have Celery's names: PENDING, STARTED, RETRY, SUCCESS, FAILURE, REVOKED. An id that the database does
    not know (never enqueued, not committed yet, pruned, or a success whose result is ignored) is PENDING; so is,
    for a user of a server who may only enqueue, the task of another user.
    """

    def __init__(self, app: FBTasks, id: str, *, duplicate: bool = False, ignored: bool = False) -> None:
        self.app = app
        self.id = id
        self.duplicate = duplicate
        """Whether a task of this ``task_id`` was there already, so that this call enqueued nothing."""
        self._ignored = ignored
        self._number: int | None = None
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
        return "PENDING" if found is None else celery_name(*found)

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

    def revoke(self, *, terminate: bool = False) -> bool:
        """Cancels the task if it waits. False when it has ended or is not known.

        One that runs may end as it does, and is not tried again; with *terminate* its worker stops it.
        """
        with self.app.database.session() as session:
            number = self._find(session)
            if number is None:
                return False
            return session.run(lambda t: results.revoke(t, number, terminate=terminate), point="cancel") is not None

    def forget(self) -> bool:
        """Deletes the outcome. False when there is none."""
        with self.app.database.session() as session:
            number = self._find(session)
            return number is not None and session.run(lambda t: results.dismiss(t, number))

    def get(self, timeout: float | None = None) -> R:
        """The task's result, waited for up to *timeout* seconds (None: as long as it lives).

        Raises the task's own exception where its type can be rebuilt in this process, else
        :class:`TaskFailure`, with the remote traceback in its notes; :class:`TaskRevoked` when it was
        cancelled or expired; :class:`ResultTimeout` when it has not ended in time; :class:`TaskNotFound` when
        the database has not known the id for five seconds. A task that ended with its result ignored gives None.
        """
        started = clock.monotonic()
        absent_since: float | None = None
        with self.app.waiting() as waiter:
            pause = POLL_FIRST
            while True:
                stored = self._stored()
                if stored is not None:
                    return self._value(stored)
                now = clock.monotonic()
                if self._live() is not None:
                    self._seen, absent_since = True, None
                elif (stored := self._stored()) is not None:  # it ended between the two looks
                    return self._value(stored)
                elif self._seen or self._ignored:
                    return cast(R, None)
                else:
                    absent_since = absent_since or now
                left = None if timeout is None else started + timeout - now
                if absent_since is not None and now - absent_since >= GRACE:
                    raise TaskNotFound(
                        f"the database knows no task {self.id!r}: it was never committed, was pruned, or succeeded "
                        "with ignore_result."
                    )
                if left is not None and left <= 0:
                    raise ResultTimeout(f"task {self.id} has not ended after {timeout:g} seconds; it goes on.")
                waiter.wait(pause if left is None else min(pause, left))
                pause = min(pause * 1.5, POLL_LAST)

    def __await__(self) -> Generator[Any, None, R]:
        """The result, waited for in a thread so that the event loop goes on."""
        return asyncio.to_thread(self.get).__await__()

    def _find(self, session: Session) -> int | None:
        if self._number is None:
            self._number = results.find_id(session, self.id)
        return self._number

    def _stored(self) -> Stored | None:
        def read(session: Session) -> Stored | None:
            number = self._find(session)
            return None if number is None else results.outcome(session, number)

        return self.app.database.use(read)

    def _state(self) -> tuple[State, int] | None:
        def read(session: Session) -> tuple[State, int] | None:
            number = self._find(session)
            return None if number is None else results.state(session, number)

        return self.app.database.use(read)

    def _live(self) -> tuple[State, int] | None:
        found = self._state()
        return found if found is not None and found[0].live else None

    def _value(self, stored: Stored) -> R:
        if stored.state is State.CANCELLED:
            raise TaskRevoked(f"task {self.id} did not run to its end: {stored.error_msg or 'cancelled'}.")
        if stored.state is State.FAILED:
            raise self._exception(stored)
        payload = Payload(stored.content_type or "application/json", stored.result or b"null")
        return cast(R, self.app.serializer.load_result(payload))

    def _exception(self, stored: Stored) -> BaseException:
        remote = RemoteError(
            type_name=stored.error_type or "",
            message=stored.error_msg or "",
            args_payload=stored.result or _own_arguments(stored),
            traceback=stored.traceback or "",
        )
        try:
            return rebuild_exception(remote)
        except SerializationError:
            return TaskFailure(f"{remote.type_name}: {remote.message}")


def _own_arguments(stored: Stored) -> bytes | None:
    """What an error of fbtasks is called with that was made in the database, such as WorkerLost: its message."""
    if (stored.error_type or "").startswith("fbtasks.errors."):
        return json.dumps([stored.error_msg]).encode("ascii")
    return None
