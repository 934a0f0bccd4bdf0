"""The database is shut down for maintenance (gfix -shut): it is the administrator's, and workers wait for its end."""

from contextlib import closing, suppress

import pytest
from firebird.driver import DatabaseError, ShutdownMethod, ShutdownMode
from support.services import services_of

from fbtasks import DatabaseShutDown, DatabaseUnavailable
from fbtasks.errors import CommitUncertain
from fbtasks.firebird import connections
from fbtasks.url import DatabaseURL
from fbtasks.worker.connection import Connection
from fbtasks.worker.lease import Lease
from fbtasks.worker.options import WorkerOptions

pytestmark = pytest.mark.acceptance

SOURCE = """
    import fbtasks.database.database as database
    database.SHUT_DOWN_LOOK = 0.5

    @app.task
    def note(n):
        with open("ledger", "a") as file:
            file.write(f"{n}\\n")
"""
SAID = "is shut down for maintenance"


class Administrator:
    """Shuts a database down, and connects to it then."""

    def __init__(self, url):
        self.url = DatabaseURL.parse(url)
        self.numbers = []

    def shut(self, mode):
        with services_of(self.url) as server:
            server.database.shutdown(database=self.url.database, mode=mode, method=ShutdownMethod.FORCED, timeout=0)

    def online(self):
        with services_of(self.url) as server:
            server.database.bring_online(database=self.url.database)

    def ask(self, sql):
        """What a query tells; None while another connection has the one place."""
        with (
            suppress(DatabaseUnavailable),
            closing(connections.connect(self.url)) as connection,
            closing(connection.cursor()) as cursor,
        ):
            return cursor.execute(sql).fetchone()[0]

    def looks(self):
        """Counts the connections of others since the first call: connections are numbered."""
        number = self.ask("SELECT CURRENT_CONNECTION FROM RDB$DATABASE")
        if number is not None:
            self.numbers.append(number)
        return self.numbers[-1] - self.numbers[0] - len(self.numbers) + 1 if self.numbers else 0


def test_a_shutdown_that_a_commit_meets_is_told_as_one(app, caplog):
    found = CommitUncertain(SAID)
    found.__cause__ = DatabaseError("shutdown", gds_codes=(335544528,))
    lease = Lease(app, WorkerOptions(name="w", queues=("default",), pool="solo", concurrency=1))
    connection = Connection(app.database, lease)
    for error in (found, DatabaseShutDown(SAID), found):
        connection.note_lost(error)
    assert [(record.levelname, SAID in record.message) for record in caplog.records] == [("WARNING", True)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "mode",
    [
        ShutdownMode.SINGLE,
        pytest.param(ShutdownMode.MULTI, marks=pytest.mark.slow),
        pytest.param(ShutdownMode.FULL, marks=pytest.mark.slow),
    ],
)
def test_a_worker_leaves_a_database_that_is_shut_down_to_its_administrator(project, wait_for, mode):
    administrator = Administrator(project.url)
    with project.producer(SOURCE) as app:
        project.worker("-P", "solo")
        app.send_task("proj.note", (1,))
        wait_for(lambda: project.lines() == ["1"])
        administrator.shut(mode)
        wait_for(lambda: SAID in project.logs())
        for _ in range(3):  # also where it would be let in
            with pytest.raises(DatabaseShutDown, match=rf"{SAID} \(gfix -shut\).* \(gfix -online\)"):
                app.send_task("proj.note", (2,))
        late = project.worker("-P", "solo")
        wait_for(lambda: project.logs().count(SAID) == 2)
        if mode is not ShutdownMode.FULL:
            call = ["call", "proj.note", "--args", "[3]"]  # a command is the administrator's as well
            wait_for(lambda: project.run(*call, check=False).returncode == 0)
            wait_for(lambda: administrator.looks() >= 3)
            assert administrator.ask("SELECT COUNT(*) FROM QUEUE_TASK WHERE STATE = 0") == 1
            assert project.lines() == ["1"]
        late.terminate()
        assert late.wait(30) == 0
        assert project.logs().count(SAID) == 2
        administrator.online()
        wait_for(lambda: "The database is back" in project.logs())
        expected = ["1"] if mode is ShutdownMode.FULL else ["1", "3"]
        wait_for(lambda: project.lines() == expected)
    assert project.logs().count(SAID) == 2
    assert "Traceback" not in project.logs()
