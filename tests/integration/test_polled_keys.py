"""Polled tables whose key is not what the poll takes it for: two rows have one, or a row gets another one."""

import pytest
from support.sql import execute

SOURCE = """
@app.poll_table("INBOX", key="ID", columns=("DATA",), every=(0.01, 0.05), max_retries=0,
                status="S", ready="R", taken="T", done="D", failed="E")
def handle(row):
    if row.values["DATA"] == "moves":
        with app.connect() as connection:
            connection.execute_immediate("UPDATE INBOX SET ID = 7 WHERE DATA = 'moves'")
            connection.commit()
    with open("ledger", "a") as file:
        file.write(f"{row.values['DATA']}\\n")
"""


@pytest.fixture
def polled(project):
    """Has a worker handle rows (key, data) of a table. Returns what is complained of, by it and by
    ``fbtasks health``, and what was handled.
    """

    def run(unique, *rows):
        with project.producer(
            SOURCE,
            "CREATE TABLE INBOX (ID INTEGER, S VARCHAR(30), DATA VARCHAR(20))",
            f"CREATE {unique} INDEX INBOX_ID ON INBOX (ID)",
        ) as app:
            for number, data in rows:
                execute(app, "INSERT INTO INBOX (ID, S, DATA) VALUES (?, 'R', ?)", number, data)
            done = project.run("worker", "-A", "proj", "--burst", "--pool", "threads", "-c", "4")
            health = project.run("health", check=False)
        said = [
            line
            for line in (done.stderr + health.stdout + health.stderr).splitlines()
            if "INBOX" in line and " INFO " not in line
        ]
        return said, project.lines()

    return run


@pytest.mark.slow
@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="two waiting rows of one key violate a key of QUEUE_GATE, and the whole table stands still",
)
def test_two_rows_of_one_key_are_told_and_others_go_on(polled):
    said, handled = polled("", (1, "one"), (1, "same"), (2, "other"))
    assert "other" in handled
    assert said


@pytest.mark.xfail(
    strict=True, raises=AssertionError, reason="a row whose key has changed meanwhile stays taken, and nothing says so"
)
def test_a_row_whose_key_is_changed_while_it_is_handled_is_told(polled):
    said, handled = polled("UNIQUE", (1, "moves"), (2, "other"))
    assert sorted(handled) == ["moves", "other"]
    assert said
