"""The operator: cancels tasks picked at random, and puts failed and cancelled ones back.

``python -m soak.operators SEED``
"""

from __future__ import annotations

import inspect
import random
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

from fbtasks.queue.result import AsyncResult
from soak import tasks
from soak.ledger import Ledger
from soak.settings import Run

NAME = "(SELECT N.TASK_ID FROM QUEUE_TASK_ID N WHERE N.ID = T.ID)"
LIVE = f"SELECT ID, {NAME} FROM QUEUE_TASK T"
RUNNING = f"SELECT ID, {NAME} FROM QUEUE_TASK T WHERE STATE = 2"
ENDED = (
    f"SELECT FIRST 50 ID, {NAME} FROM QUEUE_HISTORY T WHERE STATE = ? AND T.NAME <> 'soak.limited_tasks.tick' "
    "ORDER BY STATE DESC, FINISH_TIME DESC"
)
"""A tick that is put back begins at another time, by which the account knows it: it is left as it is."""


class Operator:
    """Does something every now and then, by the Python API or by the command line."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(f"{seed}/operator")
        self.run = Run.here()
        self.ledger = Ledger(self.run.ledger, "operator")
        self.connection: Any = None
        self.number = 0
        self.terminates = "terminate" in inspect.signature(AsyncResult.revoke).parameters

    def rows(self, sql: str, *values: object) -> list[tuple[int, str | None]]:
        if self.connection is None:
            self.connection = tasks.app.connect()
        with self.connection.cursor() as cursor:
            found = cursor.execute(sql, values).fetchall()
        self.connection.commit()
        return found

    def act(self) -> None:
        what = self.rng.choice(
            ["cancel", "cancel", "cancel running", "cancel running", "retry failed", "retry cancelled"]
        )
        found = {
            "cancel": lambda: self.rows(LIVE),
            "cancel running": lambda: self.rows(RUNNING),
            "retry failed": lambda: self.rows(ENDED, 11),
            "retry cancelled": lambda: self.rows(ENDED, 12),
        }[what]()
        if not found:
            return
        number, task_id = self.rng.choice(found)
        verb = what.split()[0]
        self.number += 1
        id = task_id or str(number)
        self.ledger.write("operator", number=self.number, what=verb, id=id)
        try:
            answer = self.by_api(id) if verb == "cancel" and self.rng.random() < 0.6 else self.by_command(verb, id)
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}"[:300]
        self.ledger.write("answer", number=self.number, what=verb, id=id, answer=answer)

    def by_api(self, id: str) -> str:
        result = tasks.app.AsyncResult(id)
        if self.terminates and self.rng.random() < 0.3:
            return "done" if result.revoke(terminate=True) else "refused"
        return "done" if result.revoke() else "refused"

    def by_command(self, verb: str, id: str) -> str:
        """``cancelled``: it waited, and is over. ``done``: whatever else was done. ``refused``: nothing was."""
        command = [sys.executable, "-m", "fbtasks", verb, id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return "cancelled" if verb == "cancel" and " runs" not in done.stdout else "done"
        if "nothing was changed" in done.stderr or "there is no task" in done.stderr:
            return "refused"
        return f"error {done.stderr.strip()}"[:300]

    def work(self) -> None:
        while self.run.going_on():
            try:
                self.act()
            except Exception as error:
                self.ledger.write("note", text=f"{type(error).__name__}: {error}"[:300])
                self.disconnect()
            time.sleep(self.rng.uniform(0.1, 0.8))
        self.disconnect()
        with suppress(Exception):
            tasks.app.close()

    def disconnect(self) -> None:
        if self.connection is not None:
            with suppress(Exception):
                self.connection.close()
            self.connection = None


if __name__ == "__main__":
    Operator(sys.argv[1]).work()
