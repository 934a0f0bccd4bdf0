"""A backup of a database with sources, restored: it runs nothing until it is adopted, and then all that waits, once."""

import os
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest
from support.capture import script
from support.recorded import waiting
from support.services import services_of
from support.sources import apply, diff, listed
from support.sql import execute, one, rows

from fbtasks import FBTasks
from fbtasks.database import operations as database
from fbtasks.firebird import connections
from fbtasks.testing import drain
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.acceptance


@contextmanager
def restored(url):
    """Backs the database up, and restores that beside it. The block gets the URL of the copy, which is dropped then."""
    copy = replace(url, database=f"{url.database}.restored")
    with services_of(url) as server:
        server.database.backup(database=url.database, backup=f"{url.database}.fbk")
        server.wait()
        server.database.restore(backup=f"{url.database}.fbk", database=copy.database)
        server.wait()
    with suppress(OSError):  # where the server is on this machine
        os.unlink(f"{url.database}.fbk")
    try:
        yield copy.reveal()
    finally:
        connections.connect(copy).drop_database()


TABLES = (
    "CREATE TABLE T (ID INTEGER NOT NULL PRIMARY KEY, N INTEGER DEFAULT 0 NOT NULL)",
    "CREATE TABLE INBOX (ID INTEGER NOT NULL)",
    "CREATE TABLE KEYED (ID INTEGER NOT NULL PRIMARY KEY)",
)


class Shop:
    """An app with sources, on a database or on its copy."""

    def __init__(self, url):
        self.app = FBTasks("test", url)
        self.heard = []
        self.fails = False
        for name, options in (
            ("key", {"stop_on_failure": True}),
            ("total", {"order": "total"}),
            ("none", {"order": None}),
        ):
            self.app.on_change("T", insert=True, update=True, columns=("N",), name=name, bind=True, **options)(
                self.changed
            )
        self.app.on_event("told", name="told")(lambda event: self.heard.append(("told", event.data)))
        for name, options in (("INBOX", {"sequence": "ID"}), ("KEYED", {})):
            self.app.poll_table(name, name=name, columns=("ID",), bind=True, **options)(self.polled)

    def changed(self, task, change):
        if self.fails and task.name == "key" and change.key["ID"] == 1:
            raise ValueError
        self.heard.append((task.name, change.key["ID"], change.new["N"]))

    def polled(self, task, row):
        self.heard.append((task.name, row.values["ID"]))

    def run(self):
        """Has a worker run all that is due. Returns what was handled, by handler."""
        self.heard.clear()
        drain(self.app)
        found = {}
        for name, *rest in self.heard:
            found.setdefault(name, []).append(tuple(rest) if len(rest) > 1 else rest[0])
        self.app.close()
        return found | {name: sorted(each) for name, each in found.items() if name != "total"}


def marks(app):
    """How far the sources were read, by their tasks, where that is noted."""
    return dict(
        rows(
            app,
            "SELECT S.NAME, D.MARK_ID FROM QUEUE_DISPATCH D JOIN QUEUE_SUBSCRIPTION S ON S.ID = D.SUBSCRIPTION_ID "
            "WHERE D.MARK_ID > 0",
        )
    )


@pytest.mark.thorough
def test_a_restored_backup_goes_on_once_it_is_adopted(project):
    shop = Shop(project.url)
    script(shop.app, *TABLES)
    apply(shop.app)
    shop.app.close()
    shop.fails = True
    for number in (1, 2, 3):
        execute(shop.app, f"INSERT INTO T (ID) VALUES ({number})")
    for number in (1, 2, 4):
        execute(shop.app, f"INSERT INTO INBOX VALUES ({number})")
        execute(shop.app, f"INSERT INTO KEYED VALUES ({number})")
    with closing(shop.app.connect()) as late:
        late.execute_immediate("INSERT INTO INBOX VALUES (3)")  # so that it is looked for
        assert shop.run() == {
            "key": [(2, 0), (3, 0)], "total": [(1, 0), (2, 0), (3, 0)], "none": [(1, 0), (2, 0), (3, 0)],
            "INBOX": [1, 2, 4], "KEYED": [1, 2, 4],
        }  # fmt: skip
        late.commit()
    assert one(shop.app, "SELECT COUNT(*) FROM QUEUE_GAP WHERE 3 BETWEEN LANE AND COALESCE(LAST_LANE, LANE)") == 1
    assert marks(shop.app).keys() >= {"total", "KEYED"}
    execute(shop.app, "UPDATE T SET N = 1")
    execute(shop.app, "INSERT INTO T (ID) VALUES (4)")
    execute(shop.app, "INSERT INTO INBOX VALUES (5)")
    execute(shop.app, "INSERT INTO KEYED VALUES (3)")
    shop.app.raise_event("told", 7)
    shop.app.close()

    with restored(DatabaseURL.parse(project.url)) as url:
        copy = Shop(url)
        with closing(copy.app):
            check_copy(project, copy)


def check_copy(project, copy):
    """It has what had waited in the backup."""
    execute(copy.app, "UPDATE T SET N = 2 WHERE ID = 2")
    copy.app.close()
    waits = waiting(copy.app)
    project.write("")
    project.env["FBTASKS_URL"] = copy.app.settings.url.reveal()
    refused = project.run("worker", "-A", "proj", "--burst", "-P", "solo", check=False)
    assert refused.returncode == 1
    assert "fbtasks adopt" in refused.stderr
    assert waiting(copy.app) == waits
    database.adopt(copy.app.database)
    assert diff(copy.app).changes == []
    assert [source.problems for source in listed(copy.app)] == [[]] * 6
    changed = [(1, 1), (2, 1), (2, 2), (3, 1), (4, 0)]
    assert copy.run() == {
        "key": changed[1:], "total": [(1, 1), (2, 1), (3, 1), (4, 0), (2, 2)], "none": changed, "told": [7],
        "INBOX": [3, 5], "KEYED": [3],
    }  # fmt: skip
    assert copy.run() == {}
    with copy.app.database.session() as session:
        session.call("FBTASKS_OPERATOR.RETRY", one(copy.app, "SELECT ID FROM QUEUE_HISTORY"))
    assert copy.run() == {"key": [(1, 0), (1, 1)]}
    assert waiting(copy.app)[:3] == (0, 0, 0)
