"""Polled tables whose key is not what the poll takes it for: two rows have one, or a row gets another one."""

import pytest
from support.draining import drain
from support.polls import Poller, fill
from support.sql import execute, rows

from fbtasks.queue.operations import workers

pytestmark = pytest.mark.emptied

STATUS = {"status": "S", "ready": "R", "taken": "T", "done": "D", "failed": "E"}
INBOX = "CREATE TABLE INBOX (ID INTEGER, NAME VARCHAR(20) CHARACTER SET WIN1252, S CHAR(1), DATA VARCHAR(20))"


@pytest.fixture
def handled():
    return []


def poller(app, handled, *keys, bad=(), **options):
    """Polls a table with rows of the ids *keys*, whose DATA is a, b and so on. *handled* gets those that were."""

    def handle(row):
        handled.append(row.values["DATA"])
        if row.values["DATA"] in bad:
            raise ValueError

    fill(app, INBOX)
    for key, data in zip(keys, "abcdef", strict=False):
        execute(app, "INSERT INTO INBOX (ID, NAME, S, DATA) VALUES (?, 'n' || ?, 'R', ?)", key, key, data)
    options = {"key": "ID", "columns": ("DATA",), "max_retries": 0, "name": "handle", **options}
    return Poller(app, app.poll_table("INBOX", **options)(handle))


def statuses(app):
    return dict(rows(app, "SELECT DATA, S FROM INBOX"))


def leftovers(app):
    return [rows(app, f"SELECT * FROM {name}") for name in ("QUEUE_TASK", "QUEUE_NOTE", "QUEUE_GATE", "QUEUE_POLL_KEY")]


@pytest.mark.parametrize(
    ("key", "shown"), [("ID", "ID = 1"), ("NAME", "NAME = n1"), (("ID", "NAME"), "ID = 1, NAME = n1")]
)
def test_rows_of_one_key_with_a_status_are_handled_in_turn(app, handled, key, shown):
    one = poller(app, handled, 1, 1, 2, key=key, **STATUS)
    found = one.look()
    assert (found.made, found.bad) == (2, 1)
    assert f"the key {shown}: " in found.error
    assert one.look().error == found.error  # for as long as it is so
    drain(app)
    assert sorted(handled) == ["a", "b", "c"]
    assert statuses(app) == dict.fromkeys("abc", "D")
    assert one.look().error is None
    assert leftovers(app) == [[], [], [], []]


def test_rows_of_one_key_that_have_failed_are_not_mixed_up_by_a_retry(app, handled):
    one = poller(app, handled, 1, 1, bad={"a", "b"}, **STATUS)
    drain(app)
    assert statuses(app) == {"a": "E", "b": "E"}
    for (number,) in rows(app, "SELECT ID FROM QUEUE_HISTORY"):
        assert one.retry(number)
    assert "the key ID = 1" in one.look().error
    assert statuses(app) == {"a": "E", "b": "E"}


def test_several_rows_of_one_key_are_not_deleted_for_one_task(app, handled):
    one = poller(app, handled, 1, 1, 2, delete=True)
    drain(app)
    assert handled in (["a", "c"], ["c", "a"])
    assert statuses(app) == {"a": "R", "b": "R"}
    assert "the key ID = 1" in one.look().error
    fill(app, "UPDATE INBOX SET ID = 3 WHERE DATA = 'b'")
    drain(app)
    assert handled[2:] == ["b"]
    assert statuses(app) == {}
    assert one.look().error is None
    assert leftovers(app) == [[], [], [], []]


def test_a_later_row_of_one_key_is_not_deleted_with_the_first(app, handled):
    one = poller(app, handled, 1, delete=True)
    one.look()
    fill(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (1, 'R', 'b')")
    drain(app)
    assert (handled, list(statuses(app))) == (["a"], ["a", "b"])
    assert "the key ID = 1" in one.look().error


def test_a_row_of_a_handled_key_is_told_where_nothing_is_written(app, handled):
    one = poller(app, handled, 1, 1, 2, key="NAME")
    assert "the key NAME = n1" in one.look().error
    drain(app)
    assert sorted(handled) == ["a", "c"]
    fill(app, "UPDATE INBOX SET NAME = 'other' WHERE DATA = 'b'")
    drain(app)
    assert handled[2:] == ["b"]
    assert one.look().error is None


@pytest.mark.parametrize("options", [{}, {"delete": True}])
def test_a_later_row_of_a_handled_key_is_told_when_rows_are_looked_up(app, handled, options):
    one = poller(app, handled, 1, 2, bad={"a", "b"}, **options)
    drain(app)
    fill(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (2, 'R', 'c')")
    assert one.look().error is None
    assert "the key ID = 2" in one.look(sweep=True).error
    fill(app, "DELETE FROM INBOX WHERE DATA = 'b'")
    assert one.look(sweep=True).error is None


@pytest.mark.parametrize("moved", ["7", "NULL"])
def test_the_end_of_a_row_is_written_when_it_has_its_key_again(app, handled, moved):
    one = poller(app, handled, 1, 2, **STATUS)
    one.look()
    fill(app, f"UPDATE INBOX SET ID = {moved} WHERE DATA = 'a'")
    drain(app)
    found = one.look()
    assert f"the key ID = {moved} has the status 'T'" in found.error
    assert statuses(app) == {"a": "T", "b": "D"}
    failing = workers.get_health(app.database, 60).problems["sources"]
    assert [(each.what.split()[:2], each.problem) for each in failing] == [(["polling", "INBOX"], found.error)]
    fill(app, "UPDATE INBOX SET ID = 1 WHERE DATA = 'a'")
    drain(app)
    assert (sorted(handled), statuses(app)) == (["a", "b"], {"a": "D", "b": "D"})
    assert leftovers(app) == [[], [], [], []]


def test_a_row_that_has_another_key_now_keeps_back_one_task_alone(app, handled):
    """Rows that were deleted meanwhile are not looked for in its place."""
    one = poller(app, handled, 1, 2, 3, **STATUS)
    one.look()
    fill(app, "UPDATE INBOX SET ID = 7 WHERE DATA = 'b'", "DELETE FROM INBOX WHERE ID <> 7")
    drain(app)
    assert one.look().bad == 1
    fill(app, "UPDATE INBOX SET S = 'D' WHERE DATA = 'b'")
    assert one.look().error is None
    assert leftovers(app) == [[], [], [], []]
