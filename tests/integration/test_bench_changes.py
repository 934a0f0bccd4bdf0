"""Changes of a table, handled by fbtasks and by the article's method: on equal terms. And what a capture costs."""

import json
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from benchmarks import capture, changes
from benchmarks.article import drain, tables
from benchmarks.bench import Scale
from benchmarks.internals import connect
from benchmarks.plan import CHANGES
from benchmarks.scratch import scratch_database

COUNT = 60
LOGS = {
    changes.Article: "SELECT SUB_ID, COUNT(*) FROM EVENT_LOG GROUP BY 1",
    changes.OnChange: "SELECT SUBSCRIPTION_ID, COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID > 0 GROUP BY 1",
}
"""What waits in the log of each, by subscriber."""


class Bench:
    """What a member needs of a run."""

    scale = Scale(changes=COUNT, bare=20, rows=50)

    def __init__(self, url, folder):
        self.database = type("Database", (), {"url": url})
        self._folder = folder

    def new_folder(self):
        (self._folder / "run").mkdir()
        return self._folder / "run"


@pytest.fixture
def bench(url, tmp_path):
    return Bench(url, tmp_path)


def read(url, *statements):
    with closing(connect(url)) as connection, closing(connection.cursor()) as cursor:
        return [cursor.execute(statement).fetchall() for statement in statements]


def terms(member, url):
    """What the changes were, and the database that they were handled in, when all have been."""
    columns, rows, facts, log = read(
        url,
        "SELECT TRIM(RDB$FIELD_NAME) FROM RDB$RELATION_FIELDS WHERE RDB$RELATION_NAME = 'LANGUAGES' ORDER BY 1",
        "SELECT COUNT(*), SUM(YEAR_RELEASED) FROM LANGUAGES",
        "SELECT MON$FORCED_WRITES, MON$PAGE_SIZE, MON$PAGE_BUFFERS, MON$SWEEP_INTERVAL, MON$ODS_MINOR "
        "FROM MON$DATABASE",
        LOGS[type(member)],
    )
    return {"columns": columns, "rows": rows, "facts": facts, "forced": facts[0][0], "log": [n for _, n in log]}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "group",
    [CHANGES[0], *(pytest.param(group, marks=pytest.mark.slow) for group in CHANGES[1:])],
    ids=lambda group: group.ours.key,
)
def test_both_sides_handle_the_same_changes_of_the_same_table(bench, monkeypatch, group):
    found, fleet = [], []

    @contextmanager
    def watched(url):
        with scratch_database(url) as own:
            yield own
            found.append(terms(member, own))

    def noted(connection, rows):  # all workers are ready
        with closing(connection.cursor()) as cursor:
            fleet.extend(cursor.execute("SELECT POOL, CONCURRENCY FROM QUEUE_PROCESS").fetchall())
        return tables.write(connection, rows)

    monkeypatch.setattr(changes, "scratch_database", watched)
    monkeypatch.setattr(drain, "scratch_database", watched)
    monkeypatch.setattr(changes, "tables", SimpleNamespace(**{**vars(tables), "write": noted}))
    for member in group.order(1):
        samples = {sample.key: sample.value for sample in member.measure(bench)}
        assert samples["handled"] > 0
    ours, theirs = found
    assert ours == theirs
    assert (ours["rows"], ours["forced"]) == ([(COUNT, sum(range(COUNT)))], 1)
    assert ours["log"] == [COUNT]  # of the other subscriber: a row was written for each of two
    assert fleet == [("processes", group.ours.children)] * group.ours.workers
    assert group.ours.children * group.ours.workers == group.beside[0].processes


@pytest.mark.thorough
def test_rows_are_written_to_both_tables_and_captured_in_one(bench, monkeypatch):
    found = []

    @contextmanager
    def watched(url):
        with scratch_database(url) as own:
            yield own
            found.append(
                read(
                    own,
                    f"SELECT COUNT(*), SUM(TOTAL) FROM {capture.PLAIN}",
                    f"SELECT COUNT(*), SUM(TOTAL) FROM {capture.CAPTURED}",
                    "SELECT COUNT(*) FROM QUEUE_CHANGE",
                    "SELECT FIRST 1 DATA FROM QUEUE_CHANGE ORDER BY ID",
                )
            )

    monkeypatch.setattr(capture, "scratch_database", watched)
    values = {sample.key: sample.value for sample in capture.capture(bench)}
    assert min(values.values()) > 0
    assert values["capture/many/ratio"] == pytest.approx(values["capture/many/captured"] / values["capture/many/plain"])
    ((plain, captured, noted, ((data,),)),) = found
    assert plain == captured
    assert noted == [plain[0][:1]]
    change = json.loads(data)
    assert {**change["k"], **change["n"]}.keys() == {"ID", "CUSTOMER", "TOTAL", "CREATED"}
