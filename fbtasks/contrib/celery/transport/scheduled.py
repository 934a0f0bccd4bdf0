"""What ``celery inspect scheduled`` shows of tasks whose time has not come: they wait in the database, in no worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final

from fbtasks.contrib.celery.transport.channel import Channel

_MOST: Final = 500
"""Tasks that a worker lists."""
_PRIORITY: Final = 6
"""What Celery's workers say of the tasks that they hold: a priority among the entries of their timer."""


def welcome() -> None:
    """Has a worker of Celery list what is withheld in its queues beside what it holds itself."""
    control = sys.modules.get("celery.worker.control")
    if control is None:
        return
    handlers = control.Panel.data
    for name in ("scheduled", "dump_schedule"):
        held = handlers.get(name)
        if held is not None and not isinstance(held, Scheduled):
            handlers[name] = Scheduled(held)


class Scheduled:
    """The command, with the tasks that wait in the database."""

    def __init__(self, held: Callable[..., list[Any]]) -> None:
        self._held = held
        self.__name__ = getattr(held, "__name__", "scheduled")
        self.__doc__ = held.__doc__

    def __call__(self, state: Any, **options: Any) -> list[Any]:
        """The tasks that *state*'s worker holds, and those withheld in its queues, the next ones first."""
        channel = getattr(state.consumer.task_consumer, "channel", None)
        withheld = list(_withheld(state, channel)) if isinstance(channel, Channel) else []
        return [*self._held(state, **options), *withheld]


def _withheld(state: Any, channel: Channel) -> Iterator[dict[str, Any]]:
    from celery.worker.request import Request

    for message in channel.receiver.withheld(_MOST):
        tasks = state.app.tasks
        with suppress(Exception):  # what cannot be read is told of when it is delivered
            unknown = tasks["celery.backend_cleanup"]  # it stands for a task that is not known here as well
            task = tasks.get(message.headers["task"], unknown)
            request = Request(message, app=state.app, hostname=state.hostname, task=task)
            yield {"eta": request.eta.isoformat(), "priority": _PRIORITY, "request": request.info()}
