"""The option of ``@app.task`` that logs add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks.options import CommonOptions

if TYPE_CHECKING:
    from fbtasks.tasks.definition import Task


@dataclass(frozen=True, kw_only=True)
class LoggedTask(CommonOptions):
    """The option of every task."""

    keep_logs: Annotated[bool | None, optional(checks.flag)] = None


def keeps_logs(task: Task[..., Any]) -> bool:
    """Whether what *task* logs is kept: as it says, or else its app. Batches keep nothing."""
    own: bool | None = getattr(task.options, "keep_logs", None)
    return task.app.settings.keep_logs and task.options.batching is None if own is None else own
