"""Routines that a role may call, with whatever they are given: nobody waits for them, and each number has a bound.

The routines are those that the database grants: one that is new fails here until it is said what it is called with.
"""

import hashlib
import os
import re
from contextlib import closing, contextmanager, suppress
from itertools import chain
from types import SimpleNamespace

import pytest
from firebird.driver import DatabaseError
from support.draining import drain
from support.registering import register
from support.sources import apply
from support.sql import one, rows
from support.users import with_role

from fbtasks import FBTasks, Unique, group
from fbtasks.contrib.celery.store import chords, keyvalues, messages
from fbtasks.contrib.celery.store.messages import Publication, QueueSpec
from fbtasks.database.schema import numbered
from fbtasks.features.progress import store as progress
from fbtasks.features.progress.store import Progress
from fbtasks.queue import codec
from fbtasks.tasks.call import Call

pytestmark = pytest.mark.skipif(os.environ.get("FBTASKS_TEST_FEATURES") == "none", reason="calls routines of features")

ROUTINES = """
    SELECT TRIM(P.PACKAGE), TRIM(P.NAME), P.CALLED FROM RDB$USER_PRIVILEGES U JOIN (
        SELECT RDB$PACKAGE_NAME, RDB$PROCEDURE_NAME, IIF(RDB$PROCEDURE_TYPE = 1, 'SELECT * FROM', 'EXECUTE PROCEDURE')
            FROM RDB$PROCEDURES WHERE COALESCE(RDB$PRIVATE_FLAG, 0) = 0
        UNION ALL
        SELECT RDB$PACKAGE_NAME, RDB$FUNCTION_NAME, 'SELECT' FROM RDB$FUNCTIONS WHERE COALESCE(RDB$PRIVATE_FLAG, 0) = 0
        ) P (PACKAGE, NAME, CALLED) ON P.PACKAGE = U.RDB$RELATION_NAME
    WHERE U.RDB$USER = ? AND U.RDB$PRIVILEGE = 'X' ORDER BY 1, 2
"""
TABLES = """
    SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS
    WHERE RDB$RELATION_NAME STARTING WITH 'QUEUE_' AND RDB$RELATION_TYPE = 0
"""
MAY_HOLD = {
    # Rows that belong to everybody who knows their id, which is random.
    "FBTASKS_CELERY_API.CHORD_BEGIN": {"QUEUE_CELERY_CHORD"},
    "FBTASKS_CELERY_API.CHORD_SIZE": {"QUEUE_CELERY_CHORD"},
    "FBTASKS_CELERY_API.DELETE_VALUE": {"QUEUE_CELERY"},
    "FBTASKS_CELERY_API.PUT_VALUE": {"QUEUE_CELERY"},
    "FBTASKS_WORKFLOWS_API.FORGET_GROUP": {"QUEUE_GROUP_SAVED"},
    "FBTASKS_WORKFLOWS_API.SAVE_GROUP": {"QUEUE_GROUP_SAVED"},
    # The oldest message of a queue that is full, which all others pass over.
    "FBTASKS_CELERY_API.PUBLISH": {"QUEUE_MSG"},
    "FBTASKS_CELERY_API.PUBLISH_PACKED": {"QUEUE_MSG"},
}
"""Routines, and the tables in which they hold rows of others."""
HELD_FOR_NOBODY = {"QUEUE_PLACE", "QUEUE_MSG_COUNT"}
"""Tables of which everybody takes rows that nobody holds: places of a queue, and parts of a counter."""
EVENTS = ("heard", "kept", "unheard")
MESSAGE_QUEUES = ("expiring", "short")


@pytest.fixture
def theirs(app, session, claim):
    """Tasks, groups and more of the owner: of all that can be asked for by a number or a name one at least."""
    app.queue("full", max_length=1, when_full="reject")
    app.limit("lim", at_once=1)
    add = app.task(name="add")(lambda a, b: a + b)
    limited = app.task(name="limited", queue="held", limits="lim")(print)
    unique = app.task(name="unique", queue="held", unique=Unique(conflict="raise"))(print)
    app.on_event("heard", queue="held")(print)
    app.on_event("kept", queue="held", order="key")(print)
    apply(app)
    tasks = [add.delay(1, None), add.delay(1, 2)]
    drain(app)
    tasks.append(add.delay(1, 2))
    (running,) = claim()
    session.run(lambda t: progress.put(t, [Progress(running.id, running.claim_id, "HALF", b"{}")]))
    whole, saved = (group(add.s(1, 2), add.s(3, 4)) | add.s(5)).delay(), group(add.s(1, 2), add.s(3, 4)).delay()
    saved.save()
    tasks += [add.delay(1, 2), add.apply_async((1, 2), task_id="order-1"), add.apply_async((1, 2), countdown=99)]
    tasks += [add.apply_async((1, 2), queue="full"), limited.delay(), unique.delay(), whole, *whole.parent]
    app.raise_event("kept", 1, order_key="k")
    app.raise_event("unheard", 1)
    for spec in (QueueSpec("expiring", expires=60_000), QueueSpec("short", max_length=1)):
        session.run(lambda t, spec=spec: messages.declare_queue(t, spec, None))
        session.run(lambda t, name=spec.name: messages.publish(t, [Publication("", name, b"{}")]))
    session.sql("UPDATE QUEUE_MSG_QUEUE SET USED_TIME = DATEADD(-1 MINUTE TO USED_TIME)")
    session.run(lambda t: keyvalues.store(t, "key", b"{}", final=False, expires=None))
    session.run(lambda t: chords.begin(t, "chord", None, 60.0))
    numbers = [one(app, "SELECT ID FROM QUEUE_GROUP"), *(int(task.id) for task in tasks if task.id != "order-1")]
    ((limit, lane),) = rows(app, "SELECT OWNER_ID, LANE FROM QUEUE_HOLD WHERE TASK_ID = ?", int(tasks[8].id))
    return SimpleNamespace(
        numbers=numbers, ids=b"".join(b"%019d" % each for each in numbers), limit=limit, saved=saved.id,
        gate=b"r%011d%020d" % (limit, lane),
    )  # fmt: skip


def _of_each(theirs, *more):
    return [(number, *more) for number in theirs.numbers]


def _packed(theirs):
    """Records of ENQUEUE_PACKED: calls of which one is unique and one full up, and a step that is there."""
    plain = codec.pack_call(Call("add", "default", "application/json", b"[[1,2],{}]", task_id="order-1"))
    unique = codec.pack_call(Call("unique", "held", "application/json", b"[[],{}]"))
    known = b"n" + unique[1:] + b"01" + theirs.gate
    step = b"@2026-01-01 00:00:00.0000%019d000000" % theirs.numbers[-1]
    full = codec.pack_call(Call("add", "full", "application/json", b"[[1,2],{}]"))
    return [(plain,), (known,), (full,), (step + plain,)]


def _nodes(theirs):
    """Records of PUT_NODES: a member for each group, and tasks that follow and are followed."""
    own = theirs.numbers[-1]
    parts = [
        part % (number, other)
        for part in (b"M%019d0%019d00000000010000000001", b"L%019d0%019d00000000010000000000")
        for number in theirs.numbers
        for other in (own, number)
    ]
    return [(part,) for part in parts]


CALLS = {
    "FBTASKS.ENQUEUE": lambda _: [
        ("add", "[1, 2]", "{}", None, "default", 0, "order-1"),
        ("add", "[1, 2]", "{}", None, "full", 0, None),
    ],
    "FBTASKS.RAISE_EVENT": lambda _: [(event, "1", None, key) for event in EVENTS for key in (None, "k")],
    "FBTASKS_CELERY_API.BIND": lambda _: [("expiring", "amq.direct", "key")],
    "FBTASKS_CELERY_API.CHORD_BEGIN": lambda _: [("chord", 60_000, None)],
    "FBTASKS_CELERY_API.CHORD_SIZE": lambda _: [("chord", 3, 0)],
    "FBTASKS_CELERY_API.DECLARE_EXCHANGE": lambda _: [("amq.direct", "direct", True, False)],
    "FBTASKS_CELERY_API.DECLARE_QUEUE": lambda _: [
        ("expiring", passive, False, False, None, 60_000, None, None, None, None) for passive in (False, True)
    ],
    "FBTASKS_CELERY_API.DELETE_VALUE": lambda _: [("key",)],
    "FBTASKS_CELERY_API.GET_VALUE": lambda _: [("key",)],
    "FBTASKS_CELERY_API.PUBLISH": lambda _: [("", name, 0, None, None, b"{}", None, None) for name in MESSAGE_QUEUES],
    "FBTASKS_CELERY_API.PUBLISH_PACKED": lambda _: [
        (messages._pack(Publication("", name, b"{}")),) for name in MESSAGE_QUEUES
    ],
    "FBTASKS_CELERY_API.PUT_VALUE": lambda _: [("key", 1, None, b"{}", None)],
    "FBTASKS_LIMITS_API.FIND_LIMIT": lambda _: [("lim",)],
    "FBTASKS_LIMITS_API.USE_LIMIT": lambda theirs: [(theirs.limit, "held"), (theirs.limit, "elsewhere")],
    "FBTASKS_PRODUCER.ENQUEUE_PACKED": _packed,
    "FBTASKS_PRODUCER.KILL_OWN_CONNECTION": lambda _: [(1,)],
    "FBTASKS_PRODUCER.POLICY_HASH": lambda _: [("full",)],
    "FBTASKS_PRODUCER.PUT_EXTRAS": lambda theirs: _of_each(theirs, b"010001ab"),
    "FBTASKS_PRODUCER.PUT_PAYLOAD": lambda theirs: _of_each(theirs, b"[[9,9],{}]"),
    "FBTASKS_PROGRESS_API.READ_PROGRESS": _of_each,
    "FBTASKS_READER.CANCEL": lambda theirs: _of_each(theirs, 1),
    "FBTASKS_READER.CANCEL_MANY": lambda theirs: [(theirs.ids, 1)],
    "FBTASKS_READER.DISMISS": _of_each,
    "FBTASKS_READER.NUMBER": lambda _: [("order-1",)],
    "FBTASKS_READER.NUMBERS": lambda _: [(hashlib.sha256(b"order-1").digest(),)],
    "FBTASKS_READER.OUTCOME": _of_each,
    "FBTASKS_READER.OUTCOMES": lambda theirs: [(theirs.ids,)],
    "FBTASKS_READER.STATE": _of_each,
    "FBTASKS_SOURCES_API.RAISE_EVENT": lambda _: [
        (event, "1", None, None, key) for event in EVENTS for key in (None, "k")
    ],
    "FBTASKS_SOURCES_API.RAISE_TEXT": lambda _: [(event, "1", None, key) for event in EVENTS for key in (None, "k")],
    "FBTASKS_TASKS.CANCEL": lambda theirs: _of_each(theirs, 1),
    "FBTASKS_TASKS.DISMISS": _of_each,
    "FBTASKS_TASKS.NUMBER": lambda _: [("order-1",)],
    "FBTASKS_TASKS.OUTCOME": _of_each,
    "FBTASKS_TASKS.STATE": _of_each,
    "FBTASKS_VIEW.LIVE_IN": lambda _: [("default",)],
    "FBTASKS_VIEW.STATES": lambda _: [()],
    "FBTASKS_WORKFLOWS_API.FOLLOWS_GROUPS": lambda _: [("default",), ("elsewhere",)],
    "FBTASKS_WORKFLOWS_API.FORGET_GROUP": lambda theirs: [(theirs.saved,)],
    "FBTASKS_WORKFLOWS_API.PUT_NODES": _nodes,
    "FBTASKS_WORKFLOWS_API.SAVED_GROUP": lambda theirs: [(theirs.saved,)],
    "FBTASKS_WORKFLOWS_API.SAVE_GROUP": lambda theirs: [(theirs.saved, 60_000, b"[]")],
    "FBTASKS_WORKFLOWS_API.STEP_IDS": lambda _: [(1,)],
    "FBTASKS_WORKFLOWS_VIEW.WORKFLOW": lambda theirs: _of_each(theirs, 100),
}
"""Arguments of each routine: the numbers and the names of what others have."""


class Locks:
    """Finds the rows that transactions of others hold."""

    def __init__(self, app, connection):
        self._connection = connection
        self._cursor = connection.cursor()
        filled = [name for (name,) in rows(app, TABLES) if rows(app, f"SELECT FIRST 1 1 FROM {name}")]
        self._asked = {
            name: [self._cursor.prepare(f"SELECT 1 FROM {name}{lock}") for lock in ("", " WITH LOCK SKIP LOCKED")]
            for name in filled
        }

    def held(self):
        """Returns the tables with rows that another transaction has changed, deleted or locked."""
        try:
            return {name for name, asked in self._asked.items() if self._many(asked[0]) != self._many(asked[1])}
        finally:
            self._connection.rollback()

    def _many(self, statement):
        return len(self._cursor.execute(statement).fetchall())

    def close(self):
        for statement in chain.from_iterable(self._asked.values()):
            statement.free()


def called(cursor, package, name, how, params):
    """Calls a routine, and returns the rows of its answer. Raises what the driver does."""
    given = f"({', '.join('?' * len(params))})" if params else ""
    more = " FROM RDB$DATABASE" if how == "SELECT" else ""
    cursor.execute(f"{how} {package}.{name}{given}{more}", params or None)
    return cursor.fetchall() if cursor.description else []


def routine_of(package, name):
    """The name of a routine without its generation."""
    return f"{re.sub('_[0-9]+$', '', package)}.{name}"


@contextmanager
def connected(app, role):
    """A connection of a user with that role."""
    with with_role(app, role) as url, closing(FBTasks("other", url)) as other, other.connect() as connection:
        yield connection


@pytest.mark.parametrize("role", ["producer", "viewer"])  # a worker and an operator hold what they change
def test_nobody_waits_for_an_open_transaction(app, theirs, role):
    found = {}
    with (
        connected(app, role) as caller,
        app.connect() as watcher,
        closing(caller.cursor()) as cursor,
        closing(Locks(app, watcher)) as locks,
    ):
        assert not locks.held()
        for package, name, how in rows(app, ROUTINES, f"FBTASKS_{role.upper()}"):
            routine = routine_of(package, name)
            for params in CALLS[routine](theirs):
                with suppress(DatabaseError):  # refused is as good
                    called(cursor, package, name, how, params)
                held = locks.held() - MAY_HOLD.get(routine, set()) - HELD_FOR_NOBODY
                if held:
                    found[routine, params] = held
                caller.rollback()
    assert not found


NUMBERS = """
    SELECT P.RDB$PARAMETER_NUMBER, TRIM(P.RDB$PARAMETER_NAME), F.RDB$FIELD_LENGTH FROM RDB$PROCEDURE_PARAMETERS P
        JOIN RDB$FIELDS F ON F.RDB$FIELD_NAME = P.RDB$FIELD_SOURCE
    WHERE P.RDB$PACKAGE_NAME = ? AND P.RDB$PROCEDURE_NAME = ? AND P.RDB$PARAMETER_TYPE = 0
        AND F.RDB$FIELD_TYPE IN (7, 8, 16)
"""
"""The parameters of a procedure that are numbers."""
OF_SOMETHING = {"ID", "CONSUMER_ID", "TRANSACTION_ID"}
"""Numbers of things: of one that is not there nothing is done, and nothing is told."""
CUT = {("FBTASKS_CELERY_API.DECLARE_QUEUE", name) for name in ("MESSAGE_TTL_MS", "EXPIRES_MS", "MAX_LENGTH")}
"""Arguments of a queue of messages, which are brought into their range."""


def refusal(cursor, package, name, how, params):
    """The message with which the queue refuses a call, in its own words; None: it takes the call."""
    try:
        called(cursor, package, name, how, params)
    except DatabaseError as error:
        said = " ".join(str(error).split())
        assert OWN.search(said), (package, name, params, said)
        return said
    return None


OWN = re.compile("QUEUE_(BAD_CALL|STEP_REFUSED|BAD_EVENT)|Invalid length parameter")
"""Our own exceptions, and one of the engine that names the length as well."""


def test_each_number_that_a_producer_gives_has_a_bound(app, theirs):
    taken = []
    with connected(app, "producer") as caller, closing(caller.cursor()) as cursor:
        for package, name, how in rows(app, ROUTINES, "FBTASKS_PRODUCER"):
            routine = routine_of(package, name)
            for at, parameter, size in rows(app, NUMBERS, package, name):
                if parameter in OF_SOMETHING or (routine, parameter) in CUT:
                    continue
                for number in (-(1 << 8 * size - 1), -1, (1 << 8 * size - 1) - 1):
                    params = list(CALLS[routine](theirs)[0])
                    params[at] = number
                    said = refusal(cursor, package, name, how, params)
                    if said is None and (number != -1 or parameter != "PRIORITY"):  # -1 is one of a task
                        taken.append((routine, parameter, number))
                    assert said is None or str(number) in said
                    caller.rollback()
    assert not taken


CALL = {
    "start": (1, 15), "expiry": (17, 15), "priority": (32, 6), "tries": (38, 10), "len_queue": (48, 3),
    "len_name": (51, 4), "len_task_id": (55, 4), "len_type": (59, 3), "len_payload": (62, 5),
}  # fmt: skip
"""Numbers in a record of ENQUEUE_PACKED: where, and how wide."""
PART = {"id": (1, 19), "kind": (20, 1), "first": (21, 19), "many": (40, 10), "number": (50, 10)}
"""The same of PUT_NODES."""
GROUP = {"id": (1, 19), "kind": (20, 1), "len_queue": (22, 3)}
MESSAGE = {"start": (1, 15), "ttl": (16, 15), "exchange": (31, 4), "key": (35, 4), "other": (39, 4), "text": (43, 5)}
"""The same of PUBLISH_PACKED."""
LONGER = {"exchange", "key", "other", "text"}
"""Lengths of more than there is stand for all there is."""


def _records(theirs, first):
    """Records that are taken, each with its routine, what is called with it, its numbers, and where these begin."""
    call = codec.pack_call(Call("add", "default", "application/json", b"[[1,2],{}]"))
    moment = b"A" + call[1:16] + b"A" + call[17:]
    gated = b"n" + call[1:] + b"01" + b"-" + theirs.gate[1:]
    step = b"@2026-01-01 00:00:00.0000%019d000000" % first
    message = messages._pack(Publication("", "expiring", b"{}"))
    gates = {"many": (len(call), 2), "limit": (len(call) + 3, 11)}
    yield from [("ENQUEUE_PACKED", call, CALL, 0), ("ENQUEUE_PACKED", moment, CALL, 0)]
    yield from [("ENQUEUE_PACKED", gated, gates, 0), ("ENQUEUE_PACKED", step + call, {"id": (25, 19)}, 0)]
    yield "ENQUEUE_PACKED", step + call, CALL, len(step)
    yield "PUT_NODES", b"L%019d0%019d%010d%010d" % (first, first + 1, 1, 0), PART, 0
    yield "PUT_NODES", b"G%019d00007default" % (first + 2), GROUP, 0
    yield "PUT_NODES", b"G%019d00007defaultM%019d0%019d%010d%010d" % (first, first, first + 1, 1, 0), PART, 32
    yield "PUBLISH_PACKED", message, MESSAGE, 0


def test_each_number_in_a_record_of_a_producer_has_a_bound(app, theirs):
    taken = []
    with connected(app, "producer") as caller, closing(caller.cursor()) as cursor:
        found = {name: (package, name, how) for package, name, how in rows(app, ROUTINES, "FBTASKS_PRODUCER")}
        cursor.execute("SET STATEMENT TIMEOUT 5 SECOND")
        (first, *_), *_ = called(cursor, *found["STEP_IDS"], (10,))
        caller.commit()
        for name, record, numbers, offset in _records(theirs, first):
            assert refusal(cursor, *found[name], [record]) is None, record
            caller.rollback()
            for number, (at, width) in numbers.items():
                for value in (b"-" + b"9" * (width - 1), b"%d" % min(10**width - 1, 2**63 - 1)):
                    if value == b"-":
                        continue  # one digit has no sign
                    whole = record[: offset + at] + value + record[offset + at + width :]
                    said = refusal(cursor, *found[name], [whole])
                    if said is None and (number not in LONGER or value[:1] == b"-"):
                        taken.append((name, number, value))
                    caller.rollback()
        (made,) = called(cursor, *found["ENQUEUE"], ("add", "[]", "{}", None, "default", 0, None))
        for lengths in (b"-90001", b"01-999"):
            assert refusal(cursor, *found["PUT_EXTRAS"], [made[0], lengths + b"ab"]), lengths
        caller.rollback()
    assert not taken


def test_what_is_not_there_is_not_noted(app, theirs):
    """3,000 limits that are not there leave nothing, and 3,000 queues of which nothing is known leave a hundred."""
    many = """
        EXECUTE BLOCK AS
            DECLARE NUMBER INTEGER = 0;
            DECLARE DONE SMALLINT;
        BEGIN
            WHILE (NUMBER < 3000) DO
            BEGIN
                NUMBER = NUMBER + 1;
                BEGIN
                    EXECUTE PROCEDURE %s RETURNING_VALUES DONE;
                    WHEN ANY DO BEGIN END
                END
            END
        END
    """
    noted = "SELECT COUNT(*) FROM QUEUE_FEEDER WHERE OWNER_ID = ?"
    before = one(app, "SELECT COUNT(*) FROM QUEUE_FEEDER")
    with connected(app, "producer") as caller, closing(caller.cursor()) as cursor:
        for call in ("LIMITS_API.USE_LIMIT(100000 + NUMBER, 'q' || NUMBER)", "LIMITS_API.USE_LIMIT(NULL, NULL)"):
            cursor.execute(numbered(many % f"FBTASKS_{call}", app.database.generation))
        assert one(app, "SELECT COUNT(*) FROM QUEUE_FEEDER") == before
        for call in (
            f"LIMITS_API.USE_LIMIT({theirs.limit}, 'q' || NUMBER)",
            "WORKFLOWS_API.FOLLOWS_GROUPS('q' || NUMBER)",
        ):
            cursor.execute(numbered(many % f"FBTASKS_{call}", app.database.generation))
        assert [one(app, noted, owner) for owner in (theirs.limit, 0)] == [100, 100]
        ask = numbered("SELECT DONE FROM FBTASKS_WORKFLOWS_API.FOLLOWS_GROUPS(?)", app.database.generation)
        with pytest.raises(DatabaseError, match="no worker serves the queue new, nothing is in it"):
            cursor.execute(ask, ("new",)).fetchall()
        register(app, queues=["new", "weighed:3", "bounded=2", "a:b:1=2"])
        app.task(name="more", queue="newer")(print).delay()
        for queue in ("new", "weighed", "bounded", "a:b", "newer"):
            assert cursor.execute(ask, (queue,)).fetchall() == [(1,)]


def test_a_call_waits_for_limits_alone(app, theirs):
    """An owner of another kind, such as that of groups, whose number is 0, would take the call for its own matter."""
    call = codec.pack_call(Call("add", "default", "application/json", b"[[1,2],{}]"))
    event = one(app, "SELECT ID FROM QUEUE_SUBSCRIPTION WHERE SOURCE = 'kept'")
    with connected(app, "producer") as caller, closing(caller.cursor()) as cursor:
        for owner, said in ((0, "the number of a limit 0 must be from 1"), (event, f"there is no limit {event}")):
            gated = b"n%b01-%011d%020d" % (call[1:], owner, theirs.numbers[0])
            with pytest.raises(DatabaseError, match=said):
                cursor.callproc(numbered("FBTASKS_PRODUCER.ENQUEUE_PACKED", app.database.generation), [gated])
            caller.rollback()
