"""The unsettled messages of a channel, and its prefetch limit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual

from fbtasks.contrib.celery.store import messages
from fbtasks.contrib.celery.store.messages import Claimed


class QoS(virtual.QoS):  # type: ignore[misc]  # kombu has no types
    """The unsettled messages of one channel, and how many there may be. Acknowledged from any thread."""

    restore_at_shutdown = False  # the lease brings back what a dead process held

    def __init__(
        self, channel: Any, settle: Callable[[bytes], None], wake: Callable[[], None], prefetch_count: int = 0
    ) -> None:
        """*settle* takes a settlement; *wake* wakes the thread that waits for room (see :meth:`ask_for_room`)."""
        # Not the base class's: it would have unsettled messages published anew at exit.
        self.channel = channel
        self._prefetch_count = prefetch_count or 0
        self._settle = settle
        self._wake = wake
        self._asked_for_room = False
        self._held: dict[int, tuple[Claimed, Any]] = {}

    @property
    def prefetch_count(self) -> int:
        """Messages that may be unsettled at a time; 0 without limit."""
        return self._prefetch_count

    @prefetch_count.setter
    def prefetch_count(self, count: int) -> None:
        self._prefetch_count = count or 0
        self._freed()

    def hold(self, claimed: Claimed, message: Any) -> None:
        """Notes that a message is about to be delivered."""
        self._held[message.delivery_tag] = claimed, message

    @property
    def busy(self) -> bool:
        """Whether anything is unsettled."""
        return bool(self._held)

    @property
    def room(self) -> int | None:
        """How many more may be delivered; None without limit."""
        return max(0, self._prefetch_count - len(self._held)) if self._prefetch_count else None

    def ask_for_room(self) -> int | None:
        """Returns the room at this moment. When there is more, the thread that receives is woken once."""
        self._asked_for_room = True
        return self.room

    def _freed(self) -> None:
        if self._asked_for_room:
            self._asked_for_room = False
            self._wake()

    def can_consume(self) -> bool:
        """Returns whether one more may be delivered."""
        return self.room is None or self.room > 0

    def can_consume_max_estimate(self) -> int | None:
        """Returns how many more may be delivered; None without limit."""
        return self.room

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Nothing: what is delivered here is held already."""

    def get(self, delivery_tag: Any) -> Any:
        """Returns the message of a tag. Raises :class:`KeyError`."""
        return self._held[delivery_tag][1]

    def ack(self, delivery_tag: Any, multiple: bool = False) -> None:
        """Settles a message as done; with *multiple* all up to this one."""
        tags = [tag for tag in list(self._held) if tag <= delivery_tag] if multiple else [delivery_tag]
        for tag in tags:
            self._end(tag, messages.DONE)
        self._freed()

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Settles a message as refused: it goes back to its own queue, or to the dead-letter exchange of it."""
        self._end(delivery_tag, messages.GIVEN_BACK if requeue else messages.REJECTED)
        self._freed()

    def _end(self, tag: Any, kind: bytes) -> None:
        held = self._held.pop(tag, None)
        if held is not None:  # else it was settled before, or given back when its channel was closed
            self._settle(held[0].settle(kind))

    def restore_unacked(self) -> list[Any]:
        """Gives back all that is unsettled."""
        for tag in list(self._held):
            self._end(tag, messages.GIVEN_BACK)
        return []

    def restore_unacked_once(self, stderr: Any = None) -> None:
        """Gives back all that is unsettled."""
        self.restore_unacked()

    def abandon(self) -> None:
        """Lets go of a lost connection.

        What the program still works on may yet be acknowledged; the rest is given back.

        As long as a program keeps a message, it works on it: this process is alive, and its lease holds. When the
        program drops one without a word, as Celery's worker does with what it had not begun, it is delivered again.
        """
        for tag, (claimed, message) in list(self._held.items()):
            self._held[tag] = claimed, None
            weakref.finalize(message, self._end, tag, messages.GIVEN_BACK).atexit = False

    def discard(self) -> None:
        """Forgets what is held: it is another process's."""
        self._held.clear()
