"""Measures the article's two ways by themselves: ``python -m benchmarks.article [--url URL]``.

Without a URL in an embedded database in a temporary folder; else in a new database beside that of the URL.
"""

from __future__ import annotations

import argparse
import tempfile

from benchmarks.article.drain import EVENTS, Drained, at_random, in_order
from benchmarks.stopping import heed_signals


def line(what: str, found: Drained) -> str:
    """One result in words."""
    return (
        f"{what}: {len(found.written)} events in {found.seconds:.2f} s ({found.rate:.0f} events/s), "
        f"{found.conflicts} conflicts, {found.kept} not deleted, {found.wrong} handled twice or never"
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.article", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", help="a database of the engine to use; else an embedded one is made")
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    heed_signals()
    with tempfile.TemporaryDirectory(prefix="fbtasks-article-") as folder:
        url = options.url or f"firebird://{folder}/article.fdb"
        for _ in range(options.rounds):
            print(line("one worker in order", in_order(url, options.events)), flush=True)
            print(line("five processes", at_random(url, options.events)), flush=True)


if __name__ == "__main__":
    main()
