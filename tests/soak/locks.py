"""Locks held beside the workers: rows of the queue's tables, and the lock of the host."""

import threading
import time

AFTER = 1.0
"""Seconds after the end of a lock in which those that waited for it go on."""
ROWS = (
    "SELECT ID FROM QUEUE_TASK WHERE STATE = 2 FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT ID FROM QUEUE_TASK FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT ID FROM QUEUE_CANCEL FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT SUBSCRIPTION_ID FROM QUEUE_DISPATCH FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT ID FROM QUEUE_CHANGE FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT ID FROM SOAK_INBOX WHERE STATUS IN ('R', 'T') FOR UPDATE WITH LOCK SKIP LOCKED",
    "SELECT NO_ FROM QUEUE_PLACE FOR UPDATE WITH LOCK SKIP LOCKED",
)
MOST = 5
"""Rows that one lock takes."""


class Locks:
    """Takes a lock for some seconds in a thread, one of each kind at a time."""

    def __init__(self, database, ledger):
        self._database = database
        self._ledger = ledger
        self._threads = {}
        self._count = 0

    def hold(self, what, seconds):
        """Begins to hold a ``row lock`` or the ``host lock``. False when it is held, or there is none to hold."""
        former = self._threads.get(what)
        if former is not None and former.is_alive():
            return False
        if what == "host lock" and not self._database.parsed.embedded:
            return False
        target = self._hold_rows if what == "row lock" else self._hold_host
        self._count += 1
        self._threads[what] = threading.Thread(target=target, args=(seconds, self._count), daemon=True)
        self._threads[what].start()
        return True

    def wait(self):
        """Waits for the end of all."""
        for thread in self._threads.values():
            thread.join(60)

    def _hold_rows(self, seconds, number):
        connection = None
        try:
            connection = self._database.locking_connection()
            with connection.cursor() as cursor:
                ids = [row[0] for row in cursor.execute(ROWS[number % len(ROWS)]).fetchmany(MOST)]
                if ids:
                    self._told("row lock", seconds, rows=ids)
            connection.rollback()
        except Exception as error:
            self._ledger.write("note", text=f"row lock: {type(error).__name__}: {error}"[:300])
        finally:
            if connection is not None:
                connection.close()

    def _hold_host(self, seconds, number):
        with self._database.host_lock():
            self._told("host lock", seconds)

    def _told(self, what, seconds, **fields):
        self._ledger.write("fault", what=what, target=None, until=time.monotonic() + seconds + AFTER, **fields)
        time.sleep(seconds)
