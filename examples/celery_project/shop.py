"""A Celery application on Firebird: two URLs, and nothing else about it is special.

export SHOP_URL=firebird:///tmp/shop.fdb        # or firebird://user:password@host:3050//path/on/server.fdb
celery -A shop worker --concurrency 2
celery -A shop beat
celery -A shop inspect ping
python send.py
"""

import os

from celery import Celery

URL = os.environ["SHOP_URL"]

app = Celery("shop", broker=URL, backend=URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    beat_schedule={"count": {"task": "shop.count_stock", "schedule": 1.0, "args": ("hourly",)}},
)


@app.task
def price(article, number):
    return len(article) * number


@app.task
def total(prices):
    return sum(prices)


@app.task
def count_stock(what):
    return f"{what}: counted"
