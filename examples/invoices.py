"""Invoices for new orders: looked for every second, two at a time for each customer, a total when all are out."""

import time
from datetime import timedelta

from fbtasks import FBTasks, chord, group

app = FBTasks("invoices")
app.limit("customer", at_once=2)


@app.periodic(every=timedelta(seconds=1))
@app.task(bind=True, transactional=True, expires=60)
def bill(self) -> None:
    """Marks the new orders and enqueues their invoices: both are committed together, or neither is."""
    batch = self.request.id
    with self.connection.cursor() as cursor:
        cursor.execute("UPDATE ORDERS SET BATCH = ? WHERE BATCH IS NULL RETURNING ID, CUSTOMER, AMOUNT", (batch,))
        orders = cursor.fetchall()
    if orders:
        invoices = group(send.s(*order) for order in orders)
        chord(invoices, close.s(batch)).using(self.connection).delay()


@app.task(bind=True, transactional=True, limits={"customer": "customer"})
def send(self, order: int, customer: str, amount: int) -> int:
    """Sends one invoice. The customer's mail server takes its time, and refuses a third connection."""
    begun = time.time()
    time.sleep(0.05)
    with self.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO INVOICES (ORDER_ID, CUSTOMER, BEGUN, ENDED) VALUES (?, ?, ?, ?)",
            (order, customer, begun, time.time()),
        )
    return amount


@app.task(bind=True, transactional=True)
def close(self, amounts: list[int], batch: str) -> None:
    """Notes the total of a batch, when each of its invoices is out."""
    with self.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO BATCHES (ID, INVOICES, TOTAL) VALUES (?, ?, ?)", (batch, len(amounts), sum(amounts))
        )
