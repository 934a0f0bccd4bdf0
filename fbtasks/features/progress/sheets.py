"""Progress in dashboards: what a task that runs has said last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fbtasks.features.progress.store import of_task
from fbtasks.sheet import Private, Sheet
from fbtasks.tasks.serialize import JSON_TYPE, Payload, show_json

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session


class ProgressSheet(Sheet):
    """No list: it tells of tasks."""

    name = "progress"

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns the word that a task says of itself, and the details in JSON."""
        said = of_task(session, task)
        if said is None:
            return {}
        return {"Progress": Private(said[0]), "Details": Private(show_json(Payload(JSON_TYPE, said[1])))}
