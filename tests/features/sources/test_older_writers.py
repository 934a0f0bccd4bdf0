"""Connections that go on with statements prepared before a trigger: they are told of as long as they live."""

from contextlib import closing

from support.shop import PAID, TABLE, deployed
from support.sql import one

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
