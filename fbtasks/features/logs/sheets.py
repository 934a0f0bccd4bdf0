"""Logs of tasks in dashboards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fbtasks.features.logs import store
from fbtasks.queue.results import number_of
from fbtasks.sheet import Detail, Line, Private, Ref, Sheet, TaskRef
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session

_NEWER: Final = 2**63 - 1
"""More than the number of any task."""
_ROWS: Final = 25
"""Rows that a page shows of a task, the last ones, of up to 8,000 bytes each."""


class LogSheet(Sheet):
    """Tasks of which lines are kept, the newest first; and the lines of each, by try."""

    name = "logs"
    title = "Logs"
    empty = "No task has kept lines of its log: with keep_logs=True it keeps what it logs from INFO on."

    def lines(self, session: Session, after: str | None, most: int) -> Sequence[Line]:
        """Returns some of the tasks."""
        below = _NEWER if after is None else number_of(after) or 0
        return [_line(*row) for row in store.newest(session, below, most)]

    def detail(self, session: Session, key: str) -> Detail | None:
        """Returns the lines of a task."""
        task = number_of(key) or 0
        tables: dict[str, list[dict[str, object]]] = {}
        found = store.newest(session, task + 1, 1)
        if not found or found[0][0] != task:
            return None
        for log in store.of_task(session, task, most=_ROWS):
            began = f", {log.lines[0].time:%Y-%m-%d %H:%M:%S} UTC" if log.lines else ""
            # A crash is no try: what follows has the same number, and may begin in the same second.
            tables.setdefault(f"Try {log.try_number}{began}", []).extend(
                {"Time": each.time, "Level": each.level, "Logger": each.logger, "Line": Private(each.text)}
                for each in log.lines
            )
        return Detail(line=_line(*found[0]), tables=tables)

    def of_task(self, session: Session, task: int) -> Mapping[str, object]:
        """Returns what leads to the lines of a task."""
        tries, lines = store.size(session, task)
        return {"Log": Ref(self.name, str(task), count(lines, "line"))} if tries else {}


def _line(task: int, name: str | None, tries: int, lines: int, written: datetime) -> Line:
    cells = {
        "Task": TaskRef(task),
        "Name": name,
        "Tries": tries,
        "Lines": Ref("logs", str(task), str(lines)),
        "Written": written,
    }
    return Line(key=str(task), cells=cells)
