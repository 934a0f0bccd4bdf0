"""`fbtasks doctor`: what each check finds, what is repaired, and what is said when there is nothing to look into."""

import json
import os
import re
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from firebird.driver import DbAccessMode, DbWriteMode, ShutdownMethod, ShutdownMode
from firebird.driver.types import ReplicaMode
from support.limbo import end_limbo, prepare
from support.programs import command_line
from support.registering import register
from support.services import services_of
from support.sql import NOW, execute, one, rows
from support.users import viewer

from fbtasks import FEATURES, FBTasks, Feature
from fbtasks import timing as clock
from fbtasks.database import grants
from fbtasks.database.migrate import latest_version
from fbtasks.firebird import connections, identity
from fbtasks.firebird.events import round_trip
from fbtasks.firebird.session import NO_AUTO_UNDO, SNAPSHOT, UPDATE
from fbtasks.queue.operations.doctor import engine, work
from fbtasks.queue.operations.doctor.examination import examine
from fbtasks.queue.operations.doctor.finding import Level
from fbtasks.url import DatabaseURL

CHECKS = [*engine.CHECKS, *engine.OF_THE_SCHEMA, *(each.name for each in FEATURES), *work.CHECKS]
IN_TESTS = {"forced-writes": "WARNING", "page-cache": "NOTE", "workers": "ERROR", "disk-space": "WARNING"}
"""What is found in a test's database: it does not wait for the disk, and its cache is small. The disk may be, too."""
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def events_take_their_time(monkeypatch):
    """A busy machine is as slow as it is."""
    monkeypatch.setattr(engine, "EVENT", 60.0)


def found(app, *names, **how):
    """What these checks find, in order."""
    return [each for each in examine(app.database, **how) if each.id in names]


def the(app, name, **how):
    """The one finding of a check."""
    (each,) = found(app, name, **how)
    return each


def bad(app):
    return {each.id: each.level.name for each in examine(app.database) if each.level}


def alone(app):
    """A program of the embedded engine's cannot share a file with another engine."""
    return ", while no other program has it open" if app.settings.url.embedded else ""


def services(app, act):
    """Changes the file while no connection of the app's has it open."""
    app.close()
    with services_of(app.settings.url) as server:
        act(server.database, app.settings.url.database)


@pytest.mark.emptied
def test_each_check_looks_and_finds_nothing_where_nothing_is_wrong(app):
    seen = examine(app.database)
    assert [each.id for each in seen] == CHECKS
    assert bad(app).items() <= IN_TESTS.items()
    register(app)
    assert bad(app).items() <= IN_TESTS.items() - {("workers", "ERROR")}
    said = {each.id: each.finding for each in examine(app.database)}
    assert "Firebird 5" in said["engine"]
    assert re.search(r"version 5\.\d: /.*fbclient", said["library"])
    assert said["workers"] == "1 worker alive"


def test_the_page_describes_each_check():
    section = (ROOT / "docs/reference/cli.md").read_text().partition("\n## `doctor`\n")[2].partition("\n## ")[0]
    described = re.findall(r"`([a-z-]+)`", "".join(re.findall(r"^\| (`[a-z].*?`) \|", section, re.MULTILINE)))
    files = [path for room in ("features", "contrib") for path in (ROOT / "fbtasks" / room).rglob("*.py")]
    theirs = {name for path in files for name in re.findall(r'\bid="([a-z-]+)"', path.read_text())}
    assert set(described) == {*CHECKS, *theirs} - {each.name for each in FEATURES}


LAST = latest_version()
WRONG = [
    ("ALTER INDEX QUEUE_TASK_DUE INACTIVE", "indexes", "ERROR", "QUEUE_TASK_DUE is inactive",
     "fbtasks sql --write 'ALTER INDEX QUEUE_TASK_DUE ACTIVE'"),
    ("ALTER DATABASE SET DEFAULT CHARACTER SET NONE", "character-set", "NOTE", "is NONE", None),
    ("ALTER DATABASE BEGIN BACKUP", "backup-lock", "WARNING", "locked for a backup",
     'when the backup is done: fbtasks sql --write "ALTER DATABASE END BACKUP"'),
    ("UPDATE QUEUE_GENERATION SET HASH = ''", "packages", "WARNING", "not as this release makes", "fbtasks migrate"),
    ("INSERT INTO QUEUE_FEATURE (NAME, VERSION, PACKAGE) VALUES ('audit', 1, 'AUDIT_1')", "features", "ERROR",
     "package AUDIT_1 of the feature audit is missing", "fbtasks migrate -A MODULE"),
    ("UPDATE QUEUE_IDENTITY SET DATABASE_PATH = '/old'", "identity", "ERROR", "it was /old before",
     "If this database is the one that should run them: fbtasks adopt"),
    (f"DELETE FROM QUEUE_SCHEMA WHERE VERSION = {LAST}", "schema", "ERROR",
     f"has schema version {LAST - 1}, not {LAST}", "fbtasks migrate"),
    ("INSERT INTO QUEUE_SCHEMA VALUES (999, 'late', CURRENT_TIMESTAMP)", "schema", "ERROR", "Upgrade fbtasks", None),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "name", "level", "text", "remedy"), WRONG)
def test_what_is_wrong_in_the_database(own_app, statement, name, level, text, remedy):
    execute(own_app, statement)
    own_app.close()
    each, *_ = found(own_app, name)
    assert (each.level.name, each.fixed) == (level, False)
    assert text in each.finding
    assert (each.remedy or "").startswith(remedy or "")
    assert (each.remedy is None) == (remedy is None)


def test_an_older_schema_is_not_migrated_and_what_is_in_it_not_looked_at(own_app, url):
    execute(own_app, f"DELETE FROM QUEUE_SCHEMA WHERE VERSION = {LAST}")
    own_app.close()
    with closing(FBTasks("test", url, auto_migrate=True)) as app:
        assert [each.id for each in examine(app.database, fix=True)] == [*engine.CHECKS]
        with closing(app.database.open_as_it_is()) as session:
            assert session.read("schema_version") == [(LAST - 1,)]


def test_modes_of_the_file(own_app):
    own_app.database.maintains = True  # as commands
    services(own_app, lambda server, path: server.set_write_mode(database=path, mode=DbWriteMode.SYNC))
    assert the(own_app, "forced-writes").level is Level.OK
    services(own_app, lambda server, path: server.set_access_mode(database=path, mode=DbAccessMode.READ_ONLY))
    assert the(own_app, "mode").finding == "the database is read-only"
    assert the(own_app, "events").level is Level.OK  # an event is no change
    services(own_app, lambda server, path: server.set_access_mode(database=path, mode=DbAccessMode.READ_WRITE))
    services(own_app, lambda server, path: server.set_replica_mode(database=path, mode=ReplicaMode.READ_ONLY))
    assert the(own_app, "mode").level is Level.NOTE
    services(own_app, lambda server, path: server.set_replica_mode(database=path, mode=ReplicaMode.NONE))
    services(
        own_app,
        lambda server, path: server.shutdown(
            database=path, mode=ShutdownMode.MULTI, method=ShutdownMethod.FORCED, timeout=0
        ),
    )
    assert the(own_app, "mode").remedy == f"gfix -online DATABASE{alone(own_app)}"
    own_app.database.maintains = False
    (each,) = examine(own_app.database)
    assert (each.id, each.level) == ("connection", Level.ERROR)


@pytest.mark.embedded("a server makes databases with pages of its own size")
def test_the_page_size_the_structure_and_the_cache(tmp_path):
    url = DatabaseURL.parse(f"firebird://{tmp_path}/small.fdb")
    connections.connect(url, create=True, page_size=4096).close()
    with closing(FBTasks("small", str(url), features=[])) as app:
        assert the(app, "page-size").level is Level.WARNING
        assert the(app, "schema").finding.endswith("has no queue yet")
        assert [each.id for each in examine(app.database) if "could not be checked" in each.finding] == []
    old = SimpleNamespace(info={"ODS_VERSION": 13, "ODS_MINOR_VERSION": 0}.__getitem__, gfix=str)
    assert [each.remedy for each in engine._ods(old)] == [None, "-upgrade"]


def test_a_transaction_that_is_open_for_long_is_told_with_its_owner(app, monkeypatch):
    monkeypatch.setattr(engine, "OPEN", -1)
    assert the(app, "snapshot").level is Level.OK
    with closing(app.connect()) as other:
        transaction = other.transaction_manager(SNAPSHOT)
        transaction.begin()
        number = transaction.info.id
        each = the(app, "snapshot")
        assert each.level is Level.WARNING
        assert re.match(rf"\w+ \(.*process {os.getpid()}.*\) has had transaction {number} open for \d", each.finding)
        assert f"MON$ATTACHMENT_ID {other.info.id} in" in each.remedy
        transaction.rollback()
        transaction.default_tpb = bytes((3, 8, 15, 17, 7, 14))  # reads what is committed, and keeps no version
        transaction.begin()
        assert the(app, "snapshot").level is Level.OK


def test_what_no_sweep_has_taken_away_is_told(app, monkeypatch):
    monkeypatch.setattr(engine, "GAP", 1)
    with app.database.session() as session:
        manager = session.connection.transaction_manager(UPDATE + NO_AUTO_UNDO)
        manager.begin()
        with closing(manager.cursor()) as cursor:
            cursor.execute("UPDATE QUEUE_GENERATION SET HASH = HASH")
        manager.rollback()
        for _ in range(5):
            session.sql("UPDATE QUEUE_GENERATION SET HASH = HASH")
    assert the(app, "sweep").level is Level.OK  # the engine does it after 20,000
    services(app, lambda server, path: server.set_sweep_interval(database=path, interval=0))
    each = the(app, "sweep")
    assert (each.level, each.remedy) == (Level.WARNING, f"gfix -sweep DATABASE{alone(app)}")


def test_a_transaction_in_limbo_is_told(app, url):
    app.close()
    prepare(url, "EXECUTE PROCEDURE FBTASKS.ENQUEUE('add')")
    each = the(app, "limbo")
    assert each.level is Level.ERROR
    assert re.match(r"gfix -commit (\d+) \(or -rollback \1\) DATABASE", each.remedy)
    end_limbo(app, "rollback")


@pytest.mark.embedded("a server's file is not seen by its clients")
def test_a_network_file_system_and_a_full_disk_are_told(app, tmp_path, monkeypatch):
    mounts = tmp_path / "mounts"
    folder = os.path.dirname(app.settings.url.database)
    mounts.write_text(f"1 0 0:1 / / rw - ext4 /dev/a rw\n2 1 0:2 / {folder} rw shared:1 - nfs4 server:/a rw\n")
    monkeypatch.setattr(identity, "_MOUNTS", str(mounts))
    assert {each.level for each in found(app, "lock-folder")} == {Level.WARNING}
    assert "network file system (nfs4)" in found(app, "lock-folder")[0].finding
    mounts.write_text("1 0 0:1 / / rw - ext4 /dev/a rw\n")
    assert the(app, "lock-folder").level is Level.OK
    monkeypatch.setattr(engine, "ROOM", 1 << 60)
    assert the(app, "disk-space").level is Level.WARNING
    monkeypatch.setattr(engine, "LEAST_ROOM", 1 << 60)
    assert the(app, "disk-space").level is Level.ERROR


def test_an_event_that_does_not_come_is_told(app, monkeypatch):
    assert round_trip(app.database.open_as_it_is(), lambda: None, "fbtasks:never", 0.05) is None
    monkeypatch.setattr(engine, "EVENT", 0.0)
    assert the(app, "events").level is Level.WARNING


@pytest.mark.emptied
def test_clocks_that_are_apart_are_told(app, monkeypatch):
    monkeypatch.setattr(clock, "utcnow", lambda now=clock.utcnow: now() + timedelta(minutes=3))
    each = the(app, "clock")
    assert each.level is Level.WARNING
    assert "are 3 min apart; sessions have the zone " in each.finding


GROW = """EXECUTE BLOCK AS
    DECLARE N INTEGER = 0;
    DECLARE X VARCHAR(2000) CHARACTER SET OCTETS;
BEGIN
    X = RPAD('', 2000, UUID_TO_CHAR(GEN_UUID()));
    WHILE (N < 2500) DO
    BEGIN
        N = N + 1;
        INSERT INTO QUEUE_HISTORY (ID, NAME, QUEUE, STATE, PRIORITY_RANK, RAISE_TIME, START_TIME, FINISH_TIME,
            TRY_COUNT, CRASH_COUNT, CONTENT_TYPE, PAYLOAD, RESULT)
        VALUES (:N, 'a', 'q', 10, 0, QUEUE_NOW(), QUEUE_NOW(), QUEUE_NOW(), 1, 0, 'json', :X, :X);
    END
END"""


def test_statistics_of_a_table_that_has_grown_are_made(own_app):
    execute(own_app, GROW)
    each = the(own_app, "statistics")
    assert (each.level, each.finding, each.remedy) == (
        Level.NOTE, "2 indexes of large tables have no statistics", "fbtasks doctor --fix",
    )  # fmt: skip
    each = the(own_app, "statistics", fix=True)
    assert (each.level, each.finding, each.fixed) == (Level.OK, "statistics of 2 indexes made", True)
    assert the(own_app, "statistics").finding == "large tables of the queue have statistics"


def test_rights_packages_and_orphans_are_put_right(own_app):
    own_app.send_task("t")
    with own_app.database.session() as session:
        grants.grant(session, "viewer", "ANN")
        session.sql("REVOKE SELECT ON QUEUE_TASK FROM ROLE FBTASKS_VIEWER")
        session.sql("CREATE PACKAGE FBTASKS_CORE_0 AS BEGIN END")
        session.sql("CREATE PACKAGE BODY FBTASKS_CORE_0 AS BEGIN END")
    execute(own_app, f"UPDATE QUEUE_TASK SET STATE = 2, WORKER_ID = 77, CLAIM_ID = 1, CLAIM_TIME = {NOW}")
    names = ("grants", "packages", "orphans")
    assert [each.level.name for each in found(own_app, *names)] == ["NOTE", "WARNING", "WARNING"]
    with own_app.database.session() as session:
        session.sql("UPDATE QUEUE_GENERATION SET SINCE_TIME = DATEADD(-1 HOUR TO SINCE_TIME)")
    assert [each.remedy for each in found(own_app, *names)] == ["fbtasks doctor --fix"] * 3
    done = found(own_app, *names, fix=True)
    assert [(each.finding, each.fixed) for each in done] == [
        ("1 package of former generations dropped", True), ("1 right changed", True), ("1 task put back", True),
    ]  # fmt: skip
    assert {each.level for each in found(own_app, *names)} == {Level.OK}
    assert rows(own_app, "SELECT STATE, WORKER_ID FROM QUEUE_TASK") == [(0, None)]


def test_what_cannot_be_repaired_says_why(own_app):
    with own_app.database.session() as session:
        session.sql("CREATE PACKAGE FBTASKS_CORE_0 AS BEGIN END")
        session.sql("UPDATE QUEUE_GENERATION SET SINCE_TIME = DATEADD(1 HOUR TO SINCE_TIME)")
    with closing(own_app.connect()):
        each = the(own_app, "packages", fix=True)
    assert (each.level, each.fixed) == (Level.NOTE, False)
    assert "; it could not be repaired: connections that may use them are open" in each.finding


@pytest.mark.emptied
def test_workers_and_the_tasks_that_they_do_not_run(app):
    register(app, name="dead@far", queues=["default"], lease=-1.0)
    register(app, name="busy@far", queues=["default"], tasks=["shop.send"], lease=3600.0)
    app.send_task("shop.send")
    number = one(app, "SELECT MAX(ID) FROM QUEUE_PROCESS")
    execute(
        app,
        f"UPDATE QUEUE_TASK SET STATE = 2, WORKER_ID = {number}, CLAIM_ID = 1, CLAIM_TIME = DATEADD(-2 HOUR TO {NOW})",
    )
    app.send_task("shop.sned")
    app.send_task("shop.send", queue="mial")
    app.send_task("shop.sent", queue="parked")
    execute(app, "UPDATE QUEUE_TASK SET STATE = 3 WHERE QUEUE = 'parked'")
    execute(app, "UPDATE QUEUE_TASK SET RAISE_TIME = DATEADD(-1 HOUR TO RAISE_TIME),"
                 " START_TIME = DATEADD(-1 HOUR TO START_TIME) WHERE QUEUE = 'mial'")  # fmt: skip
    said = {(each.id, each.level.name, each.finding, each.remedy) for each in examine(app.database)}
    assert said >= {
        ("workers", "WARNING", "the worker dead@far, process 1 on host, is dead, and holds 0 tasks",
         "one that is alive takes over its tasks"),
        ("long-tasks", "WARNING", "a task of the worker busy@far runs for 2 h", "fbtasks inspect active"),
        ("unknown-names", "WARNING",
         "queue default: no worker knows a task named shop.sned, which waits. Did you mean 'shop.send'?", None),
        ("parked-names", "ERROR",
         "queue parked: no worker knows a task named shop.sent. Did you mean 'shop.send'?", "fbtasks inspect parked"),
        ("unserved", "ERROR", "queue mial: no worker serves it",
         "Start one: fbtasks worker -A MODULE -Q mial"),
        ("overdue", "ERROR", "queue mial: a task has waited for 60 min", None),
    }  # fmt: skip


@pytest.mark.emptied
def test_a_queue_that_grows_is_told(app, monkeypatch):
    monkeypatch.setattr(work, "LATE", -1.0)
    monkeypatch.setattr(work, "clock", SimpleNamespace(sleep=lambda _: grow()))
    register(app)
    app.send_task("t")
    grow = list
    assert the(app, "backlog").level is Level.OK
    grow = lambda: [app.send_task("t") for _ in range(2)]
    each = the(app, "backlog")
    assert (each.level, each.finding) == (Level.WARNING, "queue default: 3 tasks wait, 2 more than 1 s ago")
    monkeypatch.setattr(work, "MOST", 2)
    grow = list
    assert the(app, "backlog").level is Level.NOTE


def test_a_check_that_cannot_be_done_hides_none_of_the_others(url):
    class Broken(Feature):
        name = "broken"

        def problems(self, session, asked):
            raise RuntimeError("no idea")

    with closing(FBTasks("broken", url, features=[*FEATURES, Broken()])) as app:
        seen = examine(app.database)
        assert {each.id for each in seen} == {*CHECKS, "broken"}
        (each,) = [each for each in seen if each.id == "broken"]
        assert (each.level, each.finding) == (Level.NOTE, "it could not be checked: RuntimeError: no idea")


def test_a_viewer_sees_all_that_its_role_lets_it_see(own_app):
    execute(own_app, "CREATE PACKAGE FBTASKS_CORE_0 AS BEGIN END")
    with viewer(own_app) as theirs, closing(FBTasks("viewer", theirs)) as app, closing(own_app.connect()):
        seen = {each.id: each for each in examine(app.database, fix=True)}
    assert [*seen] == CHECKS
    assert [name for name, each in seen.items() if "could not be checked" in each.finding] == []
    assert "could not be repaired" in seen["packages"].finding
    assert seen["snapshot"].finding.endswith("since the oldest snapshot")


@pytest.mark.embedded("its findings are those of a file")
def test_the_command_ends_with_one_when_something_is_wrong(own_app, url, capsys, tmp_path):
    own_app.close()
    assert command_line("doctor", "--url", url) == 1
    out = capsys.readouterr().out
    assert out.startswith("error: workers: no worker is alive:\n    fbtasks worker -A MODULE\nwarning: forced-writes: ")
    assert "    gfix -write sync DATABASE, while no other program has it open\n" in out
    assert re.search(r"^ok: connection, library, .*, orphans, long-tasks, backlog$", out, re.MULTILINE)
    register(own_app)
    own_app.close()
    assert command_line("doctor", "--url", url, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["level"], [each["id"] for each in told["findings"]]) == ("warning", CHECKS)
    assert {tuple(each) for each in told["findings"]} == {("id", "level", "finding", "remedy", "fixed")}
    missing = tmp_path / "no" / "q.fdb"
    missing.parent.mkdir()
    assert command_line("doctor", "--url", f"firebird://{missing}", "--json") == 1
    (only,) = json.loads(capsys.readouterr().out)["findings"]
    assert (only["id"], only["level"]) == ("connection", "error")
    assert command_line("doctor", "--url", f"firebird://{missing}") == 1
    assert "ok:" not in capsys.readouterr().out
    assert list(missing.parent.iterdir()) == []
