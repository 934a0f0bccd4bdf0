"""A producer can do nothing to what is not his, whatever he calls: neither in a moment nor by an open transaction."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest
from firebird.driver import DatabaseError
from support.draining import drain
from support.sql import named, one
from support.users import with_role

from fbtasks import FBTasks, group
from fbtasks.queue.operations import pausing
from fbtasks.tasks.call import Succeeded


@pytest.fixture
def producer(app):
    """A connection of a user with the role of a producer. The embedded engine holds any name to its rights."""
    app.migrate()
    with with_role(app, "producer") as url, closing(FBTasks("producer", url)) as other, other.connect() as connection:
        yield connection


def tries(connection, statement, *params):
    """Has a producer run a statement that he may know of, and leaves the transaction open. Refused is as good."""
    try:
        with closing(connection.cursor()) as cursor:
            cursor.execute(named(statement), params)
            if cursor.description:
                cursor.fetchall()
    except DatabaseError as error:
        print(error)


SECONDS = 2
"""How long what others do may take beside an open transaction of the producer."""


def beside(producer, act):
    """What *act* returns, which others do while the producer's transaction is open."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(act)
        try:
            return done.result(SECONDS)
        finally:
            producer.rollback()  # which lets it go on


def test_it_cannot_rewind_the_numbers_of_tasks(app, add, producer):
    last = add.delay_many([(1, 2)] * 20)[-1]
    tries(producer, "SELECT FIRST_ID FROM FBTASKS_WORKFLOWS_API.STEP_IDS(-10)")
    producer.commit()
    assert add.delay(1, 2).id > last.id


def test_its_open_transaction_holds_up_no_workflow_of_others(app, add, producer):
    tries(producer, "SELECT DONE FROM FBTASKS_WORKFLOWS_API.FOLLOWS_GROUPS('default')")
    total = app.task(name="total")(sum)
    result = beside(producer, (group(add.s(1, 2), add.s(3, 4)) | total.s()).delay)
    drain(app)
    assert result.get(timeout=5) == 10


def test_its_open_transaction_holds_up_no_limited_call_of_others(app, add, producer):
    app.limit("one", at_once=1)
    limited = app.task(name="limited", limits="one")(lambda: 5)
    limited.delay()
    number = one(app, "SELECT ID FROM QUEUE_LIMIT WHERE NAME = 'one'")
    tries(producer, "SELECT DONE FROM FBTASKS_LIMITS_API.USE_LIMIT(?, 'other')", number)
    result = beside(producer, lambda: limited.apply_async(queue="other"))
    drain(app, ["default", "other"])
    assert result.get(timeout=5) == 5


def test_its_open_transaction_holds_up_no_pause(app, add, producer):
    add.delay(1, 2)
    tries(producer, "SELECT DONE FROM FBTASKS_WORKFLOWS_API.FOLLOWS_GROUPS('default')")
    assert beside(producer, lambda: pausing.pause(app.database, ["default"])).queues == ["default"]


def test_it_cannot_put_a_member_into_a_group_of_another_user(app, add, producer, claim, end):
    (group(add.s(1, 2), add.s(3, 4)) | app.task(name="total")(sum).s()).delay()
    number = one(app, "SELECT ID FROM QUEUE_GROUP")
    record = f"M{number:019}0{number:019}{1:010}{2:010}".encode()
    tries(producer, "EXECUTE PROCEDURE FBTASKS_WORKFLOWS_API.PUT_NODES(?)", record)
    producer.commit()
    end(claim(), Succeeded("application/json", b"3"))
    assert [each.name for _ in range(3) for each in claim()] == ["total"]
