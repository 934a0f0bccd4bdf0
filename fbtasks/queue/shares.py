"""Parses the weights and limits of a worker's queues, as in ``fbtasks worker -Q mail:3=2,reports``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks

MOST: Final = 1000
"""The largest weight, and the most tasks that a worker runs at once."""
_NUMBER: Final = re.compile(r"[-+]?[0-9.]*[0-9]")
_WHOLE: Final = re.compile(r"[0-9]{1,4}")


@dataclass(frozen=True, slots=True)
class Share:
    """The weight and the limit of a queue in one worker."""

    weight: int = 1
    """While several queues have ready tasks, they are claimed in proportion to their weights."""
    at_once: int | None = None
    """Tasks of the queue that this worker holds at a time, running or about to; None: as many as it has room for."""


def parse_shares(text: str, known: Collection[str]) -> dict[str, Share]:
    """Returns the queues that *text* names, each with its share. *known* are the queues of the app.

    Raises :class:`ConfigurationError` for a weight or a number that cannot be, and for a queue with two shares.
    """
    found: dict[str, Share] = {}
    given: dict[str, str] = {}
    for item in map(str.strip, text.split(",")):
        queue, share = _parse(item, known)
        if found.setdefault(queue, share) != share:
            raise ConfigurationError(
                f"-Q names the queue {queue!r} twice, as {given[queue]!r} and as {item!r}: keep one of them."
            )
        given.setdefault(queue, item)
    return found


def _parse(item: str, known: Collection[str]) -> tuple[str, Share]:
    name, equals, most = (part.strip() for part in item.partition("="))
    at_once = _whole(item, "the number of tasks at once", most, "mail=2, or mail:3=2") if equals else None
    queue, colon, weight = name.rpartition(":")
    if not colon:
        return name, Share(1, at_once)
    if _NUMBER.fullmatch(weight):
        if name in known:
            raise ConfigurationError(
                f"-Q {checks.shown(item)} may be the queue {name!r} or the queue {queue!r} with the weight {weight}: "
                f"write {name}:1 for the first."
            )
        return queue, Share(_whole(item, "the weight", weight, "mail:3"), at_once)
    if queue in known and name not in known:
        raise ConfigurationError(
            f"-Q {checks.shown(item)}: the app has a queue {queue!r} and none {name!r}, and {weight!r} is no weight: "
            f"give a whole number from 1 to {MOST}, such as mail:3."
        )
    return name, Share(1, at_once)


def _whole(item: str, what: str, text: str, example: str) -> int:
    if _WHOLE.fullmatch(text) and 1 <= int(text) <= MOST:
        return int(text)
    raise ConfigurationError(
        f"-Q {checks.shown(item)}: {what}, {checks.shown(text)}, must be a whole number from 1 to {MOST}, such as "
        f"{example}. A queue that is not to be served is left out."
    )


def share_text(queue: str, share: Share) -> str:
    """Returns the shortest text that :func:`parse_shares` reads as *queue* with *share*, whatever the app knows."""
    weighted = share.weight != 1 or _NUMBER.fullmatch(queue.rpartition(":")[2] if ":" in queue else "")
    return f"{queue}{f':{share.weight}' if weighted else ''}{'' if share.at_once is None else f'={share.at_once}'}"


def queue_in(text: str) -> str:
    """Returns the queue in a text of :func:`share_text`."""
    name = text.partition("=")[0]
    queue, colon, weight = name.rpartition(":")
    return queue if colon and _NUMBER.fullmatch(weight) else name


def own_limits(shares: Mapping[str, Share]) -> dict[str, int]:
    """Returns how many tasks at a time are allowed of those queues for which that is said."""
    return {queue: share.at_once for queue, share in shares.items() if share.at_once is not None}
