"""The stack of a running task in dashboards: asked for by each look at its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fbtasks.features.stacks.operations import ask
from fbtasks.queue import results
from fbtasks.queue.results import number_of
from fbtasks.sheet import Detail, Line, Ref, Sheet, TaskRef
from fbtasks.states import State

if TYPE_CHECKING:
    from fbtasks.app import FBTasks
    from fbtasks.firebird.session import Session


class StackSheet(Sheet):
    """Where running tasks are. It has no list."""

    name = "stacks"
    title = ""

    def __init__(self, app: FBTasks) -> None:
        self._app = app

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:  # noqa: ARG002
        """Returns nothing: the lists of running tasks are elsewhere."""
        return ()

    def detail(self, session: Session, key: str) -> Detail | None:
        """Asks the worker of a running task for its stack."""
        row = results.find(session, number_of(key) or 0)
        if row is None:
            return None
        line = Line(key=key, cells={"Task": TaskRef(row.id), "Name": row.name, "Worker": row.worker})
        runs = row.state is State.RUNNING
        stack = ask(self._app.database, session, row) if runs else f"It does not run: it is {row.state.name.lower()}."
        return Detail(line=line, facts={"Stack": stack})

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns what leads to the stack of a task that runs."""
        found = results.state(session, task)
        runs = found is not None and found[0] is State.RUNNING
        return {"Stack": Ref(self.name, str(task), "where it is now")} if runs else {}
