"""Celery over the database: a transport of kombu, and a backend for results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fbtasks.feature import Asked, Duty, Every, Feature, Problem, Worker
from fbtasks.system.showing import count

if TYPE_CHECKING:
    from fbtasks.contrib.celery.store.messages import QueueLength
    from fbtasks.firebird.session import Session
    from fbtasks.sheet import Sheet


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
        from fbtasks.contrib.celery.store.messages import COUNTED

        queues = [
            f"{each.name}: {'more than ' if each.messages > COUNTED else ''}"
            f"{count(min(each.messages, COUNTED), 'message')}, "
            f"{count(each.consumers, 'consumer') if each.consumers else 'no consumer'}"
            for each in _lengths(session, COUNTED + 1)
        ]
        if queues:
            whose = "Queues of Celery, whose messages its own workers run (celery -A MODULE worker)"
            yield f"{whose}: {'; '.join(queues)}."

    def problems(self, session: Session, asked: Asked) -> Iterator[Problem]:
        """Returns which queues have messages, and no consumer."""
        for each in _lengths(session, 1):
            if each.messages and not each.consumers:
                what = f"queue {each.name} of Celery"
                yield Problem("it has messages, and no consumer", what, is_wrong=False, id="no-consumer")

    def sheets(self) -> Sequence[Sheet]:
        """Returns the list of Celery's queues."""
        from fbtasks.contrib.celery.sheets import CelerySheet

        return [CelerySheet()]


def _lengths(session: Session, most: int) -> list[QueueLength]:
    from fbtasks.contrib.celery.store.messages import lengths
    from fbtasks.firebird.session import READ

    return session.run(lambda t: lengths(t, None, most), READ)
