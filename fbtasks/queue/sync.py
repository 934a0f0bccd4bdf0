"""How definitions in code are brought into tables: one policy for everything of which a table has what the code says.

A definition is known by a key, per app, and compared by its hash. The app that was deployed or started last wins.
What has vanished from the code is kept and reported: to drop it is for an operator. What operators said is in columns
of its own, which no definition changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
W = TypeVar("W")
F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class Plan(Generic[K, W, F]):
    """What is to be done so that the tables say what the code says; each in the order of the code, or of the tables."""

    create: dict[K, W]
    change: dict[K, tuple[W, F]]
    keep: dict[K, tuple[W, F]]
    """What is as it should be."""
    orphans: dict[K, F]
    """What the code does not have."""

    def __bool__(self) -> bool:
        """Whether there is something to do."""
        return bool(self.create or self.change or self.orphans)


def sync(wanted: Mapping[K, W], found: Mapping[K, F], same: Callable[[W, F], bool]) -> Plan[K, W, F]:
    """Returns what is to be done so that what is *found* becomes what is *wanted*; *same* compares two of one key."""
    both = {key: (each, found[key]) for key, each in wanted.items() if key in found}
    keep = {key: pair for key, pair in both.items() if same(*pair)}
    return Plan(
        create={key: each for key, each in wanted.items() if key not in found},
        change={key: pair for key, pair in both.items() if key not in keep},
        keep=keep,
        orphans={key: each for key, each in found.items() if key not in wanted},
    )
