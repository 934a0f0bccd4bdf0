"""Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Feature, Told
from fbtasks.states import State

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session
    from fbtasks.queue.holds import Hold
    from fbtasks.queue.results import QueueRow
    from fbtasks.tasks.call import TaskRow


class Workflows(Feature):
    """Workflows: chains, groups, chords, replacing a task, and the results that steps are given."""

    name = "workflows"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"DECIDE", "ENDED", "FOLLOWS_RUNNING", "FORGOTTEN", "KEEPS", "REVIVED", "REVIVING"})

    def describe(self, session: Session, task: TaskRow, holds: Sequence[Hold], queue: QueueRow) -> Told:
        """Returns why a step waits."""
        if task.state is not State.AWAITING:
            return Told()
        return Told([f"a step that it follows has not ended: fbtasks inspect workflow {task.id}"])
