"""Subscriptions as the code says them, in the form that the database keeps."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property

from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.subscription import Source, Subscription


@dataclass(frozen=True)
class Feed:
    """A task of an app, and what feeds it: a row of QUEUE_SUBSCRIPTION as the code says it."""

    app: str
    name: str
    queue: str
    priority: int
    subscription: Subscription

    @property
    def source(self) -> Source:
        """What feeds it."""
        return self.subscription.source

    @property
    def ordering(self) -> str:
        """The column ORDERING."""
        return self.source.order or "none"

    @cached_property
    def text(self) -> str:
        """The column DEFINITION: all that the code says, as JSON."""
        said = {"source": asdict(self.source), "delivery": asdict(self.subscription.delivery)}
        more = {"kind": self.source.kind, "queue": self.queue, "priority": self.priority}
        return json.dumps(said | more, sort_keys=True)

    @cached_property
    def hash(self) -> str:
        """The column HASH."""
        return digest(self.text)

    @property
    def values(self) -> tuple[object, ...]:
        """The columns from QUEUE to HASH, as FBTASKS_SOURCES_OWNER.SUBSCRIBE takes them."""
        delivery = self.subscription.delivery
        is_batch = delivery.batch is not None
        # With quiet= the longest wait.
        after_ms = round(1000 * (delivery.after if delivery.at_most is None else delivery.at_most))
        quiet_ms = 0 if delivery.quiet is None else max(1, round(1000 * delivery.quiet))
        direct = {"key": 1, "total": 0, "none": 2}[self.ordering]
        if self.source.kind != "event" or is_batch or delivery.coalesce or after_ms or quiet_ms:
            direct = 0
        fills = int(is_batch and after_ms > 0)  # a batch that is full is given out before its time
        order = self.ordering, self.subscription.most, int(delivery.stop_on_failure)
        return self.queue, -self.priority, *order, after_ms, fills, quiet_ms, direct, self.text, self.hash


def digest(text: str) -> str:
    """Returns the SHA-256 of *text* as the columns of hashes have it."""
    return hashlib.sha256(text.encode()).hexdigest().upper()


def change_source(text: str) -> ChangeSource:
    """Returns the source of a DEFINITION whose kind is "change"."""
    return ChangeSource(**json.loads(text)["source"])


def poll_source(text: str) -> PollSource:
    """Returns the source of a DEFINITION whose kind is "poll"."""
    return PollSource(**json.loads(text)["source"])
