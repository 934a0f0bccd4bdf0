"""Messages a second through kombu: published one by one, in a batch, and from publication to acknowledgement.

    python -m benchmarks.kombu_messages firebird:///tmp/bench.fdb sqla+sqlite:////tmp/bench.db redis://localhost

The transports take turns. Compare them on one machine at one time alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import kombu

QUEUE = "bench"
BODY = {"number": 0, "text": "y" * 200}


def measure(url: str, messages: int) -> dict[str, float]:
    """One round on one transport. Returns messages a second."""
    with kombu.Connection(url) as connection:
        queue = kombu.Queue(QUEUE, routing_key=QUEUE)
        producer = connection.Producer()
        queue(connection.default_channel).declare()
        queue(connection.default_channel).purge()
        start = time.perf_counter()
        for _ in range(messages):
            producer.publish(BODY, exchange="", routing_key=QUEUE)
        published = time.perf_counter()
        got = 0

        def receive(_body: Any, message: Any) -> None:
            nonlocal got
            got += 1
            message.ack()

        with connection.Consumer([queue], callbacks=[receive]):
            while got < messages:
                connection.drain_events(timeout=30)
        done = time.perf_counter()
        with producer.batch():
            for _ in range(messages):
                producer.publish(BODY, exchange="", routing_key=QUEUE)
        batched = time.perf_counter()
        queue(connection.default_channel).delete()
    return {
        "publish": messages / (published - start),
        "receive and ack": messages / (done - published),
        "publish to ack": messages / (done - start),
        "publish in a batch": messages / (batched - done),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("urls", nargs="+")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="all rates, for a program")
    options = parser.parse_args()
    if any(url.startswith("firebird:") for url in options.urls):
        import fbtasks.kombu  # noqa: F401  # makes the scheme known

    rounds: dict[str, list[dict[str, float]]] = {url: [] for url in options.urls}
    for _ in range(options.rounds):
        for url in options.urls:
            rounds[url].append(measure(url, options.messages))
    if options.json:
        rates = {url: {what: [one[what] for one in found] for what in found[0]} for url, found in rounds.items()}
        print(json.dumps(rates))
        return
    for url, found in rounds.items():
        print(url.partition("://")[0])
        for what in found[0]:
            each = [one[what] for one in found]
            print(f"  {what:20} median {statistics.median(each):8.0f}/s  best {max(each):8.0f}/s")


if __name__ == "__main__":
    main()
