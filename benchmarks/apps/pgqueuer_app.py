"""PgQueuer on PostgreSQL."""

import asyncio
import os
import sys
from contextlib import asynccontextmanager

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries, run

from benchmarks.apps import body


@asynccontextmanager
async def main():
    connection = await asyncpg.connect(os.environ["BENCH_BROKER"])
    pgq = PgQueuer(AsyncpgDriver(connection))

    @pgq.entrypoint("noop")
    async def noop(job):
        body.noop()

    @pgq.entrypoint("stamp")
    async def stamp(job):
        body.stamp(float(job.payload))

    try:
        yield pgq
    finally:
        await connection.close()


class Producer:
    def setup(self, install):
        self.loop = asyncio.new_event_loop()
        self.connection = self.loop.run_until_complete(asyncpg.connect(os.environ["BENCH_BROKER"]))
        self.queries = Queries(AsyncpgDriver(self.connection))
        if install:
            self.loop.run_until_complete(self.queries.install())

    def _enqueue(self, *arguments):
        self.loop.run_until_complete(self.queries.enqueue(*arguments))

    def noops(self, count):
        for _ in range(count):
            self._enqueue("noop", None, 0)

    def bulk(self, count):
        while count > 0:
            some = min(count, 1000)
            self._enqueue(["noop"] * some, [None] * some, [0] * some)
            count -= some

    def stamp(self, sent):
        self._enqueue("stamp", str(sent).encode(), 0)

    def close(self):
        self.loop.run_until_complete(self.connection.close())
        self.loop.close()


if __name__ == "__main__":  # what `pgq run` does, whose options newer versions of typer do not read
    asyncio.run(run(main, batch_size=int(sys.argv[1])))
