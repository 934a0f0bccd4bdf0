"""The errors of fbtasks: each says what was wrong, with which value, and what to do next.

Everything raised on purpose derives from :class:`FBTasksError`. Errors of the database driver never reach
a caller as they are: the store translates them in one place and keeps the original as ``__cause__``.
An error raised without a message uses its class docstring's first line as the message.
"""

from __future__ import annotations


class FBTasksError(Exception):
    """Something went wrong in fbtasks."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])


class ConfigurationError(FBTasksError):
    """A setting, an option or a URL cannot be used as given."""


class TaskDefinitionError(FBTasksError):
    """A task cannot be defined this way."""


class UnknownTaskError(FBTasksError):
    """No task of that name is known."""


class UnknownQueueError(FBTasksError):
    """The queue is not one of those that the app declares."""


class EnqueueError(FBTasksError):
    """The call cannot be enqueued; nothing was written."""


class QueueFull(EnqueueError):
    """The queue holds as many tasks as it may; nothing was enqueued."""


class DuplicateTask(EnqueueError):
    """A task with the same key has not begun yet, and the task's conflict='raise' refuses another call of it.

    ``existing`` is the id of that one: ``app.AsyncResult(error.existing)``. It is None when two calls of one
    ``delay_many`` have one key.
    """

    def __init__(self, message: str | None = None, *, existing: str | None = None) -> None:
        super().__init__(message)
        self.existing = existing


class SerializationError(FBTasksError):
    """A value cannot be turned into a payload, or a payload cannot be read."""


class ContentDisallowed(SerializationError):
    """The payload's content type is not accepted here, or its signature does not hold."""


class CaptureError(FBTasksError):
    """A change of a table could not be recorded as it was: an expression of the trigger failed."""


class PayloadTooLarge(EnqueueError):
    """The payload is larger than the configured limit."""


class DatabaseError(FBTasksError):
    """Something is wrong with the database or with what was asked of it."""


class DatabaseUnavailable(DatabaseError):
    """The database cannot be reached, or the connection to it was lost."""


class DatabaseShutDown(DatabaseUnavailable):
    """The database is shut down for maintenance, and lets in its administrators alone."""


class DatabaseReplaced(DatabaseUnavailable):
    """The database was deleted, or replaced by another one or by a copy, while this process worked on it."""


class StatementRefused(DatabaseError):
    """The database does not take a statement, and would not take it the next time.

    A constraint or a trigger objects to it, a privilege is missing, a value is too long, or the statement is wrong.
    """


class AuthenticationError(StatementRefused):
    """The server does not accept the user or the password, or grants it too little."""


class ConflictError(DatabaseError):
    """Another transaction has the record; the statement can be tried again."""


class DuplicateKey(StatementRefused):
    """A unique key already exists."""


class EngineError(DatabaseError):
    """The Firebird client library or engine cannot be used as it is on this machine."""


class SchemaError(DatabaseError):
    """The database's schema is not the one this version needs."""


class ForeignDatabaseError(SchemaError):
    """The database is a copy: it was restored or moved, and was not adopted yet."""


class PoolTimeout(DatabaseUnavailable):
    """No connection became free in time."""


class ForkError(DatabaseError):
    """This process was forked while a connection was open, and must not use the database."""


class TaskNotFound(FBTasksError):
    """The database knows no task with this id."""


class ResultTimeout(FBTasksError, TimeoutError):
    """The task has not ended in time."""


class TaskFailure(FBTasksError):
    """The task failed with an exception that cannot be rebuilt in this process.

    Its message is the remote exception's type and message; the remote traceback is in its notes.
    """


class TaskRevoked(FBTasksError):
    """The task was cancelled, or expired before it began."""


class ChordError(FBTasksError):
    """A member of the group that the task follows has failed, so that it cannot run."""


class WorkerLost(FBTasksError):
    """The process that ran the task died, more often than is allowed."""


class SoftTimeLimitExceeded(FBTasksError):
    """The task has run for longer than its soft_time_limit; it may still clean up."""


class TimeLimitExceeded(FBTasksError):
    """The task ran for longer than its time_limit and was stopped."""


class HeartbeatTimeout(TimeLimitExceeded):
    """The task did not say for its heartbeat_timeout that it is at work, and was stopped."""


class EnqueueUncertain(DatabaseUnavailable):
    """The connection was lost while the call was committed, and whether it was enqueued cannot be told.

    ``task_id`` is the id under which the call may be found: ``app.AsyncResult(error.task_id)``.
    """

    def __init__(self, message: str | None = None, *, task_id: str = "") -> None:
        super().__init__(message)
        self.task_id = task_id


class CommitUncertain(DatabaseUnavailable):
    """The connection was lost during a commit, so whether it took effect is not known."""
