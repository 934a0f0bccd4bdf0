"""Huey on SQLite."""

import os

from huey import SqliteHuey

from bench.apps import marks

huey = SqliteHuey("bench", filename=os.environ["BENCH_BROKER"], results=False)


@huey.task()
def noop():
    pass


@huey.task()
def mark(what):
    marks.mark(what)


@huey.task()
def stamp(sent):
    marks.stamp(sent)


class Producer:
    def setup(self):
        pass

    def noops(self, count):
        for _ in range(count):
            noop()

    bulk = noops

    def mark(self, what):
        mark(what)

    def stamp(self, sent):
        stamp(sent)

    def close(self):
        pass
