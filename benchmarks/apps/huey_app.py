"""Huey on SQLite."""

import os

from huey import SqliteHuey

from benchmarks.apps import body

huey = SqliteHuey("bench", filename=os.environ["BENCH_BROKER"], results=False)


@huey.task()
def noop():
    body.noop()


@huey.task()
def stamp(sent):
    body.stamp(sent)


class Producer:
    def setup(self, install):
        pass

    def noops(self, count):
        for _ in range(count):
            noop()

    bulk = noops

    def stamp(self, sent):
        stamp(sent)

    def close(self):
        pass
