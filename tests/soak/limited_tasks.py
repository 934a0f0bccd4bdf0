"""The tasks of the soak that have limits, are unique, are steps of workflows, or are enqueued by a schedule.

Each run writes into the ledger which places it has (``lanes``) and what it was given (``got``), so that the account can
tell without the database how many there were at once, and in which order.
"""

import time

from fbtasks import Unique, current_request
from soak.limited import LIMITS, RATE, lanes_of
from soak.sources import refuses
from soak.tasks import Refusal, app, recorded

for _name in ("alone", "few", "several"):
    app.limit(_name, at_once=LIMITS[_name])
app.limit("fast", rate=f"{RATE}/s")


def work(kind, ref, key, seconds):
    with recorded(ref, kind, lanes=lanes_of(kind, key)):
        time.sleep(seconds)


@app.task(limits={"alone": "key"})
def alone(ref, key, seconds):
    work("alone", ref, key, seconds)


@app.task(limits={"few": "key"})
def few(ref, key, seconds):
    work("few", ref, key, seconds)


@app.task(limits="several")
def several(ref, key, seconds):
    work("several", ref, key, seconds)


@app.task(limits={"alone": lambda ref, key, seconds: f"gated {key}", "few": "key", "several": None})
def gated(ref, key, seconds):
    work("gated", ref, key, seconds)


@app.task(
    bind=True, ordered="key", max_retries=3, autoretry_for=(Refusal,), default_retry_delay=0.1, retry_jitter=False
)
def ordered(self, ref, key, seconds):
    with recorded(ref, "ordered", lanes=lanes_of("ordered", key)):
        time.sleep(seconds)
        if self.request.retries == 0 and refuses(ref, 15):
            raise Refusal(ref)


@app.task(limits="fast")
def rated(ref):
    with recorded(ref, "rated"):
        return


@app.task(unique=Unique(by="key"))
def once(ref, key):
    with recorded(ref, "once"):
        time.sleep(0.02)


@app.task(max_retries=0)
def step(*given):
    """Called with its ref and whether it fails, behind the result of the step before it."""
    *got, ref, fails = given
    with recorded(ref, "step", got=got):
        if fails:
            raise Refusal(ref)
        return ref


@app.task(max_retries=0)
def member(ref, fails):
    with recorded(ref, "member"):
        if fails:
            raise Refusal(ref)
        return ref


@app.task(max_retries=0)
def body(results, ref):
    with recorded(ref, "body", got=results):
        return ref


@app.periodic(every=1, missed="all", name="each second")
@app.task
def tick():
    with recorded(f"tick {current_request().eta}", "tick"):
        return
