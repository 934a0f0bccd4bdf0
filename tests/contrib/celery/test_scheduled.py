"""Celery's ``inspect scheduled``: tasks that wait in the database, whatever their content type."""

import pickle
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.worker.control import Panel
from support.sql import execute, one

import fbtasks.kombu

LATER = 3600


def add(*numbers):
    return sum(numbers)


@pytest.fixture
def worker(app, url):
    """A worker, as far as the command looks at it: a consumer of Celery's, and a timer with nothing in it."""
    app.migrate()
    celery = Celery("scheduled", broker=url, set_as_current=False)
    celery.conf.accept_content = ["json", "pickle"]
    celery.task(name="add")(add)
    with celery.connection_for_read() as connection, celery.amqp.TaskConsumer(connection.channel()) as consumer:
        timer = SimpleNamespace(schedule=SimpleNamespace(queue=[]))
        yield SimpleNamespace(
            app=celery, hostname="w@host", consumer=SimpleNamespace(task_consumer=consumer, timer=timer)
        )
    fbtasks.kombu.close_all()


def scheduled(worker):
    return [each["request"] for each in Panel.data["scheduled"](worker)]


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_tasks_of_every_content_type_that_the_worker_takes_are_listed(worker, serializer):
    worker.app.send_task("add", ([1, 2],), task_id="known", serializer=serializer, countdown=LATER)
    worker.app.send_task("unknown", (3,), task_id="unknown", serializer=serializer, countdown=LATER + 1)
    assert [(each["id"], each["name"], list(each["args"])) for each in scheduled(worker)] == [
        ("known", "add", [[1, 2]]), ("unknown", "unknown", [3]),
    ]  # fmt: skip


def test_arguments_that_the_answer_cannot_have_are_listed_as_text(worker):
    worker.app.send_task("add", (object,), task_id="odd", serializer="pickle", countdown=LATER)
    (found,) = scheduled(worker)
    assert (found["id"], found["args"]) == ("odd", "(<class 'object'>,)")


def test_what_cannot_be_read_is_listed_with_its_id(worker, app):
    """A content type that the worker refuses, a body that is none, and a message that was written by hand."""
    worker.app.send_task("add", (1,), task_id="refused", serializer="pickle", countdown=LATER)
    worker.consumer.task_consumer.accept = {"application/json"}
    worker.app.send_task("add", (1,), task_id="broken", countdown=LATER + 1)
    execute(app, "UPDATE QUEUE_MSG SET MESSAGE = CAST(OVERLAY(MESSAGE PLACING '!' FROM OCTET_LENGTH(MESSAGE)) AS "
        "VARCHAR(8000) CHARACTER SET OCTETS) WHERE START_TIME = (SELECT MAX(START_TIME) FROM QUEUE_MSG)")  # fmt: skip
    worker.app.send_task("add", (1,), task_id="hand", countdown=LATER + 2)
    execute(app, "UPDATE QUEUE_MSG SET MESSAGE = 'x' WHERE START_TIME = (SELECT MAX(START_TIME) FROM QUEUE_MSG)")
    number = one(app, "SELECT ID FROM QUEUE_MSG WHERE MESSAGE = 'x'")
    listed = Panel.data["scheduled"](worker)
    assert [(each["request"]["id"], each["request"]["name"]) for each in listed] == [
        ("refused", "add"), ("broken", "add"), (str(number), "(unknown)"),
    ]  # fmt: skip
    assert "ContentDisallowed" in listed[0]["request"]["args"]
    assert all(each["eta"] for each in listed)
    assert pickle.loads(pickle.dumps(listed)) == listed
