"""The package FBTASKS_HOOKS, by which the core calls features: what it is made of, and what it does."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from support.golden import kept
from support.sql import execute, rows

from fbtasks import FEATURES as FEATURE_CLASSES
from fbtasks.database import generations, hooks, packages
from fbtasks.database.hooks import Answering
from fbtasks.database.schema import CORE, ours, steps
from fbtasks.database.schema import made as made_by_statement
from fbtasks.queue import tasks
from fbtasks.states import State
from fbtasks.testing import drain

WIRING = Path(__file__).parent / "wiring.sql"
BODY = "SELECT RDB$PACKAGE_BODY_SOURCE FROM RDB$PACKAGES WHERE RDB$PACKAGE_NAME STARTING WITH 'FBTASKS_HOOKS_'"
FEATURES = "SELECT NAME, PACKAGE, HOOKS FROM QUEUE_FEATURE ORDER BY NAME"


@pytest.mark.emptied
def test_what_the_core_calls_of_features(app):
    """The file beside this one is where to see what else happens, when a task ends."""
    ((body,),) = rows(app, BODY)
    found = re.sub(r"(FBTASKS_\w+?)_\d+\b", r"\1", str(body)).replace("\nPROCEDURE", "\n\nPROCEDURE").splitlines()
    assert found == kept(WIRING, found)


@pytest.mark.emptied
def test_each_feature_is_said_to_answer_the_hooks_that_its_package_has(app):
    declared = {each.name: each.hooks for each in FEATURE_CLASSES}
    for name, package, said in rows(app, FEATURES):
        answered = {each.name for each in packages.packages()[package] if not each.private} & set(hooks.hooks())
        assert set(said.split()) == answered == declared[name], name


def test_a_feature_answers_a_hook_with_its_parameters_and_results():
    known = hooks.hooks()
    for package, routines in packages.packages().items():
        for each in routines:
            if package in FEATURE_PACKAGES and each.name in known:
                assert shape(each.head) == shape(known[each.name].head), f"{package}.{each.name}"


def test_the_core_names_no_feature():
    """Neither packages nor tables, nor anything else that features make."""
    theirs = {part: names_in(part) for part in ours() if part != CORE}
    core = re.sub(r"--.*", "", "\n".join(path.read_text("utf-8") for path in CORE.folder.rglob("*.sql")))
    named = set(re.findall(r"\w+", core))
    for part, names in theirs.items():
        assert not named & names, part.name


def test_no_feature_names_another_one():
    for part in ours()[1:]:
        text = re.sub(r"--.*", "", "\n".join(path.read_text("utf-8") for path in part.folder.rglob("*.sql")))
        for other in ours()[1:]:
            assert part == other or not set(re.findall(r"\w+", text)) & names_in(other), (part.name, other.name)


def test_a_hook_asks_the_features_in_the_order_of_their_names():
    first, second = Answering("a", frozenset({"KEEPS"}), "A_1"), Answering("b", frozenset({"KEEPS"}), "B_7")
    body = made([second, first])["KEEPS"]
    assert body.index("A_1.KEEPS(ID)") < body.index("IF (KEPT IS NOT NULL)") < body.index("B_7.KEEPS(ID)")


def test_answers_of_several_features_are_put_together():
    several = [Answering(name, frozenset({"DECIDE", "NEXT_OWNER", "PROCESS_LEFT"}), f"{name}_1") for name in ("X", "Y")]
    body = made(several)
    assert "MISSED = COALESCE(MAXVALUE(MISSED, ONE_MISSED), MISSED, ONE_MISSED);" in body["DECIDE"]
    assert "OWNER_ID = COALESCE(MINVALUE(OWNER_ID, ONE_OWNER_ID), OWNER_ID, ONE_OWNER_ID);" in body["NEXT_OWNER"]
    assert "RELEASED = COALESCE(RELEASED + ONE_RELEASED, RELEASED, ONE_RELEASED);" in body["PROCESS_LEFT"]


def test_a_feature_that_this_release_lacks_is_not_called(app):
    app.migrate()
    execute(app, "INSERT INTO QUEUE_FEATURE (NAME, VERSION, PACKAGE) VALUES ('gone', 1, 'FBTASKS_GONE')")
    execute(app, "UPDATE QUEUE_FEATURE SET HOOKS = 'KEEPS' WHERE NAME = 'limits'")
    app.migrate()
    ((body,),) = rows(app, BODY)
    assert "FBTASKS_GONE" not in str(body)
    assert "FBTASKS_LIMITS_1.KEEPS" not in str(body)


def test_a_plain_task_meets_no_hook(app, monkeypatch):
    """Enqueued alone and in bulk, by SQL and by Python, run, tried again, failed, cancelled, expired and pruned."""
    asked = {"NEXT_TICK"}  # with each look, whatever there is
    body = hooks.Hook.body
    refuses = "BEGIN\n    EXCEPTION QUEUE_BAD_CALL 'a hook';\nEND"
    monkeypatch.setattr(
        hooks.Hook, "body", lambda hook, answering: body(hook, answering) if hook.name in asked else refuses
    )
    generations.fingerprint.cache_clear()
    app.migrate()
    generations.fingerprint.cache_clear()
    assert rows(app, "SELECT NUMBER FROM QUEUE_GENERATION") == [(2,)]
    app.close()

    @app.task(name="plain", max_retries=1, default_retry_delay=0, autoretry_for=(ValueError,))
    def plain(number):
        if number < 0:
            raise ValueError(number)
        return number

    results = [plain.delay(1), *plain.delay_many([(2,), (3,)]), plain.apply_async((4,), countdown=0.01)]
    failed, expired = plain.delay(-1), plain.apply_async((5,), expires=0.001)
    cancelled = plain.apply_async((6,), countdown=3600)
    assert cancelled.cancel()
    execute(app, "SELECT ID FROM FBTASKS.ENQUEUE('plain', '[7]')")
    while not all(each.ready() for each in (*results, failed, expired)):
        drain(app)
    assert [each.get(timeout=0) for each in results] == [1, 2, 3, 4]
    assert failed.failed()
    assert expired.status == "REVOKED"
    with app.database.session() as session:
        for state, ended in ((State.SUCCEEDED, 5), (State.FAILED, 1), (State.CANCELLED, 2)):
            assert session.run(lambda t, s=state: tasks.prune(t, s, timedelta(0))) == ended


FEATURE_PACKAGES = {f"FBTASKS_{part.name.upper()}" for part in ours()[1:]}


def names_in(part):
    """What a part makes, and its packages."""
    made_by = {each.name for step in steps(part) for each in step.made if each.kind not in ("INDEX", "CONSTRAINT")}
    triggers = {each.name for statement in packages.triggers(part) for each in made_by_statement(statement)}
    return (made_by | triggers | packages.packages(part).keys()) - {"QUEUE_CALLED_RAISE"}


def made(features):
    """The bodies of the hooks by name."""
    return {hook.name: body for hook, body in hooks.procedures(features)}


def shape(head):
    """The types of the parameters and results in the head of a procedure."""
    given, _, results = head.partition("RETURNS")
    lists = [part.partition("(")[2].rpartition(")")[0] for part in (given, results)]
    return [[each.split(None, 1)[1] for each in part.split(",")] if part else [] for part in lists]
