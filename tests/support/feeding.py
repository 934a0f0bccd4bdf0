"""Subscriptions and changes as rows, where no trigger is needed."""

import json

from support.sql import NOW, execute, one, rows

COLUMNS = (
    "ID, KIND, APP, NAME, SOURCE, QUEUE, PRIORITY_RANK, ORDERING, MOST, STOPS, AFTER_MS, FILLS, QUIET_MS, STATE, "
    "DEFINITION, HASH, VERSION"
)


def subscribe(
    app, name, *, id=1, ordering="key", most=100, after_ms=0, fills=0, quiet_ms=0, queue="default", rank=0, stops=0,
    owner=None,
):  # fmt: skip
    """A subscription of the task *name*, as ``fbtasks subscriptions apply`` writes it, without a trigger.

    *owner* is the name of the app that has the task, if that is another one.
    """
    execute(
        app,
        f"INSERT INTO QUEUE_SUBSCRIPTION ({COLUMNS}) "
        "VALUES (?, 'change', ?, ?, 'T', ?, ?, ?, ?, ?, ?, ?, ?, 'active', '{}', '', 1)",
        id, owner or app.name, name, queue, rank, ordering, most, stops, after_ms, fills, quiet_ms,
    )  # fmt: skip
    execute(app, "INSERT INTO QUEUE_DISPATCH (SUBSCRIPTION_ID) VALUES (?)", id)
    execute(app, "UPDATE OR INSERT INTO QUEUE_POLICY (QUEUE, FED) VALUES (?, 1) MATCHING (QUEUE)", queue)
    execute(app, "INSERT INTO QUEUE_FEEDER (QUEUE, OWNER_ID) VALUES (?, ?)", queue, id)


def change(app, lane=0, *, id=1, age_ms=0, **members):
    """Writes a change into the log, as a trigger does. Returns its number."""
    number = one(app, "SELECT NEXT VALUE FOR QUEUE_CHANGE_SEQ FROM RDB$DATABASE")
    body = {"i": number, "o": "I", "t": "2026-01-01 00:00:00.0000", "x": 1, "u": "U", "k": {"ID": lane}, **members}
    write(app, id, lane, number, json.dumps(body), age_ms)
    return number


def write(app, id, lane, number, text, age_ms=0):
    """A row of the log with that text."""
    column = "DATA" if len(text) <= 2000 else "LARGE"
    execute(
        app,
        f"INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, LANE, ID, RAISE_TIME, {column}) "
        f"VALUES (?, ?, ?, DATEADD(-CAST(? AS BIGINT) MILLISECOND TO {NOW}), ?)",
        id, lane, number, age_ms, text.encode(),
    )  # fmt: skip


def gates(app):
    """Lane, holder, halted and waits of each lane that is not free."""
    return rows(
        app,
        "SELECT L.LANE, COALESCE(G.HOLDER_ID, (SELECT H.TASK_ID FROM QUEUE_HOLD H WHERE H.OWNER_ID = L.OWNER_ID "
        "AND H.LANE = L.LANE AND H.SORT_KEY IN (30000, 30002))), COALESCE(G.HALTED, 0), COALESCE(G.WAITS, 0) "
        "FROM (SELECT OWNER_ID, LANE FROM QUEUE_GATE UNION "
        "SELECT OWNER_ID, LANE FROM QUEUE_HOLD WHERE SORT_KEY IN (30000, 30002)) L "
        "LEFT JOIN QUEUE_GATE G ON G.OWNER_ID = L.OWNER_ID AND G.LANE = L.LANE ORDER BY L.LANE",
    )


def left(app):
    """How much is left in the log, of lanes, tasks in their lines, notes and tasks."""
    return rows(
        app,
        "SELECT (SELECT COUNT(*) FROM QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0), (SELECT COUNT(*) FROM QUEUE_GATE), "
        "(SELECT COUNT(*) FROM QUEUE_HOLD WHERE SORT_KEY < 20000), (SELECT COUNT(*) FROM QUEUE_NOTE WHERE ID > 0), "
        "(SELECT COUNT(*) FROM QUEUE_TASK) FROM RDB$DATABASE",
    )[0]


def handle(app, event, name, *, id=1, direct=1, ordering="key", most=100, queue="default", owner=None):
    """A handler of *event*: the task *name*."""
    subscribe(app, name, id=id, ordering=ordering, most=most, queue=queue, owner=owner)
    execute(app, "UPDATE QUEUE_SUBSCRIPTION SET EVENT = ?, DIRECT = ? WHERE ID = ?", event, direct, id)
