"""Taking away what is over in the tables of messages, bit by bit."""

from __future__ import annotations

from fbtasks.store import messages
from fbtasks.store.shared import SharedDatabase


class Sweep:
    """The sweeps of one process."""

    def __init__(self, shared: SharedDatabase) -> None:
        self._shared = shared
        self._up_to = 0
        """The number of the message up to which the last one looked for expired ones."""

    def run(self) -> bool:
        """Takes away some of what is over. Returns whether there may be more."""
        swept = self._shared.use_in_turn(lambda t: messages.sweep(t, self._up_to))
        self._up_to = swept.last or 0
        return max(swept.queues, swept.released, swept.expired) >= messages.BATCH
