"""Enqueues with one system: ``python -m benchmarks.apps.producer MODULE backlog SINGLES ALL``.

Or ``MODULE stamps COUNT RATE``. Prints the seconds that it measured.
"""

import importlib
import sys
import time

CONNECTING = 10
"""Calls before the clock is started."""


def backlog(producer, singles, count):
    """Enqueues *count* no-op tasks, of which *singles*, one after the other, are timed. Returns their seconds."""
    producer.noops(CONNECTING)
    begun = time.perf_counter()
    producer.noops(singles)
    seconds = time.perf_counter() - begun
    producer.bulk(count - singles - CONNECTING)
    return seconds


def stamps(producer, count, rate):
    """Enqueues *count* tasks that note when they were sent, *rate* in a second, after a first one that connects."""
    producer.stamp(time.monotonic())
    begun = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, begun + (number + 1) / rate - time.monotonic()))
        producer.stamp(time.monotonic())
    return time.monotonic() - begun


def main(module, what, *numbers):
    producer = importlib.import_module(f"benchmarks.apps.{module}").Producer()
    producer.setup(what == "backlog")  # the first of a system sets up what it needs
    seconds = {"backlog": backlog, "stamps": stamps}[what](producer, *map(int, numbers))
    producer.close()
    print(seconds)


if __name__ == "__main__":
    main(*sys.argv[1:])
