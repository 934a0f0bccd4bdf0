"""A database's file that is deleted or replaced beneath those who have it open: who follows, and who refuses to."""

import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing

import kombu
import pytest
from firebird.driver import connect_server
from firebird.driver.types import SrvRestoreFlag
from support.sql import rows

import fbtasks.kombu
from fbtasks import DatabaseReplaced, DatabaseUnavailable, EngineError, FBTasks, ForeignDatabaseError, group
from fbtasks.database.database import Database
from fbtasks.database.migrate import adopt
from fbtasks.firebird import connections
from fbtasks.firebird.identity import file_of
from fbtasks.testing import drain
from fbtasks.url import DatabaseURL
from fbtasks.worker.loop import Loop
from fbtasks.worker.options import WorkerOptions
from fbtasks.worker.pools.solo import SoloExecutor

pytestmark = pytest.mark.embedded("a server's file is not seen by its clients")


@pytest.fixture
def replace(app):
    """Puts a copy of the database, as it was when this was called first, in place of its file."""
    path = app.settings.url.database

    def copy():
        if not os.path.exists(f"{path}.copy"):
            app.close()  # what is copied is whole
            shutil.copy(path, f"{path}.copy")
        else:
            shutil.copy(f"{path}.copy", f"{path}.new")
            os.replace(f"{path}.new", path)

    return copy


def names(app):
    return [name for (name,) in rows(app, "SELECT NAME FROM QUEUE_TASK ORDER BY ID")]


def test_a_program_that_only_enqueues_follows_to_the_new_file(app, replace, caplog):
    app.send_task("first")
    replace()
    app.send_task("lost")  # on a connection that stays in the pool
    replace()
    app.send_task("second")
    assert names(app) == ["first", "second"]
    (said,) = caplog.messages
    assert said.startswith(f"{app.settings.url.database} was replaced by another file while this process had it open")
    os.unlink(app.settings.url.database)
    app.send_task("third")
    assert names(app) == ["third"]
    assert [f"{app.settings.url.database} was deleted" in said for said in caplog.messages] == [False, True]


@pytest.mark.parametrize("made_by", ["another", "itself"])
def test_nothing_that_was_found_in_the_former_database_holds_in_the_new_one(app, made_by, request):
    """Numbers of limits, queues with bounds, queues of groups: with each call that needs them."""

    def says(app):
        app.limit("one", at_once=5)
        app.limit("two", at_once=5)
        app.queue("bounded", max_length=5)
        return [
            app.task(name="two", limits={"two": "k"})(lambda k: k),
            app.task(name="one", limits={"one": "k"})(lambda k: k),
            app.task(name="bounded", queue="bounded")(lambda k: k),
        ]

    two, one, bounded = says(app)

    def calls():
        two.delay(1)
        bounded.delay(1)
        (group(two.s(1), two.s(2)) | one.s()).delay()

    calls()
    os.unlink(app.settings.url.database)
    if made_by == "another":
        other = FBTasks("other", str(app.settings.url))
        request.addfinalizer(other.close)
        says(other)[1].delay(1)
        other.close()
    calls()
    waiting = """SELECT T.NAME, L.NAME FROM QUEUE_HOLD H JOIN QUEUE_TASK T ON T.ID = H.TASK_ID
        LEFT JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID"""
    assert {name for name, limit in rows(app, waiting) if name != limit} == set()
    assert rows(app, "SELECT MAX_LENGTH FROM QUEUE_POLICY WHERE QUEUE = 'bounded'") == [(5,)]
    assert rows(app, "SELECT QUEUE FROM QUEUE_FEEDER WHERE OWNER_ID = 0") == [("default",)]


def test_a_call_that_was_made_ready_in_the_former_database_is_made_ready_again(app, replace, monkeypatch):
    """Another thread has connected to the new one between the two."""
    app.limit("two", at_once=5)
    app.limit("one", at_once=5)
    one = app.task(name="one", limits={"one": None})(lambda: None)
    two = app.task(name="two", limits={"two": None})(lambda: None)
    app.database.migrate()
    replace()
    one.delay()
    two.delay()
    make_ready, done = app.enqueuer.make_ready, []

    def replaced(batch):
        make_ready(batch)
        if not done:
            done.append(replace())
            two.delay()

    monkeypatch.setattr(app.enqueuer, "make_ready", replaced)
    one.delay()
    limits = "SELECT L.NAME FROM QUEUE_HOLD H JOIN QUEUE_LIMIT L ON L.ID = H.OWNER_ID ORDER BY H.TASK_ID"
    assert [name for (name,) in rows(app, limits)] == ["two", "one"]


def test_a_connection_that_was_lent_meanwhile_is_not_used_again(app, replace):
    app.send_task("first")
    replace()
    with app.database.session():
        replace()
        app.send_task("second")
    app.send_task("third")
    assert names(app) == ["first", "second", "third"]


@pytest.mark.parametrize("deleted", [False, True])
def test_who_keeps_a_file_opens_no_other(app, replace, deleted):
    app.send_task("first")
    replace()
    app.database.known.keep()
    held = app.database.open()
    app.database.known.check()
    os.unlink(app.settings.url.database) if deleted else replace()
    for use in (app.database.known.check, app.database.open, app.connect, app.migrate, lambda: app.send_task("second")):
        with pytest.raises(DatabaseReplaced, match="was deleted" if deleted else "was replaced by another file"):
            use()
    held.ping()  # what is open goes on
    held.close()
    assert os.path.exists(app.settings.url.database) != deleted
    if not deleted:
        assert names(FBTasks("b", str(app.settings.url))) == ["first"]


@pytest.mark.parametrize("deleted", [False, True])
def test_who_is_told_the_file_opens_no_other_from_the_beginning(app, replace, deleted):
    """A worker's child: it connects when a task needs it, and the file may have been replaced by then."""
    app.migrate()
    replace()
    told = app.database.known.mark
    child = Database(app.settings)
    child.known.keep(lambda: told)
    child.open().close()
    os.unlink(app.settings.url.database) if deleted else replace()
    late = Database(app.settings)
    late.known.keep(lambda: told)
    for database in (child, late):
        with pytest.raises(DatabaseReplaced):
            database.open()
    assert os.path.exists(app.settings.url.database) != deleted


def test_what_cannot_be_told_is_no_change(tmp_path):
    known = bytes(range(16))
    unreadable = DatabaseURL(database=f"/{'x' * 5000}")
    assert file_of(unreadable, known) == known
    assert file_of(DatabaseURL(database=str(tmp_path / "nosuch" / "q.fdb")), known) is None
    assert file_of(DatabaseURL(database="x", host="db.example"), known) == bytes(16)
    (tmp_path / "q").touch()
    assert file_of(DatabaseURL(database=str(tmp_path / "q" / "q.fdb")), known) is None


def restore(path):
    """Puts a restored backup in the place of the database, in a file with the same number.

    ``gbak -c -rep`` deletes the file and makes another one, which often gets its number.
    """
    with connect_server("") as server:
        server.database.backup(database=path, backup=f"{path}.fbk")
        server.wait()
        server.database.restore(backup=f"{path}.fbk", database=f"{path}.new", flags=SrvRestoreFlag.CREATE)
        server.wait()
    shutil.copyfile(f"{path}.new", path)


def put_back(path):
    """Writes an older copy over the file, which stays the same one."""
    shutil.copyfile(f"{path}.copy", path)


def replaced_by_another(path):
    shutil.copyfile(f"{path}.copy", f"{path}.new")
    os.replace(f"{path}.new", path)


@pytest.mark.parametrize("harm", [restore, put_back, replaced_by_another])
def test_a_worker_that_was_cut_off_does_not_run_a_restored_copy(app, replace, harm, caplog):
    """The new file may have the number of the one that was deleted for it, and an older copy has the same GUID."""
    app.migrate()
    replace()
    app.database.known.keep()
    options = WorkerOptions(name="w", queues=("default",), pool="solo", concurrency=1)
    loop = Loop(app, SoloExecutor(app), options)
    loop.open()
    loop._beat(loop.connection.session)
    loop.connection.note_lost(DatabaseUnavailable("the connection was lost."))
    told = app.database.known.mark
    app.close()
    harm(app.settings.url.database)
    if harm is restore:
        late = Database(app.settings)
        late.known.keep(lambda: told)
        with pytest.raises(DatabaseReplaced, match="restored from a backup, moved or replaced by a copy"):
            late.open()
    loop.connection.next_attempt = 0.0
    loop.run(listen=False)
    loop.close()
    assert isinstance(loop.drain.replaced, DatabaseReplaced)
    assert "is back" not in caplog.text
    assert "This worker claims nothing more" in caplog.text
    assert ("restored from a backup" in caplog.text) == (harm is not replaced_by_another)


def test_a_file_with_two_names_is_refused_under_both(app):
    app.send_task("first")
    path = app.settings.url.database
    os.link(path, f"{path}.link")
    for name in (path, f"{path}.link"):
        with pytest.raises(EngineError, match=r"has 2 names \(hard links\).*lose each other's commits.*-samefile"):
            FBTasks("b", f"firebird://{name}").send_task("second")
    os.unlink(f"{path}.link")
    assert names(app) == ["first"]


SEND = """
import sys
from fbtasks import EngineError, FBTasks
try:
    FBTasks("a", sys.argv[1]).send_task("second")
except EngineError as error:
    print(error)
else:
    print("sent")
"""


def test_a_file_that_is_mounted_alone_is_refused(app, tmp_path):
    """As by ``docker run -v /srv/queue.fdb:/data/queue.fdb``."""
    app.send_task("first")
    app.close()
    outside, inside = tmp_path / "out side", tmp_path / "in side"
    outside.mkdir()
    inside.mkdir()
    os.rename(app.settings.url.database, outside / "q.fdb")
    (inside / "q.fdb").touch()

    def send(mounted):
        source, target = (shlex.quote(str(folder / mounted)) for folder in (outside, inside))
        python = shlex.join([sys.executable, "-c", SEND, f"firebird://{inside}/q.fdb".replace(" ", "%20")])
        command = ["unshare", "--mount", "sh", "-c", f"mount --bind {source} {target} || exit 77; exec {python}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode and ("unshare" in done.stderr or done.returncode == 77):
            pytest.skip(f"nothing can be mounted here: {done.stderr}")
        assert done.stderr == ""
        return done.stdout

    said = send("q.fdb")
    assert f"{inside}/q.fdb is a single file that is mounted there" in said
    assert (
        f"Mount the folder that holds it, so that all share the lock files in it: docker run -v FOLDER:{inside}" in said
    )
    assert os.listdir(inside) == ["q.fdb"]
    assert send("") == "sent\n"
    app = FBTasks("b", f"firebird://{outside}/q.fdb".replace(" ", "%20"))
    assert names(app) == ["first", "second"]
    app.close()


def test_a_heartbeat_while_a_connection_is_opened_does_not_make_it_another_database(app, monkeypatch):
    """The database told how far it had come before that heartbeat's transaction began."""
    app.migrate()
    database, connect = Database(app.settings), connections.connect
    database.known.keep()
    database.make_ready()

    def slowly(*args, **options):
        connection = connect(*args, **options)
        database.known.saw(1_000_000)
        return connection

    monkeypatch.setattr(connections, "connect", slowly)
    database.connect().close()
    database.known.check()
    with pytest.raises(DatabaseReplaced):  # what it saw is more than this one has
        database.connect()
    with pytest.raises(DatabaseReplaced):  # and no thread works on
        database.make_ready()
    database.close()


def test_a_file_whose_path_has_letters_beyond_ascii_is_made_and_its_copy_is_told(tmp_path):
    folder = tmp_path / "Größe é"
    folder.mkdir()
    with closing(FBTasks("a", f"firebird://{folder}/Käse.fdb")) as app:
        app.send_task("first")
        drain(app)
    shutil.copy(folder / "Käse.fdb", folder / "Büro.fdb")
    moved = f"firebird://{folder}/Büro.fdb"
    with closing(FBTasks("a", moved)) as copy, kombu.Connection(moved) as connection:
        copy.send_task("second")
        with pytest.raises(ForeignDatabaseError, match=r"it was .*/Größe é/Käse\.fdb before.* fbtasks adopt"):
            drain(copy)
        connection.SimpleQueue("q").put("published")  # which does no harm
        with pytest.raises(ForeignDatabaseError, match="fbtasks adopt"):
            connection.SimpleQueue("q").get(timeout=5)
        with copy.database.session() as session:
            adopt(session)
        drain(copy)
        assert names(copy) == ["first", "second"]
    with kombu.Connection(moved) as connection:
        assert connection.SimpleQueue("q").get(timeout=5).payload == "published"
    fbtasks.kombu.close_all()
