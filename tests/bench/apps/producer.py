"""Enqueues with a peer: ``python -m bench.apps.producer MODULE single|backlog|stamps COUNT [RATE]``. Prints JSON."""

import importlib
import json
import sys
import time


def main(module, what, count, rate="0"):
    producer = importlib.import_module(f"bench.apps.{module}").Producer()
    producer.setup()
    count, found = int(count), {}
    if what == "single":
        producer.noops(10)  # connects
        begun = time.perf_counter()
        producer.noops(count)
        found["seconds"] = time.perf_counter() - begun
    elif what == "backlog":
        producer.noops(100)  # the workers' warm-up
        producer.mark("first")
        producer.bulk(count)
        producer.mark("last")
    elif what == "stamps":
        producer.mark("warm")
        begun = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, begun + number / float(rate) - time.monotonic()))
            producer.stamp(time.monotonic())
    producer.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
