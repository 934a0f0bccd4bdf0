"""Dramatiq on Redis."""

import os

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.apps import marks

dramatiq.set_broker(RedisBroker(url=os.environ["BENCH_BROKER"]))


@dramatiq.actor(max_retries=0)
def noop():
    marks.done()  # its processes do not run tasks in their order: each is counted


@dramatiq.actor(max_retries=0)
def mark(what):
    marks.mark(what)


@dramatiq.actor(max_retries=0)
def stamp(sent):
    marks.stamp(sent)


class Producer:
    def setup(self):
        pass

    def noops(self, count):
        for _ in range(count):
            noop.send()

    bulk = noops

    def mark(self, what):
        mark.send(what)

    def stamp(self, sent):
        stamp.send(sent)

    def close(self):
        dramatiq.get_broker().close()
