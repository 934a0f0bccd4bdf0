"""Connections that go on with statements prepared before a trigger: they are told of as long as they live."""

import os
from contextlib import closing

import pytest
from support.registering import register
from support.shop import PAID, TABLE, deployed
from support.sql import execute, one

from fbtasks.queue.register import hosts

SAYS = [
    ("subscriptions", "list"), ("subscriptions", "diff", "-A", "proj"), ("inspect", "sources"), ("health",),
    ("doctor",),
]  # fmt: skip


def test_a_connection_that_is_older_than_a_trigger_is_told_of_while_it_lives(project):
    def silent():
        found = []
        for command in SAYS:
            done = project.run(*command, check=False)
            if "older than" not in done.stdout + done.stderr:
                found.append(" ".join(command))
        return found

    with project.producer(PAID, TABLE) as app:
        with closing(app.connect()) as old, closing(old.cursor()) as cursor:
            insert = cursor.prepare("INSERT INTO ORDERS (ID, STATUS) VALUES (?, 'new')")
            cursor.execute(insert, (1,))
            old.commit()
            answer, _ = deployed(project, "apply", check=False)
            print(answer["unsettled"])
            cursor.execute(insert, (2,))
            old.commit()
            assert one(app, "SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0") == 0
            assert silent() == []
            insert.free()
        app.close()
        assert len(silent()) == len(SAYS)


@pytest.mark.embedded("a server names the program, and its clients may be those of several machines")
def test_the_connections_of_a_process_are_one_line_and_a_worker_has_its_name(project):
    with project.producer(PAID, TABLE) as app, closing(app.connect()) as first, closing(app.connect()) as last:
        register(
            app, name="mine@host", host=hosts.host_name(), pid=os.getpid(), pid_start=hosts.start_ticks(os.getpid())
        )
        app.close()
        done = project.run("subscriptions", "apply", "-A", "proj")
        said, line = done.stderr.splitlines()
        assert said == (
            "2 connections older than a trigger; until they end, what they prepared before may go on without that "
            "trigger. To wait for them: --wait SECONDS; to end them: --disconnect."
        )
        ids = ", ".join(str(each.info.id) for each in (first, last))
        assert line.startswith(f"  {ids}: SYSDBA, worker mine@host, pid {os.getpid()}, since ")
        execute(app, "DELETE FROM QUEUE_PROCESS")
        app.close()
        dropped = project.run("subscriptions", "drop", "paid", "-y").stdout
        assert f"  {ids}: SYSDBA, unknown program, pid {os.getpid()}, since " in dropped
