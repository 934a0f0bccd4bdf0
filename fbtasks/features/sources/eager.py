"""Events in eager mode: the handlers of the app are called where an event is raised, without a database."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

from fbtasks import timing as clock
from fbtasks.run.eager import run_eagerly
from fbtasks.states import State
from fbtasks.tasks.call import Call
from fbtasks.tasks.serialize import JSON_TYPE

if TYPE_CHECKING:
    from fbtasks.app import FBTasks

logger = logging.getLogger(__name__)


def call_handlers(app: FBTasks, event: str, text: str, order_key: str | None) -> None:
    """Calls the app's handlers of *event*, whose data is the JSON *text*, one after the other.

    One that fails is logged: who raises an event is not told of it, as with a worker.
    """
    time = clock.utcnow().replace(tzinfo=None).isoformat(timespec="milliseconds")
    members = {"e": event, "d": text, "u": "", "t": time, "i": 0, "k": order_key}
    payload = json.dumps([[members], {}]).encode()
    for feed in app.features["sources"].feeds():
        if feed.source.kind == "event" and feed.source.name == event:
            result = run_eagerly(app, Call(feed.name, feed.queue, JSON_TYPE, payload))
            outcome = result._stored()
            if outcome is not None and outcome.state is State.FAILED:
                logger.error("The handler %s of the event %r failed:\n%s", feed.name, event, outcome.traceback)
