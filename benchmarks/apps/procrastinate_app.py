"""Procrastinate on PostgreSQL."""

import os

import procrastinate

from benchmarks.apps import body

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))


@app.task(name="noop")
async def noop():
    body.noop()


@app.task(name="stamp")
async def stamp(sent):
    body.stamp(sent)


class Producer:
    def setup(self, install):
        self.replaced = app.replace_connector(procrastinate.SyncPsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))
        self.sync = self.replaced.__enter__()
        self.sync.open()
        if install:
            self.sync.schema_manager.apply_schema()

    def noops(self, count):
        for _ in range(count):
            self.sync.configure_task("noop").defer()

    def bulk(self, count):
        self.sync.configure_task("noop").batch_defer(*({} for _ in range(count)))

    def stamp(self, sent):
        self.sync.configure_task("stamp").defer(sent=sent)

    def close(self):
        self.sync.close()
        self.replaced.__exit__(None, None, None)
