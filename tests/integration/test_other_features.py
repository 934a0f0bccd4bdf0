"""Features of other distributions: their schemas and hooks, beside apps that lack them on the same database."""

import json
import re
import shutil
import sys
import textwrap
from contextlib import closing
from datetime import timedelta

import pytest
from support.auditing import FOLDER, Audit
from support.programs import command_line
from support.registering import register
from support.sql import adopt_file, execute, one, rows

from fbtasks import FEATURES, ConfigurationError, EnqueueError, FBTasks, SchemaError, chain
from fbtasks.database import generations, operations
from fbtasks.feature import Feature
from fbtasks.queue import tasks
from fbtasks.queue.operations import tasks as service
from fbtasks.states import State
from fbtasks.testing import drain

TRAIL = "SELECT TRIM(HOOK), STATE FROM AUDIT_TRAIL WHERE TASK_ID = ? ORDER BY NO_"
PACKAGES = (
    "SELECT TRIM(RDB$PACKAGE_NAME) FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'AUDIT_' "
    "OR RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_HOOKS_' ORDER BY 1"
)
GENERATION = "SELECT NUMBER FROM QUEUE_GENERATION"


def add(a, b):
    return a + b


def fail():
    raise ValueError("no")


def audited(url, *features, name="audited"):
    """An app with the feature, and the two tasks, which it audits."""
    made_of = [*FEATURES, *(features or [Audit("add", "fail")])]
    app = FBTasks(name, url, features=made_of, auto_migrate=True)  # a server's database, too
    app.task(name="add")(add)
    app.task(name="fail")(fail)
    return app


@pytest.fixture(scope="module")
def audited_file(template, once):
    """A database that has the feature, which tests get a copy of."""

    def make(path):
        shutil.copyfile(template, path)
        with closing(audited(f"firebird://{path}")) as app:
            app.migrate()

    return once("audited.fdb", make)


@pytest.fixture
def with_audit(request, url, app, audited_file):
    """An app with the feature, on a database that others have made and that has it by now."""
    app.close()
    if app.settings.url.embedded or request.getfixturevalue("copied"):
        shutil.copyfile(audited_file, app.settings.url.database)
        adopt_file(url)
    with closing(audited(url)) as made:
        made.migrate()
        yield made


@pytest.fixture
def without(with_audit, url):
    """Another app on that database, which lacks the feature."""
    with closing(FBTasks("without", url)) as app:
        app.task(name="add")(add)
        app.task(name="fail")(fail)
        yield app


@pytest.fixture
def folder(tmp_path):
    """A copy of the feature's schema, to be changed."""
    path = tmp_path / "audit"
    shutil.copytree(FOLDER, path)
    return path


def of(folder):
    """The feature with that schema."""
    feature = Audit("add", "fail")
    feature.schema = folder
    return feature


def trail(app, result):
    return rows(app, TRAIL, int(result.id))


def state(app, result):
    """The state of a task, live or ended."""
    found = "SELECT STATE FROM QUEUE_TASK WHERE ID = ? UNION ALL SELECT STATE FROM QUEUE_HISTORY WHERE ID = ?"
    return one(app, found, int(result.id), int(result.id))


def extras(app):
    return one(app, "SELECT COUNT(*) FROM QUEUE_EXTRA")


@pytest.mark.thorough
def test_an_app_without_the_feature_changes_nothing_of_it(with_audit, without, monkeypatch):
    """Neither with a migration that has nothing to do, nor with one that makes the next generation."""
    without.migrate()
    assert one(with_audit, GENERATION) == 2
    more = (*generations.packages.triggers(), "COMMENT ON TABLE QUEUE_TASK IS 'later'")
    monkeypatch.setattr(generations.packages, "triggers", lambda *_: more)
    generations.fingerprint.cache_clear()
    without.migrate()
    generations.fingerprint.cache_clear()
    assert one(without, GENERATION) == 3
    with_audit.close()
    task = with_audit.tasks["add"]
    results = [task.delay(1, 2), *task.delay_many([(1, 2), (3, 4)])]
    with closing(with_audit.connect()) as connection:
        results.append(task.using(connection).delay(5, 6))
        connection.commit()
    drain(with_audit)
    assert results[0].get(timeout=0) == 3
    for result in results:
        assert trail(with_audit, result) == [("enqueued", None), ("ended", State.SUCCEEDED)]


def test_its_hooks_are_called_whoever_ends_the_task(with_audit, without):
    task = with_audit.tasks["add"]
    cancelled, purged, expired = task.delay(1, 1), task.apply_async((1, 2), queue="other"), task.delay(1, 3)
    assert without.AsyncResult(cancelled.id).cancel()
    with without.database.session() as session:
        assert session.run(lambda t: t.call("FBTASKS_OPERATOR.PURGE", "other", 10)) == 1
    execute(
        without, "UPDATE QUEUE_TASK SET EXPIRE_TIME = DATEADD(-1 HOUR TO QUEUE_NOW()) WHERE ID = ?", int(expired.id)
    )
    drain(without)
    assert trail(without, cancelled) == [("enqueued", None), ("ended", State.CANCELLED)]
    assert trail(without, purged) == [("enqueued", None), ("ended", None)]
    assert trail(without, expired) == [("enqueued", None), ("ended", State.CANCELLED)]


def test_what_is_said_of_a_task_goes_with_it(with_audit, without):
    succeeded, failed = with_audit.tasks["add"].delay(1, 2), with_audit.tasks["fail"].delay()
    drain(with_audit)
    assert trail(with_audit, succeeded)[-1] == ("ended", State.SUCCEEDED)
    assert extras(with_audit) == 1
    with without.database.session() as session:
        assert session.run(lambda t: t.call("FBTASKS_OPERATOR.RETRY", int(failed.id)))
    drain(without)
    assert state(with_audit, failed) == State.PARKED
    drain(with_audit)
    with without.database.session() as session:
        assert session.run(lambda t: tasks.prune(t, State.FAILED, timedelta(0))) == 1
    found = [("enqueued", None), ("ended", State.FAILED), ("ended", State.FAILED), ("forgotten", None)]
    assert trail(with_audit, failed) == found
    assert extras(with_audit) == 0


def test_tasks_of_which_it_says_nothing_meet_none_of_its_hooks(with_audit, without):
    plain = without.tasks["add"].delay(1, 2)
    step = chain(without.tasks["add"].s(1, 2), without.tasks["fail"].si()).delay()
    drain(without)
    assert plain.get(timeout=0) == 3
    assert state(without, step) == State.FAILED
    assert one(with_audit, "SELECT COUNT(*) FROM AUDIT_TRAIL") == 0


def test_a_step_that_ends_because_of_another_one_is_told_of(with_audit):
    step = chain(
        with_audit.tasks["fail"].si(), with_audit.tasks["add"].si(1, 2), with_audit.tasks["add"].si(3, 4)
    ).delay()
    drain(with_audit)
    assert trail(with_audit, step) == [("enqueued", None), ("ended", State.CANCELLED)]
    assert trail(with_audit, step.parent) == [("enqueued", None), ("ended", State.CANCELLED)]
    with with_audit.database.session() as session:
        assert session.run(lambda t: t.call("FBTASKS_OPERATOR.RETRY", int(step.parent.parent.id)))
    drain(with_audit)
    assert trail(with_audit, step)[2:] == [("ended", State.CANCELLED)]


def test_a_worker_without_it_parks_the_task_and_says_why(with_audit, without, url, caplog):
    waiting, plain = with_audit.tasks["add"].delay(1, 2), without.tasks["add"].delay(3, 4)
    drain(without)
    assert plain.get(timeout=0) == 7
    (said,) = [record.getMessage() for record in caplog.records if "are parked" in record.getMessage()]
    assert said.startswith("Tasks named 'add' are parked: this worker has no feature audit, which they need.")
    found = service.get_task(without.database, waiting.id)
    assert found.row.state is State.PARKED
    assert found.row.error_msg == "it needs the feature audit"
    assert found.why[0].startswith("it needs the feature audit, which no worker has, and it is parked. Start one")
    unknown = without.tasks["add"].delay(3, 4)
    with closing(FBTasks("knows nothing", url)) as other:
        drain(other)
    drain(without)
    assert unknown.get(timeout=0) == 7
    assert state(without, waiting) == State.PARKED
    drain(with_audit)
    assert waiting.get(timeout=0) == 3
    late = with_audit.tasks["add"].delay(1, 2)
    drain(without)
    with without.database.session() as session:
        assert session.run(lambda t: tasks.fail_parked(t, timedelta(0))) == [int(late.id)]
    (error,) = rows(without, "SELECT ERROR_MSG FROM QUEUE_HISTORY WHERE STATE = 11")[0]
    assert str(error).startswith("no worker has the feature audit, which this task needs: start one")


@pytest.mark.thorough
def test_a_next_version_is_made_beside_the_former_one(with_audit, folder, url):
    (folder / "migrations" / "0002_who.sql").write_text("ALTER TABLE AUDIT_TRAIL ADD WHO VARCHAR(63);\n")
    package = folder / "packages" / "audit.sql"
    package.write_text(package.read_text().replace("'ended'", "'was ended'"))
    with closing(audited(url, of(folder), name="next")) as later:
        with closing(with_audit.database.open()):  # which may call the former one
            later.migrate()
        assert rows(later, "SELECT VERSION, PACKAGE FROM QUEUE_FEATURE WHERE NAME = 'audit'") == [(2, "AUDIT_2")]
        assert [name for (name,) in rows(later, PACKAGES)][:2] == ["AUDIT_1", "AUDIT_2"]
        result = later.tasks["add"].delay(1, 2)
        drain(later)
        assert trail(later, result)[-1] == ("was ended", State.SUCCEEDED)
        with_audit.close()
        with (
            closing(audited(url, name="former")) as former,
            pytest.raises(SchemaError, match=r"The feature audit has version 2 in .* knows versions up to 1"),
        ):
            former.tasks["add"].delay(1, 2)
        later.close()
        later.migrate()
        later.close()
        with closing(later.database.open()) as session:
            generations.drop_former(session)
        assert [name for (name,) in rows(later, PACKAGES)] == ["AUDIT_2", "FBTASKS_HOOKS_3"]


def test_another_text_of_its_package_needs_a_migration(with_audit, folder, url):
    package = folder / "packages" / "audit.sql"
    package.write_text(package.read_text().replace("'ended'", "'was ended'"))
    with closing(audited(url, of(folder), name="changed")) as changed, pytest.raises(SchemaError, match="next number"):
        changed.migrate()


class Named(Feature):
    def __init__(self, name, **members):
        self.name = name
        for member, value in members.items():
            setattr(self, member, value)


@pytest.mark.no_database
@pytest.mark.parametrize(
    ("features", "said"),
    [
        ("audit", "must be a list of features"),
        (["limitless"], "no feature is named 'limitless'. Those of this distribution are queues, limits"),
        ([Named("limits")], "another one of the name 'limits'"),
        ([Named("Audit")], "small letters"),
        ([Named("one"), Named("one")], "two features of the name 'one'"),
        ([Named("one", options={"cost": int})], "'one': options {'cost': .* must be a TypedDict, such as"),
        ([Named("one", commands={"one": {"one list": None}})], "commands with {'one': {'one list': None}}, which"),
    ],
)
def test_what_is_no_feature_is_refused(url, features, said):
    with pytest.raises(ConfigurationError, match=said):
        FBTasks("wrong", url, features=features)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"hooks": {"SOMETIMES"}}, "SOMETIMES, which is no hook"),
        ({"hooks": {"ENDED"}}, "has no schema="),
        ({"schema": "nowhere"}, "no migrations/NNNN_NAME.sql in nowhere"),
        ({"schema": FOLDER, "hooks": {"KEEPS"}}, "has no procedure KEEPS"),
        ({"schema": FOLDER, "hooks": {"ENDED", "ENQUEUED"}}, "answers FORGOTTEN, which is not among its hooks"),
    ],
)
def test_a_schema_that_cannot_be_is_refused(url, members, said):
    with (
        closing(FBTasks("wrong", url, features=[*FEATURES, Named("audit", **members)])) as app,
        pytest.raises(ConfigurationError, match=said),
    ):
        app.migrate()


PUT_ENDED = "EXECUTE PROCEDURE PUT_TRAIL(ID, 'ended', STATE)"


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        (
            "packages/audit.sql",
            "STATE SMALLINT, IS_STEP BOOLEAN",
            "IS_STEP BOOLEAN",
            "ENDED of the feature 'audit' must",
        ),
        ("packages/audit.sql", "AS\nBEGIN", "IS\nBEGIN", "with AS at the beginning of a line"),
        ("grants.sql", "", "GRANT ALL ON TABLE AUDIT_TRAIL TO FBTASKS_WORKER;", "may have GRANT EXECUTE ON PACKAGE"),
        ("grants.sql", "", "GRANT SELECT ON TABLE QUEUE_TASK TO FBTASKS_PRODUCER;", "QUEUE_TASK is not of the feature"),
    ],
)
def test_a_file_that_cannot_be_is_named_before_anything_is_made(app, folder, url, file, before, after, said):
    app.migrate()
    app.close()
    path = folder / file
    text = path.read_text() if path.exists() else ""
    path.write_text(text.replace(before, after) if before else after)
    with closing(audited(url, of(folder), name="wrong")) as wrong, pytest.raises(ConfigurationError) as caught:
        wrong.migrate()
    assert rows(app, "SELECT NAME FROM QUEUE_FEATURE WHERE NAME = 'audit'") == []
    assert str(path) in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("migrations/0001_trail.sql", "TASK_ID BIGINT", "TASK_ID BIGINT,,"),
        ("packages/audit.sql", PUT_ENDED, "EXECUTE PROCEDURE PUT_TRAIL(ID, 'ended', STATEX)"),
    ],
)
def test_what_the_database_refuses_of_a_file_is_found_there(app, folder, url, file, before, after):
    app.migrate()
    app.close()
    path = folder / file
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    with closing(audited(url, of(folder))) as wrong, pytest.raises(SchemaError) as caught:
        wrong.migrate()
    assert f"({path})" in str(caught.value)


def test_its_file_of_rights_is_honoured(with_audit, without, folder, url):
    (folder / "grants.sql").write_text(
        "GRANT EXECUTE ON PACKAGE AUDIT TO FBTASKS_OPERATOR;\n"
        "GRANT SELECT, DELETE ON TABLE AUDIT_TRAIL TO FBTASKS_WORKER;\n"
    )
    asked = (
        "SELECT TRIM(RDB$USER), TRIM(RDB$PRIVILEGE), TRIM(RDB$RELATION_NAME) FROM RDB$USER_PRIVILEGES "
        "WHERE RDB$RELATION_NAME STARTING WITH 'AUDIT_' AND RDB$USER_TYPE = 13 ORDER BY 1, 2"
    )
    worker = [("FBTASKS_WORKER", "D", "AUDIT_TRAIL"), ("FBTASKS_WORKER", "S", "AUDIT_TRAIL")]
    with_audit.close()
    operations.grant(without.database, "worker", ["ANN"])
    assert rows(without, asked) == []
    with closing(audited(url, of(folder), name="granting")) as granting:
        operations.grant(granting.database, "worker", ["ANN"])
        assert rows(granting, asked) == [("FBTASKS_OPERATOR", "X", "AUDIT_1"), *worker]
    without.migrate()
    operations.grant(without.database, "worker", ["BOB"])
    assert rows(without, asked) == [("FBTASKS_OPERATOR", "X", "AUDIT_1"), *worker]
    without.close()
    later = folder.rename(folder.with_name("later"))  # files are read once in a process
    (later / "grants.sql").write_text("GRANT SELECT ON TABLE AUDIT_TRAIL TO FBTASKS_WORKER;\n")
    with closing(audited(url, of(later), name="granting")) as granting:
        granting.migrate()
        assert rows(granting, asked)[1:] == worker[1:]


def test_what_a_hook_finds_of_the_task(app, folder, url):
    package = folder / "packages" / "audit.sql"
    head = "PROCEDURE ENDED (\n    Id BIGINT, -- of the task\n    State SMALLINT,Is_Step boolean\n)"
    package.write_text(
        package.read_text().replace("PROCEDURE ENDED (ID BIGINT, STATE SMALLINT, IS_STEP BOOLEAN)", head)
    )
    live, ended = (f"(SELECT COUNT(*) FROM {table} T WHERE T.ID = :ID)" for table in ("QUEUE_TASK", "QUEUE_HISTORY"))
    found = f"VALUES (:ID, {live} || ' ' || {ended}, :STATE,"
    package.write_text(package.read_text().replace("VALUES (:ID, :HOOK, :STATE,", found))
    app.close()
    with closing(audited(url, of(folder), name="looking")) as looking:
        succeeded, failed = looking.tasks["add"].delay(1, 2), looking.tasks["fail"].delay()
        drain(looking)
        assert trail(looking, succeeded) == [("1 0", None), ("0 0", State.SUCCEEDED)]
        assert trail(looking, failed) == [("1 0", None), ("0 1", State.FAILED)]


def test_a_hook_that_raises(app, folder, url):
    package = folder / "packages" / "audit.sql"
    package.write_text(package.read_text().replace(PUT_ENDED, "STATE = STATE / (10 - STATE)"))
    app.close()
    with closing(audited(url, of(folder), name="raising")) as raising:
        result = raising.tasks["add"].delay(1, 2)
        drain(raising)
        assert state(raising, result) == State.FAILED
        (error,) = rows(raising, "SELECT ERROR_MSG FROM QUEUE_HISTORY")[0]
        assert str(error).startswith("its outcome could not be recorded: ")


def test_its_package_calls_none_of_a_generation(folder, url):
    package = folder / "packages" / "audit.sql"
    package.write_text(package.read_text().replace(PUT_ENDED, "EXECUTE PROCEDURE FBTASKS_CORE.X(ID)"))
    with closing(audited(url, of(folder))) as app, pytest.raises(ConfigurationError, match="names FBTASKS_CORE"):
        app.migrate()


def test_what_it_says_must_be_bytes_of_some_length(with_audit, monkeypatch):
    for said in ("text", b"x" * 4001):
        monkeypatch.setattr(Audit, "prepare", lambda self, call, *_, said=said: call.saying("audit", said))
        with pytest.raises(EnqueueError, match="must be bytes, at most 4000"):
            with_audit.tasks["add"].delay(1, 2)


@pytest.fixture
def module(url, tmp_path, monkeypatch):
    """The name of a module with an app that has the feature."""
    text = f"""
        from support.auditing import Audit
        from fbtasks import FEATURES, FBTasks
        app = FBTasks("audited", {str(url)!r}, features=[*FEATURES, Audit("add")])
        idle = FBTasks("idle", {str(url)!r}, features=[*FEATURES, Audit()])
        """
    (tmp_path / "of_audited.py").write_text(textwrap.dedent(text))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "of_audited"
    sys.modules.pop("of_audited", None)


def test_its_commands_are_there_where_the_app_has_it(with_audit, module, capsys):
    with_audit.tasks["add"].delay(1, 2)
    execute(with_audit, "UPDATE QUEUE_FEATURE SET VERSION = 0 WHERE NAME = 'audit'")
    assert command_line("migrate", "-A", module) == 0
    assert capsys.readouterr().out.endswith(": migrated the feature audit to version 1.\n")
    for arguments in (
        ["-A", module, "audit", "hooks"],
        ["audit", "-A", module, "hooks"],
        ["audit", "hooks", f"-A{module}"],
    ):
        assert command_line(*arguments) == 0
        assert capsys.readouterr().out == "1 written.\n"
    assert command_line("-A", module, "--help") == 0
    assert "audit          Read what is audited." in capsys.readouterr().out
    assert command_line("audit", "hooks") == 2
    said = "No such command 'audit'. Did you mean 'adopt'? Commands of an app's own features need -A APP.\n"
    assert capsys.readouterr().err.endswith(said)
    assert command_line("audit", "-A", module, "--help") == 0
    assert "hooks  Count what the hooks wrote." in capsys.readouterr().out
    assert command_line("audit", "hooks", "-A", "nowhere") == 2
    assert "there is no module 'nowhere'" in capsys.readouterr().err
    for lines in ({"nowhere.commands": {"lost": "?"}}, {"support.auditing": {"lost": "?"}, "": {}}):
        sys.modules[module].app.features["audit"].commands = lines
        assert command_line("lost", "-A", module) == 2
        assert "the feature 'audit' says in commands that" in capsys.readouterr().err
    sys.modules[module].app.features["audit"].commands = {"support.auditing": {"FOLDER": "?"}}
    assert command_line("FOLDER", "-A", module) == 2
    assert "FOLDER is no command of click's" in capsys.readouterr().err


def test_what_it_says_of_tasks_and_finds_wrong_is_shown(with_audit, module, url, capsys):
    result = with_audit.tasks["add"].delay(1, 2)
    assert command_line("inspect", "task", result.id, "-A", module, "--json") == 0
    assert json.loads(capsys.readouterr().out)["audited"] is True
    assert command_line("inspect", "task", result.id, "-A", module) == 0
    assert re.search(r"^AUDITED +yes$", capsys.readouterr().out, re.MULTILINE)
    assert command_line("health", "-A", f"{module}:idle") == 1
    assert "audit: it names no task\n" in capsys.readouterr().out
    assert command_line("features", "list", "--url", url, "--json") == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert found.keys() == {"audit", *(each.name for each in FEATURES if each.schema)}
    assert (found["audit"]["version"], found["audit"]["here"], found["limits"]["here"]) == (1, False, True)
    assert found["audit"]["hooks"] == ["ENDED", "ENQUEUED", "FORGOTTEN"]
    assert command_line("features", "list", "-A", module) == 0
    assert re.search(r"^audit +1 +yes +ENDED ENQUEUED", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.thorough
def test_one_of_another_distribution_is_dropped_when_nothing_needs_it(with_audit, without, module, url, capsys):
    waiting = with_audit.tasks["add"].delay(1, 2)
    with_audit.close()
    assert command_line("features", "drop", "audit", "--url", url) == 1
    assert f"task {waiting.id} needs the feature 'audit'" in capsys.readouterr().err
    assert without.AsyncResult(waiting.id).cancel()
    with without.database.session() as session:
        assert session.run(lambda t: tasks.prune(t, State.CANCELLED, timedelta(0))) == 1
    for name, said in [("audti", "Did you mean 'audit'?"), ("limits", "is a feature of this distribution")]:
        assert command_line("features", "drop", name, "--url", url) == 2
        assert said in capsys.readouterr().err
    assert command_line("features", "drop", "audit", "-A", module) == 2
    assert "would bring it back" in capsys.readouterr().err
    worker = register(without, features=" audit ")
    assert command_line("features", "drop", "audit", "--url", url) == 1
    assert "a worker has the feature 'audit'" in capsys.readouterr().err
    execute(without, "DELETE FROM QUEUE_PROCESS WHERE ID = ?", worker)
    without.close()
    assert command_line("features", "drop", "audit", "--url", url) == 0
    left = "DROP PACKAGE AUDIT_1; DROP TABLE AUDIT_TRAIL;"
    assert capsys.readouterr().out == f"audit: dropped. What it made stays. Before an app brings it back: {left}\n"
    assert rows(without, "SELECT NAME FROM QUEUE_FEATURE WHERE NAME = 'audit'") == []
    result = without.tasks["add"].delay(3, 4)
    drain(without)
    assert result.get(timeout=0) == 7
    without.close()
    execute(without, "DROP PACKAGE AUDIT_1")
    execute(without, "DROP TABLE AUDIT_TRAIL")
    with closing(audited(url, name="again")) as again:
        result = again.tasks["add"].delay(1, 2)
        drain(again)
        assert trail(again, result) == [("enqueued", None), ("ended", State.SUCCEEDED)]
