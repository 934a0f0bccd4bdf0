"""fbtasks, with tasks that are called for new rows of a table; each process notes which, and when."""

from __future__ import annotations

import os
import struct
import time
from typing import Final

from fbtasks import Change, FBTasks

NOTES: Final = "BENCH_NOTES"
"""The variable with the folder of the files."""
NOTE: Final = struct.Struct("=qq")
"""What a call notes: the key of the row, and the time in nanoseconds."""
TABLE: Final = "LANGUAGES"
KEY: Final = "LANGUAGE_ID"

app = FBTasks("fbtasks-bench-changes")
"""Its database is that of the environment's FBTASKS_URL."""
_file = -1


@app.on_change(TABLE, insert=True, order="total", queue="total", name="total", columns=("NAME", "YEAR_RELEASED"))
def in_order(change: Change) -> None:
    """Called for one row after the other."""
    _note(change)


@app.on_change(TABLE, insert=True, order=None, queue="parallel", name="parallel", columns=("NAME", "YEAR_RELEASED"))
def parallel(change: Change) -> None:
    """Called for each row, in any order."""
    _note(change)


def _note(change: Change) -> None:
    """Adds a note to the file of this process."""
    global _file
    if _file < 0:
        _file = os.open(f"{os.environ[NOTES]}/{os.getpid()}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(_file, NOTE.pack(change.key[KEY], time.monotonic_ns()))
