"""Dramatiq on Redis."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.apps import body

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_BROKER"]))


@dramatiq.actor(max_retries=0)
def noop():
    body.noop()


@dramatiq.actor(max_retries=0)
def stamp(sent):
    body.stamp(sent)


class Producer:
    def setup(self, install):
        pass

    def noops(self, count):
        for _ in range(count):
            noop.send()

    bulk = noops

    def stamp(self, sent):
        stamp.send(sent)

    def close(self):
        dramatiq.get_broker().close()
