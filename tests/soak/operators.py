"""The operator: cancels tasks picked at random, and puts failed and cancelled ones back.

``python -m soak.operators SEED``
"""

import random
import subprocess
import sys
import time
from contextlib import suppress

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

WHAT = (*(("cancel", LIVE),) * 2, *(("cancel", RUNNING),) * 2, ("retry", ENDED, 11), ("retry", ENDED, 12))
"""What is done, to one of the tasks that a query finds."""


class Operator:
    """Does something every now and then, by the Python API or by the command line."""

    def __init__(self, seed):
        self.rng = random.Random(f"{seed}/operator")
        self.run = Run.here()
        self.ledger = Ledger(self.run.ledger, "operator")
        self.connection = None
        self.number = 0

    def rows(self, sql, *values):
        if self.connection is None:
            self.connection = tasks.app.connect()
        with self.connection.cursor() as cursor:
            found = cursor.execute(sql, values).fetchall()
        self.connection.commit()
        return found

    def act(self):
        verb, *statement = self.rng.choice(WHAT)
        found = self.rows(*statement)
        if not found:
            return
        number, task_id = self.rng.choice(found)
        self.number += 1
        id = task_id or str(number)
        self.ledger.write("operator", number=self.number, what=verb, id=id)
        try:
            answer = self.by_api(id) if verb == "cancel" and self.rng.random() < 0.6 else self.by_command(verb, id)
        except Exception as error:
            answer = f"error {type(error).__name__}: {error}"[:300]
        self.ledger.write("answer", number=self.number, what=verb, id=id, answer=answer)

    def by_api(self, id):
        result = tasks.app.AsyncResult(id)
        return "done" if result.revoke(terminate=self.rng.random() < 0.3) else "refused"

    def by_command(self, verb, id):
        """``cancelled``: it waited, and is over. ``done``: whatever else was done. ``refused``: nothing was."""
        command = [sys.executable, "-m", "fbtasks", verb, id]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode == 0:
            return "cancelled" if verb == "cancel" and " runs" not in done.stdout else "done"
        if "nothing was changed" in done.stderr or "there is no task" in done.stderr:
            return "refused"
        return f"error {done.stderr.strip()}"[:300]

    def work(self):
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

    def disconnect(self):
        if self.connection is not None:
            with suppress(Exception):
                self.connection.close()
            self.connection = None


if __name__ == "__main__":
    Operator(sys.argv[1]).work()
