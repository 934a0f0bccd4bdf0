"""Transactional tasks: their effects and their outcome are one transaction of one connection.

They run in child processes, or in the worker's own process in the solo pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from fbtasks import timing as clock
from fbtasks.errors import (
    CommitUncertain,
    ConflictError,
    DatabaseError,
    DatabaseUnavailable,
    SchemaError,
    TaskDefinitionError,
)
from fbtasks.firebird.driver.translate import connection_was_killed
from fbtasks.firebird.embedded.hostlock import HostLock
from fbtasks.firebird.session import Session
from fbtasks.queue.recording import Recorder
from fbtasks.run.claimed import SAVEPOINT
from fbtasks.run.invocation import Note, RunResult
from fbtasks.run.runner import Runner
from fbtasks.tasks.call import RELEASED, Cancelled, Claim, FeatureOutcome, Finished, Reason, Stale, Succeeded, reason_of
from fbtasks.timing import Backoff

if TYPE_CHECKING:
    from fbtasks.firebird.driver.lent import TaskTransaction

logger = logging.getLogger(__name__)

HELD_MOST: Final = 5.0
"""Seconds for which a transactional task whose row another transaction holds waits before its effects are undone."""
HELD_FIRST: Final = 0.05
HELD_LAST: Final = 0.5
"""Seconds between its attempts: twice as many each time, up to the latter."""


class TransactionalRunner:
    """Runs transactional tasks on a connection of its own."""

    def __init__(self, runner: Runner, worker_id: Callable[[], int], stat_slot: int) -> None:
        self._runner = runner
        self._worker_id = worker_id
        self._session: Session | None = None
        self._stat_slot = stat_slot
        self._recorder: Recorder | None = None

    def run(self, claim: Claim, note: Note | None = None) -> RunResult:
        """Runs the task.

        When the connection is lost the task is given back: its effects are undone, or they were committed together
        with its outcome, and then the claim is stale. But when the database has ended that connection alone, by an
        administrator's hand or a timeout, it would do so each time: that is the task's own error. So is what else the
        database refuses, such as a commit that a trigger objects to; and a task that has ended the transaction itself
        fails, whatever it does then. When the claim is stale, the log says so here; the outcome is Released then, and
        counts as recorded.
        """
        started = clock.monotonic()
        try:
            return self._run(claim, self._open(), note)
        except (DatabaseUnavailable, SchemaError) as error:
            logger.warning("Task %s lost its connection: %s", claim.label, error)
            self._disconnect(lost=isinstance(error, DatabaseUnavailable))
            return RunResult(Finished(claim, RELEASED))
        except (DatabaseError, TaskDefinitionError) as error:
            self._disconnect()
            refusal = error  # which is no context of what hooks and middlewares raise
        return self._runner.refused(claim, refusal, clock.monotonic() - started)

    def _run(self, claim: Claim, session: Session, note: Note | None) -> RunResult:
        from fbtasks.firebird.driver.lent import task_transaction  # brings the driver, which other tasks can do without

        with task_transaction(session) as transaction:
            try:
                return self._run_in(transaction, claim, session, note)
            except CommitUncertain:  # it may have taken effect
                raise
            except DatabaseUnavailable as error:
                if not self._ended_alone(error):
                    raise
                refusal = error
            return self._runner.refused(claim, refusal)

    def _run_in(self, transaction: TaskTransaction, claim: Claim, session: Session, note: Note | None) -> RunResult:
        with transaction.lent():
            result = self._runner.run(claim, transaction, note)
        (_, outcome, elapsed, _), raised, done, *_ = result
        misuse = transaction.misuse()
        if misuse is not None:
            self._disconnect(lost=True)
            if isinstance(outcome, Succeeded | FeatureOutcome) or reason_of(outcome) in (Reason.RETRY, Reason.SNOOZE):
                return self._runner.refused(claim, misuse, elapsed)
            logger.error("Task %s: %s", claim.label, misuse)
            return result
        if done and reason_of(outcome) is not Reason.CONTINUE:
            transaction.undo_to(SAVEPOINT)  # the call that has failed
        if done or isinstance(result.finished.outcome, Succeeded | FeatureOutcome):
            return self._commit(transaction, result)
        transaction.rollback()
        self._look_at(session, raised)
        if result.finished.outcome == Cancelled("stopped"):
            self._disconnect()  # this process may be killed next, and must not hold anything then
        return result

    def _look_at(self, session: Session, raised: BaseException | None) -> None:
        """Looks whether the connection still serves, when the task *raised* something.

        Raises :class:`DatabaseUnavailable` when it is lost and the task is not to blame.
        """
        try:
            session.ping()
        except DatabaseUnavailable as error:
            if not self._ended_alone(error, raised):
                raise

    def _commit(self, transaction: TaskTransaction, result: RunResult) -> RunResult:
        """Commits the effects together with the outcome, or undoes them."""
        done = result.finished
        claim = done.claim
        refusal: ConflictError | None = None
        try:
            stale = self._record(transaction, done)
        except ConflictError as error:
            refusal = error
        if refusal is not None:
            transaction.rollback()
            return self._runner.refused(claim, refusal, done.elapsed)
        if stale is None:
            return result._replace(finished=done._replace(recorded=True))
        transaction.rollback()  # the effects belong to the claim that stands
        held = stale.stands == claim.claim_id
        if held:
            logger.warning(
                "Task %s had ended, but another transaction held its row for %g s: its effects are undone.",
                claim.label,
                HELD_MOST,
            )
        else:
            logger.warning(
                "Task %s ended too late and its effects are undone: its claim is %d now, not %d.",
                claim.label,
                stale.stands,
                claim.claim_id,
            )
        return RunResult(Finished(claim, RELEASED, done.elapsed, recorded=not held))

    def _record(self, transaction: TaskTransaction, done: Finished) -> Stale | None:
        """Records the outcome together with the effects. Returns why it cannot be done, if so.

        While another transaction holds the task's row this waits for a while, but outside of the host's lock, which all
        workers need.
        """
        until, pauses = clock.monotonic() + HELD_MOST, Backoff(HELD_FIRST, HELD_LAST)
        while True:
            assert self._recorder is not None  # as the session is there
            stale = self._recorder.record_effect(transaction, self._worker_id(), done)
            if stale is None or stale.stands != done.claim.claim_id or clock.monotonic() >= until:
                return stale
            clock.sleep(pauses.next())

    def _ended_alone(self, *errors: BaseException | None) -> bool:
        """Whether *errors* say that the database ended this connection, while it lets a new one in at once."""
        self._disconnect(lost=True)
        if not any(map(connection_was_killed, errors)):
            return False
        try:
            self._open()
        except DatabaseError:
            return False
        return True

    def _open(self) -> Session:
        app = self._runner.app
        self._session = self._session or app.database.open(app.settings.url.charset)
        if self._recorder is None:
            self._recorder = Recorder(HostLock(app.settings.url), app.features, self._stat_slot)
        return self._session

    def cancel_statement(self) -> None:
        """Cancels the statement that the task runs; from another thread."""
        if self._session is not None:
            self._session.cancel_statement()

    def _disconnect(self, *, lost: bool = False) -> None:
        if self._session is not None:
            self._session.close(lost=lost)
            self._session = None

    def close(self) -> None:
        """Closes the connection, and gives up the host's lock."""
        self._disconnect()
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None
