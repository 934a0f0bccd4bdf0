"""Orders become invoices by a schedule, a limit for each customer and a chord, while two workers run.

``python invoices_demo.py [ORDERS]``. Ends with 1 when an order is lost, billed twice, or a customer gets three at once.
"""

import os
import subprocess
import sys
import time
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from invoices import app

from fbtasks import FBTasksError

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent)}
PATIENCE = 60.0
CUSTOMERS = ("Alba", "Alba", "Alba", "Brook", "Cedar")  # most orders are of one customer
AT_ONCE = 2


def main(orders: int, folder: Path) -> None:
    with closing(app.connect()) as connection:
        for table in (
            "ORDERS (ID INTEGER PRIMARY KEY, CUSTOMER VARCHAR(20), AMOUNT INTEGER, BATCH VARCHAR(40))",
            "INVOICES (ORDER_ID INTEGER, CUSTOMER VARCHAR(20), BEGUN DOUBLE PRECISION, ENDED DOUBLE PRECISION)",
            "BATCHES (ID VARCHAR(40) PRIMARY KEY, INVOICES INTEGER, TOTAL INTEGER)",
        ):
            connection.execute_immediate(f"CREATE TABLE {table}")
        connection.commit()
        with workers(2, folder):
            for first in range(0, orders, orders // 2 or 1):
                insert(connection, range(first, min(first + (orders // 2 or 1), orders)))
                wait_until_billed(connection, min(first + (orders // 2 or 1), orders))
            for words in (["schedules", "list"], ["limits", "list"]):
                subprocess.run(fbtasks(*words, "-A", "invoices"), env=ENVIRONMENT, check=True)
        check(connection, orders)


def fbtasks(*arguments: str) -> list[str]:
    print(f"\n$ fbtasks {' '.join(arguments)}", flush=True)
    return [sys.executable, "-m", "fbtasks", *arguments]


@contextmanager
def workers(count: int, folder: Path):
    """Starts workers, and stops them as an operator would."""
    with ExitStack() as stack:
        logs = [stack.enter_context((folder / f"invoices-{n}.log").open("w")) for n in range(count)]
        command = fbtasks("worker", "-A", "invoices", "-c", "2", "-l", "ERROR")
        running = [subprocess.Popen(command, env=ENVIRONMENT, stderr=log) for log in logs]
        try:
            yield
        finally:
            for worker in running:
                worker.terminate()
            for worker in running:
                worker.wait()


def insert(connection, numbers: range) -> None:
    with connection.cursor() as cursor:
        for number in numbers:
            customer = CUSTOMERS[number % len(CUSTOMERS)]
            cursor.execute("INSERT INTO ORDERS (ID, CUSTOMER, AMOUNT) VALUES (?, ?, ?)", (number, customer, number))
    connection.commit()


def wait_until_billed(connection, orders: int) -> None:
    until = time.monotonic() + PATIENCE
    while (read(connection, "SELECT SUM(INVOICES) FROM BATCHES")[0][0] or 0) < orders:
        if time.monotonic() > until:
            sys.exit(f"Not all orders were billed in {PATIENCE:g} seconds.")
        time.sleep(0.05)


def check(connection, orders: int) -> None:
    rows = read(connection, "SELECT ORDER_ID, CUSTOMER, BEGUN, ENDED FROM INVOICES")
    if sorted(order for order, *_ in rows) != list(range(orders)):
        sys.exit("Orders were lost, or billed twice.")
    batches = read(connection, "SELECT INVOICES, TOTAL FROM BATCHES ORDER BY ID")
    if sum(total for _, total in batches) != sum(range(orders)):
        sys.exit("The totals differ.")
    print(
        f"\n{orders} orders were billed in {len(batches)} batches, of {', '.join(str(n) for n, _ in batches)} invoices."
    )
    for customer in sorted(set(CUSTOMERS)):
        spans = [(begun, ended) for _, name, begun, ended in rows if name == customer]
        most = most_at_once(spans)
        print(f"{customer}: {len(spans)} invoices, {most} at once at most")
        if most > AT_ONCE:
            sys.exit(f"{customer} was sent more than {AT_ONCE} at once.")


def most_at_once(spans: list[tuple[float, float]]) -> int:
    moments = sorted([(begun, 1) for begun, _ in spans] + [(ended, -1) for _, ended in spans])
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def read(connection, sql: str) -> list[tuple]:
    with connection.cursor() as cursor:
        rows = cursor.execute(sql).fetchall()
    connection.commit()
    return rows


if __name__ == "__main__":
    try:
        with closing(app):
            main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, Path.cwd())
    except (FBTasksError, ValueError) as error:
        sys.exit(f"Error: {error}")
