"""Sends some tasks and waits for what becomes of them."""

from celery import chord
from shop import price, total

print("price", price.delay("bolt", 3).get(timeout=30))
print("later", price.apply_async(("nut", 2), countdown=1).get(timeout=30))
print("total", chord(price.s(article, 2) for article in ("bolt", "nut", "screw"))(total.s()).get(timeout=30))
