"""Changes of a table that become work: what is measured of each system that handles them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from benchmarks.article.drain import Drained, at_random, in_order
from benchmarks.bench import Bench
from benchmarks.database import NotMeasured
from benchmarks.figures import Sample

HANDLED = "handled"
"""The key of the sample that all of them have: changes a second, all of which were committed before the start."""


@dataclass(frozen=True, kw_only=True)
class Article:
    """One of the article's two ways."""

    key: str
    label: str
    drain: Callable[[str, int], Drained]
    ordered: bool = False
    """Whether the changes are to be handled in their order."""

    def measure(self, bench: Bench) -> Iterator[Sample]:
        """One drain in a database of its own."""
        found = self.drain(bench.database.url, bench.scale.changes)
        if found.wrong:
            raise NotMeasured(f"of {len(found.written)} changes {found.wrong} were handled twice or never")
        if self.ordered and not found.ordered:
            raise NotMeasured("the changes were not handled in their order")
        yield Sample(HANDLED, "changes handled", found.rate, "changes/s")
        if not self.ordered:
            yield Sample("conflicts", "conflicts", found.conflicts, "conflicts")


ONE_WORKER = Article(key="article/total", label="log table, one worker in order", drain=in_order, ordered=True)
FIVE_PROCESSES = Article(key="article/parallel", label="log table, five processes", drain=at_random)
