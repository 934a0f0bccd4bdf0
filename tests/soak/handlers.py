"""The tasks of the soak that sources feed: changes by key, in total order and without one, events, polled rows."""

import time

from soak.settings import Run
from soak.sources import refuses
from soak.tasks import Refusal, app, recorded

CHANGES = {"update": ("N",), "columns": ("REF",)}
AGAIN = {
    "bind": True, "max_retries": 3, "autoretry_for": (Refusal,), "default_retry_delay": 0.1, "retry_jitter": False,
}  # fmt: skip
RETRIED = 15
FAILED = 13
"""One in so many is tried again, or fails for good."""


def take(number, most):
    """Takes up to *most* seconds; none when the time of faults is over, so that the queue drains soon."""
    if Run.here().going_on():
        time.sleep(number % 5 / 4 * most)


@app.on_change("SOAK_ROW", **CHANGES, **AGAIN)
def by_key(self, change):
    with recorded(change.new["REF"], "by_key"):
        take(change.id, 0.02)
        if self.request.retries == 0 and refuses(change.new["REF"], RETRIED):
            raise Refusal(change.new["REF"])


@app.on_change("SOAK_ROW", transactional=True, **CHANGES, **AGAIN)
def effect(self, change):
    ref = change.new["REF"]
    with recorded(ref, "effect") as run:
        with self.connection.cursor() as cursor:
            cursor.execute("INSERT INTO SOAK_CHANGE_EFFECT (REF, RUN) VALUES (?, ?)", (ref, run))
        take(change.id, 0.04)
        if self.request.retries == 0 and refuses(ref, RETRIED):
            raise Refusal(ref)


@app.on_change("SOAK_ROW", order="total", **CHANGES)
def in_total(change):
    with recorded(change.new["REF"], "in_total"):
        take(change.id, 0.08)


@app.on_change("SOAK_ROW", order=None, **CHANGES)
def unordered(change):
    with recorded(change.new["REF"], "unordered"):
        take(change.id, 0.04)


@app.on_event("soak.said")
def heard(event):
    with recorded(event.data["ref"], "heard"):
        take(event.data["n"], 0.01)


@app.on_event("soak.said")
def heard_too(event):
    with recorded(event.data["ref"], "heard_too"):
        return


@app.poll_table(
    "SOAK_INBOX", status="STATUS", ready="R", taken="T", done="D", failed="E", error="ERR", order_by="ID",
    columns=("REF",), every=(0.05, 1), max_retries=0,
)  # fmt: skip
def polled(row):
    with recorded(row.values["REF"], "polled"):
        if refuses(row.values["REF"], FAILED):
            raise Refusal(row.values["REF"])
