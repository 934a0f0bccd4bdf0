"""Celery, on the broker that the environment names."""

import os

from celery import Celery

from benchmarks.apps import body

app = Celery("bench", broker=os.environ["BENCH_BROKER"])
app.conf.update(
    task_ignore_result=True,
    # Its own advice for many short tasks.
    worker_prefetch_multiplier=64,
    worker_send_task_events=False,
    broker_connection_retry_on_startup=True,
    worker_hijack_root_logger=False,
)


@app.task
def noop():
    body.noop()


@app.task
def stamp(sent):
    body.stamp(sent)


class Producer:
    def setup(self, install):
        with app.connection_for_write() as connection:
            connection.ensure_connection(max_retries=50)

    def noops(self, count):
        for _ in range(count):
            noop.delay()

    bulk = noops

    def stamp(self, sent):
        stamp.delay(sent)

    def close(self):
        app.close()
