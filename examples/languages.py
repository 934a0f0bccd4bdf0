"""Work for rows that appear in a table, whichever program writes them: one after the other, or several at once."""

import os
import time

from fbtasks import Change, FBTasks

app = FBTasks("languages")


@app.on_change("LANGUAGES", insert=True, order="total", queue="in_order")
def in_order(change: Change) -> None:
    ring_bell(change)


@app.on_change("DIALECTS", insert=True, order=None, queue="at_once")
def at_once(change: Change) -> None:
    ring_bell(change)


def ring_bell(change: Change) -> None:
    with open(os.environ["BELL"], "a") as file:
        file.write(f"{change.key['ID']} {os.getpid()} {time.time()}\n")
