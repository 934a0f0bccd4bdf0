"""Celery over the database: a transport of kombu, and a backend for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Duty, Every, Feature, Worker
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.firebird.session import Session


class Celery(Feature):
    """Celery over the database: a transport of kombu, and a backend for results."""

    name = "celery"
    schema = Path(__file__).with_name("schema")
    hooks = frozenset({"PROCESS_LEFT"})

    def duties(self, worker: Worker) -> Iterable[Duty]:
        """Forgets what is over."""
        from fbtasks.contrib.celery.store.keyvalues import prune

        yield Every("forgetting what Celery has stored", 60.0, prune, at_start=False)

    def beside(self, session: Session) -> Iterator[str]:
        """Says how long the queues of Celery are."""
        from fbtasks.contrib.celery.store.messages import COUNTED, lengths
        from fbtasks.firebird.session import READ

        names = [name for (name,) in session.read("msg_queues")]
        queues = [
            f"{each.queue}: {'more than ' if each.messages > COUNTED else ''}"
            f"{count(min(each.messages, COUNTED), 'message')}, "
            f"{count(each.consumers, 'consumer') if each.consumers else 'no consumer'}"
            for each in session.run(lambda t: lengths(t, names, COUNTED + 1), READ)
        ]
        if queues:
            whose = "Queues of Celery, whose messages its own workers run (celery -A MODULE worker)"
            yield f"{whose}: {'; '.join(queues)}."
