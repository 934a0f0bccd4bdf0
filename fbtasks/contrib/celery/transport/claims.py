"""Claiming messages, and giving back those of a claim whose answer was lost."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from itertools import count
from typing import Final

from fbtasks import timing as clock
from fbtasks.contrib.celery.shared import SharedDatabase
from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Taken
from fbtasks.contrib.celery.transport.settlements import Settlements
from fbtasks.errors import ConflictError, StatementRefused

_UNCLAIM: Final = 1.0
"""Seconds after which a claim whose answer was lost is given back once more."""
_UNCLAIM_FOR: Final = 60.0
_PIGGYBACK: Final = 800
"""Settlements that travel with a claim, at most."""


@dataclass(slots=True, eq=False)
class Uncertain:
    """A claim whose answer was lost."""

    consumer_id: int
    claim_id: int
    queue_id: int
    again_at: float = 0.0
    until: float = 0.0
    """The monotonic time from which on it cannot take effect any more; 0 until it was given back once."""


class Claims:
    """The claims of this process. Every method may be called from any thread."""

    def __init__(self, shared: SharedDatabase, settlements: Settlements) -> None:
        self._shared = shared
        self._settlements = settlements
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._uncertain: list[Uncertain] = []

    def claim(self, consumer_id: int, queue_id: int, most: int) -> Taken | None:
        """Claims up to *most* messages; settlements that wait go with it. None: this consumer is not registered."""
        while True:
            claim_id = next(self._numbers)
            records: list[bytes] = []
            try:
                with self._settlements.taken(_PIGGYBACK) as records:
                    settled, after = b"".join(records), self._settlements.marks.get(queue_id)
                    taken = self._shared.use_in_turn(
                        lambda t: messages.claim(t, consumer_id, claim_id, queue_id, most, settled, after)  # noqa: B023
                    )
                if taken is not None:
                    self._settlements.marks.note(queue_id, taken)
                return taken
            except BaseException as error:
                if not isinstance(error, ConflictError | StatementRefused):
                    self.note_lost(Uncertain(consumer_id, claim_id, queue_id))
                    raise
                if not records:
                    raise
            self._settlements.write(consumer_id)  # one of them was in the way

    def note_lost(self, claim: Uncertain) -> None:
        """Notes a claim whose answer was lost."""
        with self._lock:
            self._uncertain.append(claim)

    def give_back_lost(self) -> None:
        """Gives back the claims whose answer was lost."""
        for claim in list(self._uncertain):
            self._give_back(claim)

    def _give_back(self, claim: Uncertain) -> None:
        """Gives back one; for a while again and again, as its commit may come later."""
        now = clock.monotonic()
        if now < claim.again_at:
            return
        claim.again_at = now + _UNCLAIM
        try:
            self._shared.use_in_turn(
                lambda t: t.call("FBTASKS_CELERY.UNCLAIM", claim.consumer_id, claim.claim_id, claim.queue_id),
                attempts=1,
            )
        except ConflictError:  # it is being committed
            return
        claim.until = claim.until or now + _UNCLAIM_FOR
        if now >= claim.until:
            with self._lock:
                self._uncertain.remove(claim)
