"""Background tasks for applications whose data lives in Firebird: the queue is a table of your database."""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fbtasks.app import FEATURES, AsyncResult, FBTasks, Task, shared_task, task
    from fbtasks.errors import (
        AuthenticationError,
        CaptureError,
        ChordError,
        ConfigurationError,
        ConflictError,
        ContentDisallowed,
        DatabaseError,
        DatabaseReplaced,
        DatabaseShutDown,
        DatabaseUnavailable,
        DuplicateTask,
        EngineError,
        EnqueueError,
        EnqueueUncertain,
        FBTasksError,
        ForeignDatabaseError,
        ForkError,
        HeartbeatTimeout,
        PayloadTooLarge,
        PoolTimeout,
        QueueFull,
        ResultTimeout,
        SchemaError,
        SerializationError,
        SoftTimeLimitExceeded,
        StatementRefused,
        TaskDefinitionError,
        TaskFailure,
        TaskNotFound,
        TaskRevoked,
        TimeLimitExceeded,
        UnknownQueueError,
        UnknownTaskError,
        WorkerLost,
    )
    from fbtasks.feature import Feature
    from fbtasks.features.limits.definition import Ordered, Unique, debounce
    from fbtasks.features.sources.kinds.changes import Change
    from fbtasks.features.sources.kinds.events import Event
    from fbtasks.features.sources.kinds.rows import Row
    from fbtasks.features.workflows.canvas import Signature, chain, chord, group
    from fbtasks.features.workflows.group_result import GroupResult
    from fbtasks.tasks.middleware import OutgoingCall
    from fbtasks.tasks.request import Request, current_request
    from fbtasks.tasks.retry import RetryPolicy, RetryRule

__all__ = [
    "FEATURES",
    "AsyncResult",
    "AuthenticationError",
    "CaptureError",
    "Change",
    "ChordError",
    "ConfigurationError",
    "ConflictError",
    "ContentDisallowed",
    "DatabaseError",
    "DatabaseReplaced",
    "DatabaseShutDown",
    "DatabaseUnavailable",
    "DuplicateTask",
    "EngineError",
    "EnqueueError",
    "EnqueueUncertain",
    "Event",
    "FBTasks",
    "FBTasksError",
    "Feature",
    "ForeignDatabaseError",
    "ForkError",
    "GroupResult",
    "HeartbeatTimeout",
    "Ordered",
    "OutgoingCall",
    "PayloadTooLarge",
    "PoolTimeout",
    "QueueFull",
    "Request",
    "ResultTimeout",
    "RetryPolicy",
    "RetryRule",
    "Row",
    "SchemaError",
    "SerializationError",
    "Signature",
    "SoftTimeLimitExceeded",
    "StatementRefused",
    "Task",
    "TaskDefinitionError",
    "TaskFailure",
    "TaskNotFound",
    "TaskRevoked",
    "TimeLimitExceeded",
    "Unique",
    "UnknownQueueError",
    "UnknownTaskError",
    "WorkerLost",
    "chain",
    "chord",
    "current_request",
    "debounce",
    "group",
    "shared_task",
    "task",
]

_HOMES = {
    "app": ("AsyncResult", "FBTasks", "FEATURES", "Task", "shared_task", "task"),
    "feature": ("Feature",),
    "features.workflows.canvas": ("Signature", "chain", "chord", "group"),
    "features.sources.kinds.changes": ("Change",),
    "features.sources.kinds.events": ("Event",),
    "tasks.middleware": ("OutgoingCall",),
    "features.workflows.group_result": ("GroupResult",),
    "tasks.retry": ("RetryPolicy", "RetryRule"),
    "features.sources.kinds.rows": ("Row",),
    "tasks.request": ("Request", "current_request"),
    "features.limits.definition": ("Ordered", "Unique", "debounce"),
}


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first used: ``fbtasks --help`` needs none of them."""
    if name not in __all__:
        raise _unknown(name)
    home = next((module for module, names in _HOMES.items() if name in names), "errors")
    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def _unknown(name: str) -> AttributeError | ImportError:
    """The error for a name that is not there: for a word of Celery's it says what to use here."""
    from importlib.machinery import PathFinder

    missing = f"module {__name__!r} has no attribute {name!r}"
    imports = sys._getframe(2).f_globals.get("__name__") == "importlib._bootstrap"
    if name.startswith("__") or (imports and PathFinder.find_spec(f"{__name__}.{name}", __path__)):
        return AttributeError(missing, name=name)
    from fbtasks.tasks.celery_words import instead

    answer = instead(name, "names", known=__all__)
    if imports:  # "from fbtasks import NAME" replaces the text of an AttributeError, and keeps that of an ImportError
        return ImportError(f"cannot import name {name!r} from {__name__!r}{answer}", name=__name__)
    return AttributeError(f"{missing}{answer}".removesuffix("."), name=name)
