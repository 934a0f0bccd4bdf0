"""Triggers of ``on_change``: what was committed is in the log, once; and the statement that fires them never fails."""

import contextlib
import threading

import pytest
from support.capture import clear, lanes, listen, logged, resolved, script
from support.sql import execute, rows
from support.users import without_role

from fbtasks.database.packages import queries
from fbtasks.errors import AuthenticationError, TaskDefinitionError
from fbtasks.features.sources.store import condition
from fbtasks.firebird import connections
from fbtasks.firebird.events import Events
from fbtasks.firebird.session import Session
from fbtasks.url import DatabaseURL

pytestmark = pytest.mark.emptied

ORDERS = (
    "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(10), TOTAL NUMERIC(10, 2), NOTE VARCHAR(30))"
)
ALL = {"insert": True, "update": True, "delete": True}


@pytest.fixture
def shop(app):
    script(app, ORDERS)
    return app


def brief(app, *columns, number=1):
    """The op of each change with its key, or with *columns* of the new row, else of the old one."""
    return [
        (change.op[0], *((change.new or change.old)[c] for c in columns or change.key))
        for change in logged(app, number)
    ]


def test_what_a_change_says(shop):
    listen(shop, "orders", **ALL, columns=("status",))
    with shop.connect() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO ORDERS VALUES (1, 'NEW', 1.5, 'x')")
        number = cursor.execute("SELECT CURRENT_TRANSACTION FROM RDB$DATABASE").fetchone()[0]
        connection.commit()
        cursor.execute("UPDATE ORDERS SET STATUS = 'PAID'")
        cursor.execute("DELETE FROM ORDERS")
        connection.commit()
    insert, update, delete = logged(shop)
    assert (insert.op, insert.key, insert.old, insert.new) == ("insert", {"ID": 1}, None, {"ID": 1, "STATUS": "NEW"})
    assert (update.op, update.old, update.new) == ("update", {"ID": 1, "STATUS": "NEW"}, {"ID": 1, "STATUS": "PAID"})
    assert (delete.op, delete.key, delete.old, delete.new) == ("delete", {"ID": 1}, {"ID": 1, "STATUS": "PAID"}, None)
    user = rows(shop, "SELECT TRIM(CURRENT_USER) FROM RDB$DATABASE")[0][0]
    assert {insert.user, update.user, delete.user} == {user}
    assert insert.transaction == number < update.transaction == delete.transaction
    assert insert.id < update.id < delete.id
    assert lanes(shop) == [1, 1, 1]


def test_only_what_is_wanted_is_recorded(shop):
    listen(shop, "ORDERS", insert=True, when="new.STATUS = 'PAID' -- at once", number=1)
    listen(shop, "ORDERS", update=("STATUS", "TOTAL"), number=2)
    listen(shop, "ORDERS", update=True, number=3)
    listen(shop, "ORDERS", delete=True, when="old.TOTAL > 5", number=4)
    listen(shop, "ORDERS", **ALL, when="new.STATUS = 'PAID' AND old.STATUS IS DISTINCT FROM 'PAID'", number=5)
    execute(shop, "INSERT INTO ORDERS VALUES (1, 'PAID', 1, NULL)")
    execute(shop, "INSERT INTO ORDERS VALUES (2, 'NEW', 9, NULL)")
    execute(shop, "UPDATE ORDERS SET NOTE = 'x', STATUS = STATUS")
    execute(shop, "UPDATE ORDERS SET STATUS = NULL WHERE ID = 1")
    execute(shop, "UPDATE ORDERS SET STATUS = 'PAID', TOTAL = 9 WHERE ID = 1")
    execute(shop, "UPDATE ORDERS SET TOTAL = 1 WHERE ID = 1")
    execute(shop, "DELETE FROM ORDERS")
    assert brief(shop, number=1) == [("i", 1)]
    assert brief(shop, "STATUS", "TOTAL", number=2) == [("u", None, 1), ("u", "PAID", 9), ("u", "PAID", 1)]
    assert brief(shop, number=3) == [("u", 1), ("u", 2), ("u", 1), ("u", 1), ("u", 1)]
    assert brief(shop, number=4) == [("d", 2)]
    assert brief(shop, number=5) == [("i", 1), ("u", 1)]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_two_phase_commit(shop, tmp_path, end):
    from firebird.driver import DistributedTransactionManager

    listen(shop, "ORDERS", **ALL)
    other = DatabaseURL.parse(f"firebird://{tmp_path}/other.fdb")
    with (
        contextlib.closing(connections.connect(other, create=True)) as second,
        contextlib.closing(shop.connect()) as first,
    ):
        manager = DistributedTransactionManager((first, second))
        cursor = manager.cursor(first)
        cursor.execute("INSERT INTO ORDERS VALUES (1, 'A', 1, NULL)")
        manager.prepare()
        assert logged(shop) == []
        getattr(manager, end)()
        manager.close()
    assert brief(shop) == ([("i", 1)] if end == "commit" else [])


def test_merge_and_update_or_insert(shop):
    execute(shop, "INSERT INTO ORDERS VALUES (1, 'A', 1, NULL)")
    execute(shop, "INSERT INTO ORDERS VALUES (2, 'A', 1, NULL)")
    listen(shop, "ORDERS", **ALL)
    execute(
        shop,
        "MERGE INTO ORDERS O USING (SELECT ROW_NUMBER() OVER () AS N FROM RDB$TYPES ROWS 3) S ON O.ID = S.N "
        "WHEN MATCHED AND S.N = 1 THEN DELETE WHEN MATCHED THEN UPDATE SET STATUS = 'B' "
        "WHEN NOT MATCHED THEN INSERT (ID) VALUES (S.N)",
    )
    assert sorted(brief(shop)) == [("d", 1), ("i", 3), ("u", 2)]
    clear(shop)
    execute(shop, "UPDATE OR INSERT INTO ORDERS (ID, STATUS) VALUES (3, 'C')")
    execute(shop, "UPDATE OR INSERT INTO ORDERS (ID, STATUS) VALUES (4, 'C')")
    assert brief(shop) == [("u", 3), ("i", 4)]


def test_a_cascade(shop):
    script(
        shop,
        "CREATE TABLE ITEM (ID INTEGER NOT NULL PRIMARY KEY, "
        "ORDER_ID INTEGER REFERENCES ORDERS ON DELETE CASCADE ON UPDATE CASCADE)",
    )
    execute(shop, "INSERT INTO ORDERS (ID) VALUES (1)")
    execute(shop, "INSERT INTO ITEM VALUES (10, 1)")
    execute(shop, "INSERT INTO ITEM VALUES (11, 1)")
    listen(shop, "ITEM", update=("ORDER_ID",), delete=True)
    execute(shop, "UPDATE ORDERS SET ID = 2")
    execute(shop, "DELETE FROM ORDERS")
    assert sorted(brief(shop, "ID", "ORDER_ID")) == [("d", 10, 2), ("d", 11, 2), ("u", 10, 2), ("u", 11, 2)]


def test_a_changed_key_is_recorded_under_both(shop):
    listen(shop, "ORDERS", **ALL, columns=("STATUS",), number=1)
    listen(shop, "ORDERS", **ALL, columns=("STATUS",), order="total", number=2)
    execute(shop, "INSERT INTO ORDERS VALUES (1, 'A', 1, NULL)")
    clear(shop)
    execute(shop, "UPDATE ORDERS SET ID = 2, STATUS = 'B'")
    out, into = logged(shop)
    assert (out.moved, out.key, into.moved, into.key) == ("out", {"ID": 1}, "in", {"ID": 2})
    assert out.old == into.old == {"ID": 1, "STATUS": "A"}
    assert out.new == into.new == {"ID": 2, "STATUS": "B"}
    assert lanes(shop) == [1, 2]
    (only,) = logged(shop, 2)
    assert (only.moved, only.key, only.old, only.new) == (None, {"ID": 2}, out.old, out.new)
    assert lanes(shop, 2) == [0]


def test_a_key_of_one_integer_is_its_own_lane(shop):
    script(shop, "CREATE TABLE T (ID BIGINT NOT NULL PRIMARY KEY, CUSTOMER SMALLINT)")
    listen(shop, "T", insert=True, number=1)
    listen(shop, "T", insert=True, key="CUSTOMER", number=2)
    for values in ("-9223372036854775808, -1", "9223372036854775807, NULL"):
        execute(shop, f"INSERT INTO T VALUES ({values})")
    assert lanes(shop, 1) == [-(2**63) + 1, 2**63 - 1]  # no lane has the least number, which an index does not find
    assert [change.key["ID"] for change in logged(shop, 1)] == [-(2**63), 2**63 - 1]
    assert lanes(shop, 2) == [-1, 0]
    assert [change.key for change in logged(shop, 2)] == [{"CUSTOMER": -1}, {"CUSTOMER": None}]


def test_other_keys_are_hashed(shop):
    script(shop, "CREATE TABLE T (A VARCHAR(40) NOT NULL, B NUMERIC(5, 1) NOT NULL, PRIMARY KEY (A, B))")
    listen(shop, "T", **ALL, number=1)
    listen(shop, "T", insert=True, key="A", number=2)
    values = [(a + b, n) for a in "AQBP01" for b in "AQBP01" for n in (1, 2)]
    for a, n in values:
        execute(shop, "INSERT INTO T VALUES (?, ?)", a, n)
    assert len(set(lanes(shop, 1))) == len(values)
    assert len(set(lanes(shop, 2))) == len(values) / 2
    first = lanes(shop, 1)
    clear(shop)
    execute(shop, "DELETE FROM T")
    assert sorted(lanes(shop, 1)) == sorted(first)


def test_a_key_that_changes_for_no_collation_changes_all_the_same(shop):
    script(shop, "CREATE TABLE T (A VARCHAR(10) CHARACTER SET UTF8 NOT NULL PRIMARY KEY COLLATE UNICODE_CI)")
    listen(shop, "T", **ALL)
    execute(shop, "INSERT INTO T VALUES ('a')")
    execute(shop, "UPDATE T SET A = 'A'")
    assert [(change.op, change.key["A"], change.moved) for change in logged(shop)] == [
        ("insert", "a", None),
        ("update", "a", "out"),
        ("update", "A", "in"),
    ]


@pytest.mark.parametrize(
    ("when", "message"),
    [
        ("1 / (new.TOTAL - new.TOTAL) = 1", "Integer divide by zero"),
        ("CAST(new.NOTE AS INTEGER) = 1", 'conversion error from string "say "'),
    ],
)
def test_a_condition_that_fails_leaves_an_error_and_does_no_harm(shop, when, message):
    listen(shop, "ORDERS", **ALL, when=when)
    execute(shop, "INSERT INTO ORDERS VALUES (5, 'A', 1, ?)", 'say "ä\\ö"')
    execute(shop, "UPDATE ORDERS SET ID = 6, STATUS = 'B'")
    assert rows(shop, "SELECT ID, STATUS FROM ORDERS") == [(6, "B")]
    insert, update = logged(shop)
    assert (insert.op, insert.key, insert.old, insert.new) == ("insert", {"ID": 5}, None, None)
    assert (update.op, update.key, update.moved) == ("update", {"ID": 6}, None)
    assert message in insert.error
    assert "At trigger 'QUEUE_ON_1'" in insert.error
    assert lanes(shop) == [5, 6]


def test_a_value_that_cannot_be_recorded_leaves_an_error(shop):
    script(shop, "CREATE TABLE T (ID INTEGER PRIMARY KEY, A VARCHAR(10) CHARACTER SET NONE)")
    listen(shop, "T", **ALL, columns=("A",), charset="UTF8", number=1)
    listen(shop, "T", insert=True, key="A", charset="UTF8", number=2)
    execute(shop, "INSERT INTO T VALUES (1, CAST(x'C3A4' AS VARCHAR(10) CHARACTER SET NONE))")
    execute(shop, "INSERT INTO T VALUES (2, CAST(x'FFFF' AS VARCHAR(10) CHARACTER SET NONE))")
    execute(shop, "DELETE FROM T WHERE ID = 1")
    good, bad, gone = logged(shop, 1)
    assert good.new == gone.old == {"ID": 1, "A": "ä"}
    assert "Malformed string" in bad.error
    assert bad.key == {"ID": 2}
    good, bad = logged(shop, 2)
    assert good.key == {"A": "ä"}
    assert (bad.key, bool(bad.error)) == ({}, True)
    assert lanes(shop, 2)[1] == 0


def test_an_error_whose_text_cannot_be_read_is_recorded_by_its_number(shop):
    script(shop, "CREATE TABLE T (ID INTEGER PRIMARY KEY, A VARCHAR(10) CHARACTER SET NONE)")
    listen(shop, "T", insert=True, when="CAST(new.A AS INTEGER) = 1")
    execute(shop, "INSERT INTO T VALUES (2, CAST(x'FFFE41' AS VARCHAR(10) CHARACTER SET NONE))")
    (bad,) = logged(shop)
    assert bad.error
    assert bad.key == {"ID": 2}


def test_a_transaction_can_be_silenced(shop):
    listen(shop, "ORDERS", insert=True, task="shop.paid", number=1)
    listen(shop, "ORDERS", insert=True, task="shop.größe", number=2)
    listen(shop, "ORDERS", insert=True, task="shop.always", always=True, number=3)
    listen(shop, "ORDERS", insert=True, task='it\'s "so"', number=4)
    silent = [
        "*",
        "shop.paid",
        "shop.größe, shop.paid",
        "shop.größe,other",
        "shop.pai,hop.paid",
        "",
        " shop.paid",
        'it\'s "so"',
    ]
    with shop.connect() as connection, connection.cursor() as cursor:
        for number, names in enumerate(silent):
            cursor.execute(
                "SELECT RDB$SET_CONTEXT('USER_TRANSACTION', 'FBTASKS_SILENT', ?) FROM RDB$DATABASE", (names,)
            )
            cursor.fetchall()
            cursor.execute("INSERT INTO ORDERS (ID) VALUES (?)", (number,))
            connection.commit()
        cursor.execute("INSERT INTO ORDERS (ID) VALUES (8)")  # it holds for its transaction
        connection.commit()
    assert [change.key["ID"] for change in logged(shop, 1)] == [3, 4, 5, 7, 8]
    assert [change.key["ID"] for change in logged(shop, 2)] == [1, 4, 5, 6, 7, 8]
    assert [change.key["ID"] for change in logged(shop, 3)] == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert [change.key["ID"] for change in logged(shop, 4)] == [1, 2, 3, 4, 5, 6, 8]


def test_an_event_is_posted_with_a_change_and_with_an_error(shop):
    listen(shop, "ORDERS", insert=True, queue="mail", when="1 / new.ID = 1")
    with contextlib.closing(shop.database.open()) as session:
        events = Events(session, ["fbtasks:queue:mail"])
        events.wait(30)  # the first answer tells how often it has been posted so far
        for number in (1, 0):
            execute(shop, "INSERT INTO ORDERS (ID) VALUES (?)", number)
            assert events.wait(30) == ["fbtasks:queue:mail"]
        events.close()
    assert [bool(change.error) for change in logged(shop)] == [False, True]


ISOLATIONS = [
    "SNAPSHOT",
    "READ_COMMITTED_READ_CONSISTENCY",
    "READ_COMMITTED_RECORD_VERSION",
    "READ_COMMITTED_NO_RECORD_VERSION",
]


# The driver prints this when another thread collects garbage while it closes a connection.
@pytest.mark.filterwarnings("ignore:.*Connection.__stmt_deleted:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_writers_are_never_in_each_others_way(shop, isolation):
    """Four connections, five keys of the log and rows of their own: the trigger adds no conflict of its own."""
    from firebird.driver import Isolation, tpb

    script(shop, "CREATE TABLE T (ID INTEGER PRIMARY KEY, CUSTOMER INTEGER)")
    listen(shop, "T", **ALL, key="CUSTOMER")
    kind = tpb(Isolation[isolation], lock_timeout=0)
    failures = []

    def write(writer):
        with contextlib.closing(shop.connect()) as connection:
            manager = connection.transaction_manager(kind)
            cursor = manager.cursor()
            try:
                for turn in range(40):
                    number = writer * 1000 + turn
                    cursor.execute("INSERT INTO T VALUES (?, ?)", (number, turn % 5))
                    cursor.execute("UPDATE T SET CUSTOMER = ? WHERE ID = ?", ((turn + 1) % 5, number))
                    cursor.execute("DELETE FROM T WHERE ID = ?", (number,))
                    manager.commit()
            except Exception as error:
                failures.append(error)
            finally:
                cursor.close()
                manager.close()

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert failures == []
    assert sorted(change.op for change in logged(shop)) == ["delete"] * 160 + ["insert"] * 160 + ["update"] * 320


def test_a_writer_needs_no_rights_on_the_log(shop):
    listen(shop, "ORDERS", **ALL)
    script(
        shop,
        "CREATE TABLE CUSTOMER (ID INTEGER)",
        "CREATE FUNCTION HALF (N INTEGER) RETURNS INTEGER AS BEGIN RETURN N / 2; END",
        "CREATE SEQUENCE COUNTED",
    )
    when = (
        "NOT EXISTS(SELECT 1 FROM CUSTOMER) AND HALF(new.ID) = 0 AND NEXT VALUE FOR COUNTED > 0 "
        "AND EXISTS(SELECT 1 FROM ORDERS O WHERE O.ID = new.ID)"
    )
    listen(shop, "ORDERS", insert=True, when=when, number=2)
    with contextlib.ExitStack() as stack:
        ann = stack.enter_context(without_role(shop))
        script(shop, f"GRANT INSERT, UPDATE, DELETE ON ORDERS TO USER {ann.user}")
        connection = stack.enter_context(contextlib.closing(connections.connect(ann)))
        cursor = stack.enter_context(connection.cursor())
        cursor.execute("INSERT INTO ORDERS (ID) VALUES (1)")
        cursor.execute("UPDATE ORDERS SET ID = 2")
        cursor.execute("DELETE FROM ORDERS")
        connection.commit()
        for forbidden in (
            "SELECT COUNT(*) FROM QUEUE_CHANGE",
            "INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID) VALUES (1)",
            "SELECT NEXT VALUE FOR QUEUE_CHANGE_SEQ FROM RDB$DATABASE",
        ):
            with pytest.raises(Exception, match="no permission"):
                cursor.execute(forbidden).fetchall()
    assert [(change.op, change.user) for change in logged(shop)] == [
        (op, ann.user) for op in ("insert", "update", "update", "delete")
    ]
    assert [(change.op, change.error) for change in logged(shop, 2)] == [("insert", None)]


MANY = "INSERT INTO ORDERS (ID) SELECT ROW_NUMBER() OVER () FROM RDB$TYPES A, RDB$TYPES B, RDB$TYPES C"


def test_a_statement_that_takes_too_long_ends(shop):
    """The trigger takes the end of the statement that fires it for no error of its own."""
    listen(shop, "ORDERS", insert=True, when="new.ID > 0")
    with shop.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET STATEMENT TIMEOUT 150 MILLISECOND")
        with pytest.raises(Exception, match="timeout"):
            cursor.execute(MANY)
        connection.commit()
    assert rows(shop, "SELECT COUNT(*) FROM ORDERS") == [(0,)]
    assert logged(shop) == []


def test_a_cancelled_statement_ends(shop):
    listen(shop, "ORDERS", insert=True, when="(SELECT COUNT(*) FROM RDB$TYPES A, RDB$TYPES B) > new.ID - new.ID")
    with contextlib.closing(shop.database.open()) as session, session.connection.cursor() as cursor:
        timer = threading.Timer(0.3, session.cancel_statement)
        timer.start()
        with pytest.raises(Exception, match="cancel"):
            cursor.execute(MANY)
        timer.join()
        session.connection.rollback()
    assert logged(shop) == []


def test_a_user_who_may_not_make_triggers_is_told_that(shop):
    capture = resolved(shop, "ORDERS", insert=True, when="new.ID > 0")
    said = "may not do this: .*no permission for ALTER access to TABLE ORDERS"
    with (
        without_role(shop) as ann,
        contextlib.closing(Session(connections.connect(ann), ann, queries())) as session,
        pytest.raises(AuthenticationError, match=said),
    ):
        condition.check(session, capture)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"insert": True, "when": "new.STATE = 'PAID'"},
            r"when=\"new.STATE = 'PAID'\" does not compile .*Column unknown -NEW.STATE",
        ),
        (
            {"insert": True, "when": "old.STATUS = 'PAID'"},
            r"Column unknown -OLD.STATUS.* names columns of 'ORDERS' as new.COLUMN",
        ),
        ({"delete": True, "when": "new.STATUS = 'PAID'"}, r"Column unknown -NEW.STATUS.* as old.COLUMN"),
        ({"insert": True, "when": "new.STATUS"}, "Invalid usage of boolean expression"),
        ({"insert": True, "when": "new.ID = ?"}, "does not compile"),
        ({"insert": True, "when": "new.ID = 1; END"}, "does not compile .*Token unknown"),
        (
            {"insert": True, "when": "1 = 0) THEN EXIT; DELETE FROM ORDERS; IF (1 = 1"},
            r"does not compile \(a '\)' has no '\(' before it\)",
        ),
        ({"update": ("STATE",)}, r"the table 'ORDERS' has no column 'STATE'. Did you mean 'STATUS'"),
        ({"insert": True, "columns": ("status", "totla")}, r"no column 'totla'. Did you mean 'TOTAL'"),
        ({"insert": True, "key": "IDD"}, r"no column 'IDD'. Did you mean 'ID'"),
    ],
)
def test_definitions_that_do_not_fit_the_table_are_refused(shop, options, said):
    with pytest.raises(TaskDefinitionError, match=said):
        resolved(shop, "orders", **options)
    assert rows(shop, "SELECT COUNT(*) FROM RDB$TRIGGERS WHERE RDB$TRIGGER_NAME STARTING 'QUEUE_ON'") == [(0,)]


@pytest.mark.parametrize(
    ("table", "options", "said"),
    [
        ("ORDER", {}, r"the database has no table 'ORDER'. Did you mean 'ORDERS'"),
        ("order_view", {}, "changes of 'ORDER_VIEW' cannot be recorded: it is a view"),
        ("TEMP_A", {}, "it is a temporary table, whose rows only their own transaction"),
        ("TEMP_B", {}, "it is a temporary table, whose rows only their own connection"),
        ("MON$ATTACHMENTS", {}, "it is a system table"),
        ("QUEUE_TASK", {}, "it is one of the tables of fbtasks itself"),
        ("NO_KEY", {}, r'has no primary key. Name the columns .*: on_change\(..., key="COLUMN"\)'),
        ("NO_KEY", {"key": "A", "columns": ("B",)}, "the column 'B' of 'NO_KEY' is a BLOB, which .* Leave it out"),
        ("NO_KEY", {"key": "L"}, "the column 'L' of 'NO_KEY' is an array"),
        ("NO_KEY", {"key": "N"}, "'N' of 'NO_KEY' has CHARACTER SET NONE, .* charset='WIN1252'"),
        ("NO_KEY", {"key": "N", "charset": "WIN1253X"}, "knows no character set 'WIN1253X'. Did you mean 'WIN1253'"),
    ],
)  # fmt: skip
def test_tables_whose_changes_cannot_be_recorded_are_refused(shop, table, options, said):
    script(
        shop,
        "CREATE VIEW ORDER_VIEW AS SELECT ID FROM ORDERS",
        "CREATE GLOBAL TEMPORARY TABLE TEMP_A (ID INTEGER PRIMARY KEY) ON COMMIT DELETE ROWS",
        "CREATE GLOBAL TEMPORARY TABLE TEMP_B (ID INTEGER PRIMARY KEY) ON COMMIT PRESERVE ROWS",
        "CREATE TABLE NO_KEY (A INTEGER, B BLOB, L INTEGER [3], N VARCHAR(5) CHARACTER SET NONE)",
    )
    with pytest.raises(TaskDefinitionError, match=said):
        resolved(shop, table, insert=True, **options)


def test_an_external_table_is_refused(shop, tmp_path):
    try:
        script(shop, f"CREATE TABLE OUTSIDE EXTERNAL FILE '{tmp_path}/outside' (A CHAR(5))")
    except Exception:
        pytest.skip("the engine's configuration allows no external files")
    with pytest.raises(TaskDefinitionError, match="it is an external table"):
        resolved(shop, "OUTSIDE", insert=True, key="A")
