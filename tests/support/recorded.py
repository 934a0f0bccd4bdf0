"""Changes and events as triggers write them, put into the log by plain SQL, many in one transaction."""

import json
from datetime import UTC, datetime

from .sql import NOW, rows

TIME = "2026-01-02T03:04:05.678"


def change(op="I", key=1, *, old=None, new=None, moved=None, error=None, former=None):
    """The members of a change, as a trigger writes them, but its number."""
    members = {"o": op, "u": "ANN", "t": TIME, "x": 7, "k": {} if key is None else {"ID": key}}
    more = {"p": old, "n": new, "m": moved, "e": error, "q": former}
    return members | {name: value for name, value in more.items() if value is not None}


def event(name="paid", data=None, key=None):
    """The members of an event, but its number."""
    members = {"e": name, "d": json.dumps(data), "u": "ANN", "t": TIME}
    return members if key is None else members | {"k": key}


def inserts(count, key=1):
    """So many inserts under one key, or with *key* None each under its own; column N counts them from 0."""
    return [change(key=number if key is None else key, new={"N": number}) for number in range(count)]


def capture(app, members, *, number=1, ordered=True, queue="default"):
    """Writes changes or events into the log, in one transaction, each in the lane of its key unless not *ordered*."""
    with app.connect() as connection, connection.cursor() as cursor:
        for each in members:
            cursor.execute("SELECT NEXT VALUE FOR QUEUE_CHANGE_SEQ FROM RDB$DATABASE")
            (change_id,) = cursor.fetchone()
            data = json.dumps({"i": change_id, **each}).encode()
            cursor.execute(
                "INSERT INTO QUEUE_CHANGE (SUBSCRIPTION_ID, ID, LANE, RAISE_TIME, DATA, LARGE) "
                f"VALUES (?, ?, ?, {NOW}, ?, ?)",
                (
                    number,
                    change_id,
                    _lane(each) if ordered else 0,
                    *((data, None) if len(data) <= 2000 else (None, data)),
                ),
            )
        cursor.execute(f"EXECUTE BLOCK AS BEGIN POST_EVENT 'fbtasks:queue:{queue}'; END")
        connection.commit()


def _lane(members):
    key = members["k"]["ID"] if isinstance(members.get("k"), dict) and members["k"] else members.get("k") or 0
    return key if isinstance(key, int) else hash(key)


def waiting(app):
    """How many changes, tasks and notes there are, and gates that are shut."""
    counts = ", ".join(
        f"(SELECT COUNT(*) FROM {table})"
        for table in (
            "QUEUE_CHANGE WHERE SUBSCRIPTION_ID >= 0",
            "QUEUE_TASK",
            "QUEUE_NOTE WHERE ID > 0",
            "QUEUE_GATE G WHERE G.USED > 0",
        )
    )
    return rows(app, f"SELECT {counts} FROM RDB$DATABASE")[0]


def when():
    """The time that is in all changes."""
    return datetime.fromisoformat(TIME).replace(tzinfo=UTC)
