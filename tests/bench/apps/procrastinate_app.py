"""Procrastinate on PostgreSQL."""

import os

import procrastinate

from bench.apps import marks

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))


@app.task(name="noop")
async def noop():
    pass


@app.task(name="mark")
async def mark(what):
    marks.mark(what)


@app.task(name="stamp")
async def stamp(sent):
    marks.stamp(sent)


class Producer:
    def setup(self):
        self.replaced = app.replace_connector(procrastinate.SyncPsycopgConnector(conninfo=os.environ["BENCH_BROKER"]))
        self.sync = self.replaced.__enter__()
        self.sync.open()
        if os.environ.get("BENCH_INSTALL"):
            self.sync.schema_manager.apply_schema()

    def noops(self, count):
        for _ in range(count):
            self.sync.configure_task("noop").defer()

    def bulk(self, count):
        self.sync.configure_task("noop").batch_defer(*({} for _ in range(count)))

    def mark(self, what):
        self.sync.configure_task("mark").defer(what=what)

    def stamp(self, sent):
        self.sync.configure_task("stamp").defer(sent=sent)

    def close(self):
        self.sync.close()
        self.replaced.__exit__(None, None, None)
