"""What the code says of tasks that a source feeds, as the database has it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.subscription import Delivery, EventSource, Kind, Source, Subscription

_ORDERINGS: Final = {"key": "key", "total": "total", None: "none"}


class Feed(NamedTuple):
    """A task of an app, and what feeds it."""

    name: str
    queue: str
    priority: int
    subscription: Subscription


@dataclass(frozen=True)
class Definition:
    """A feed as a row of QUEUE_SUBSCRIPTION."""

    app: str
    feed: Feed

    @property
    def name(self) -> str:
        """The name of the task."""
        return self.feed.name

    @property
    def kind(self) -> Kind:
        """What feeds it."""
        return self.feed.subscription.kind

    @property
    def source(self) -> Source:
        """The table or the event."""
        return self.feed.subscription.source

    @property
    def source_name(self) -> str:
        """The name of the event, or that of the table as the definition has it."""
        return self.source.event if isinstance(self.source, EventSource) else self.source.table

    @property
    def ordering(self) -> str:
        """The column ORDERING."""
        return _ORDERINGS[self.source.order]

    @property
    def delivery(self) -> Delivery:
        """How it is delivered."""
        return self.feed.subscription.delivery

    @property
    def after_ms(self) -> int:
        """The column AFTER_MS: with *quiet* that is the longest wait."""
        return _milliseconds(self.delivery.after if self.delivery.at_most is None else self.delivery.at_most)

    @property
    def quiet_ms(self) -> int:
        """The column QUIET_MS."""
        return 0 if self.delivery.quiet is None else max(1, _milliseconds(self.delivery.quiet))

    @property
    def fills(self) -> bool:
        """The column FILLS: whether a batch that is full is given out before its time."""
        return self.delivery.batch is not None and self.after_ms > 0

    @property
    def direct(self) -> int:
        """The column DIRECT: what of an event becomes a task at once. 0 nothing, 1 without an order key, 2 all."""
        delivery = self.delivery
        if self.kind != "event" or delivery.batch is not None or delivery.coalesce or self.after_ms or self.quiet_ms:
            return 0
        return {"key": 1, "total": 0, "none": 2}[self.ordering]

    @cached_property
    def text(self) -> str:
        """The column DEFINITION: all that the code says, as JSON."""
        said = {
            "source": asdict(self.source),
            "delivery": asdict(self.delivery),
            "queue": self.feed.queue,
            "priority": self.feed.priority,
        }
        return json.dumps({"kind": self.kind, **said}, sort_keys=True)

    @cached_property
    def hash(self) -> str:
        """The column HASH."""
        return digest(self.text)

    @property
    def values(self) -> tuple[object, ...]:
        """The columns from QUEUE to HASH, as FBTASKS_SOURCES_OWNER.SUBSCRIBE takes them."""
        return (
            self.feed.queue,
            -self.feed.priority,
            self.ordering,
            self.feed.subscription.most,
            int(self.delivery.stop_on_failure),
            self.after_ms,
            int(self.fills),
            self.quiet_ms,
            self.direct,
            self.text,
            self.hash,
        )


def digest(text: str) -> str:
    """Returns the SHA-256 of *text* as the columns of hashes have it."""
    return hashlib.sha256(text.encode()).hexdigest().upper()


def change_source(text: str) -> ChangeSource:
    """Returns the source of a DEFINITION whose kind is "change"."""
    members: dict[str, Any] = json.loads(text)["source"]
    return ChangeSource(**members)


def poll_source(text: str) -> PollSource:
    """Returns the source of a DEFINITION whose kind is "poll"."""
    members: dict[str, Any] = json.loads(text)["source"]
    return PollSource(**members)


def _milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
