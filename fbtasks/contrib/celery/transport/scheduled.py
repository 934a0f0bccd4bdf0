"""Celery's command ``inspect scheduled``, with the tasks that wait in the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import update_wrapper
from typing import Any, Final

from kombu.utils import json

from fbtasks.contrib.celery.transport.channel import Channel
from fbtasks.contrib.celery.transport.receiver import Withheld
from fbtasks.database.values import as_utc

_MOST: Final = 500
"""Tasks that a worker lists."""
_PRIORITY: Final = 6
"""The priority that Celery's workers tell of the tasks that they hold: one among the entries of their timer."""


class Scheduled:
    """The command, with the tasks that wait in the database."""

    def __init__(self, held: Callable[..., list[Any]]) -> None:
        self._held = held
        update_wrapper(self, held)

    def __call__(self, state: Any, **options: Any) -> list[Any]:
        """Returns the tasks that *state*'s worker holds, and those withheld in its queues, the next ones first."""
        channel = getattr(state.consumer.task_consumer, "channel", None)
        withheld = channel.receiver.withheld(_MOST) if isinstance(channel, Channel) else ()
        return [*self._held(state, **options), *_listed(state, withheld)]


def _listed(state: Any, withheld: Iterator[Withheld] | tuple[()]) -> Iterator[dict[str, Any]]:
    for message in withheld:
        try:
            eta, request = _read(state, message.message)
        except Exception as error:  # noqa: BLE001  # whatever a program has published, and a worker refuses
            eta, request = as_utc(message.until), _unread(state, message, error)
        yield {"eta": eta.isoformat(), "priority": _PRIORITY, "request": request}


def _read(state: Any, message: Any) -> tuple[datetime, dict[str, Any]]:
    """Returns a task as Celery tells of those that a worker holds. Raises what keeps the message from being read."""
    from celery.worker.request import Request

    tasks = state.app.tasks
    message.accept = state.consumer.task_consumer.accept  # else those that kombu enables by itself
    unknown = tasks["celery.backend_cleanup"]  # it stands for a task that is not known here as well
    task = tasks.get(message.headers["task"], unknown)
    request = Request(message, app=state.app, hostname=state.hostname, task=task)
    facts: dict[str, Any] = request.info()
    try:
        json.dumps(facts)  # as the answer is sent
    except (TypeError, ValueError):
        facts = request.info(safe=True)  # with arguments as their text
    return request.eta, facts


def _unread(state: Any, message: Withheld, error: Exception) -> dict[str, Any]:
    """Returns as much of a task as is known without its body: its id, or the number of its message."""
    headers = getattr(message.message, "headers", None) or {}
    name = str(headers.get("task", "(unknown)"))
    return {
        "id": str(headers.get("id", message.number)),
        "name": name,
        "args": f"(cannot be read: {error!r:.200})",
        "kwargs": "",
        "type": name,
        "hostname": state.hostname,
        "time_start": None,
        "acknowledged": False,
        "delivery_info": {},
        "worker_pid": None,
    }
