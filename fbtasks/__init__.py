"""Background tasks for applications whose data lives in Firebird: the queue is a table of your database."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.definition import Request, Task, current_request, task
    from fbtasks.errors import (
        AuthenticationError,
        ConfigurationError,
        ConflictError,
        ContentDisallowed,
        DatabaseError,
        DatabaseReplaced,
        DatabaseUnavailable,
        EngineError,
        EnqueueError,
        EnqueueUncertain,
        FBTasksError,
        ForeignDatabaseError,
        ForkError,
        PayloadTooLarge,
        PoolTimeout,
        ResultTimeout,
        SchemaError,
        SerializationError,
        SoftTimeLimitExceeded,
        TaskDefinitionError,
        TaskFailure,
        TaskNotFound,
        TaskRevoked,
        TimeLimitExceeded,
        UnknownQueueError,
        UnknownTaskError,
        WorkerLost,
    )
    from fbtasks.result import AsyncResult
    from fbtasks.retry import RetryPolicy, RetryRule

__all__ = [
    "AsyncResult",
    "AuthenticationError",
    "ConfigurationError",
    "ConflictError",
    "ContentDisallowed",
    "DatabaseError",
    "DatabaseReplaced",
    "DatabaseUnavailable",
    "EngineError",
    "EnqueueError",
    "EnqueueUncertain",
    "FBTasks",
    "FBTasksError",
    "ForeignDatabaseError",
    "ForkError",
    "PayloadTooLarge",
    "PoolTimeout",
    "Request",
    "ResultTimeout",
    "RetryPolicy",
    "RetryRule",
    "SchemaError",
    "SerializationError",
    "SoftTimeLimitExceeded",
    "Task",
    "TaskDefinitionError",
    "TaskFailure",
    "TaskNotFound",
    "TaskRevoked",
    "TimeLimitExceeded",
    "UnknownQueueError",
    "UnknownTaskError",
    "WorkerLost",
    "current_request",
    "task",
]

_HOMES = {
    "app": ("FBTasks",),
    "result": ("AsyncResult",),
    "retry": ("RetryPolicy", "RetryRule"),
    "definition": ("Request", "Task", "current_request", "task"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: ``fbtasks --help`` needs none of them."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "errors")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value
