"""A primary and its copy, kept by the embedded engine's own replication, in a process of their own.

The engine reads replication.conf in its root, once for a database: so the root is the test's own, and the copy is
written with each commit of the primary (``sync_replica``).
"""

import json
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from firebird.driver import ReplicaMode, connect_server
from firebird.embedded.provider import FirebirdProvider

from fbtasks import FBTasks
from fbtasks.errors import FBTasksError
from fbtasks.firebird import connections
from fbtasks.firebird.embedded.root import engine_root
from fbtasks.url import DatabaseURL

from . import standby_features
from .draining import drain
from .programs import command_line
from .sql import adopt, execute, rows

TABLES = """
    SELECT TRIM(RDB$RELATION_NAME) FROM RDB$RELATIONS
    WHERE RDB$SYSTEM_FLAG = 0 AND RDB$VIEW_BLR IS NULL AND RDB$RELATION_TYPE = 0
"""
FILLED = """
    SELECT TRIM(T.MON$TABLE_NAME) FROM MON$TABLE_STATS T JOIN MON$RECORD_STATS R ON R.MON$STAT_ID = T.MON$RECORD_STAT_ID
    WHERE T.MON$STAT_GROUP = 1 AND R.MON$RECORD_INSERTS > 0
"""
"""Tables into which connections have inserted that are open."""
SEQUENCES = "SELECT TRIM(RDB$GENERATOR_NAME) FROM RDB$GENERATORS WHERE COALESCE(RDB$SYSTEM_FLAG, 0) <> 1"

PACKAGES = "SELECT TRIM(RDB$PACKAGE_NAME), RDB$VALID_BODY_FLAG, HASH(RDB$PACKAGE_BODY_SOURCE) FROM RDB$PACKAGES"


class Pair:
    """The two databases, in a folder. *template* is a database with an empty queue."""

    def __init__(self, folder, template):
        self.primary, self.copy = folder / "primary.fdb", folder / "copy.fdb"
        self.root = engine_root(Path(FirebirdProvider().root))
        (self.root / "replication.conf").write_text(
            f"database = {self.primary}\n{{\n  sync_replica = {self.copy}\n}}\n"
        )
        shutil.copyfile(template, self.primary)
        with closing(FBTasks("maker", f"firebird://{self.primary}")) as app:
            with app.database.session() as session:
                adopt(session)
            with app.connect() as connection:
                for change in ("INCLUDE ALL TO", "ENABLE"):
                    connection.execute_immediate(f"ALTER DATABASE {change} PUBLICATION")
                    connection.commit()
        shutil.copyfile(self.primary, self.copy)
        self._make_copy(ReplicaMode.READ_ONLY)

    def promote(self):
        self._make_copy(ReplicaMode.NONE)

    def _make_copy(self, mode):
        with connect_server("", user="SYSDBA") as server:
            server.database.set_replica_mode(database=str(self.copy), mode=mode)

    def differences(self):
        """The rows, and the values of sequences, that one of the two has and the other has not, by name."""
        ours, theirs = _content(self.primary), _content(self.copy)
        found = {}
        for name in ours.keys() | theirs.keys():
            mine, its = ours.get(name, Counter()), theirs.get(name, Counter())
            if mine != its:
                found[name] = [list(map(repr, (mine - its).elements())), list(map(repr, (its - mine).elements()))]
        return found

    def said(self):
        """What the engine has written of replication."""
        log = self.root / "replication.log"
        return log.read_text() if log.exists() else ""


def _content(path):
    with closing(connections.connect(DatabaseURL.parse(f"firebird://{path}"))) as connection:
        with connection.cursor() as cursor:
            tables = [name for (name,) in cursor.execute(TABLES).fetchall()]
            content = {name: Counter(cursor.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}
            content["packages"] = Counter(cursor.execute(PACKAGES).fetchall())
            for (name,) in cursor.execute(SEQUENCES).fetchall():
                value = cursor.execute(f'SELECT GEN_ID("{name}", 0) FROM RDB$DATABASE').fetchall()
                content[name] = Counter(value)
        return content


def main(folder, template, every=""):
    """Runs each feature once. Prints what the copy lacks then, and into which tables nothing was inserted.

    With *every* it looks after each feature, which takes longer, and ends at the first one after which it lacks some;
    and the last one is an upgrade.
    """
    pair = Pair(Path(folder), template)
    found, after = {}, ""
    with closing(FBTasks("shop", f"firebird://{pair.primary}")) as app:
        for feature in [*standby_features.ALL, *([standby_features.upgrades] if every else [])]:
            feature(app)
            if every and (found := pair.differences()):
                after = feature.__name__
                break
        unused = {table for (table,) in rows(app, TABLES)} - {table for (table,) in rows(app, FILLED)}
    found = found or pair.differences()
    facts = {"differences": found, "after": after, "said": pair.said(), "unused": sorted(unused)}
    print(json.dumps({**facts, **({} if found else fail_over(pair))}))


def fail_over(pair):
    """What the copy says to a worker before it is promoted and then, and what it runs when it is adopted."""
    with closing(FBTasks("shop", f"firebird://{pair.copy}")) as app:
        standby = _error(lambda: app.send_task("note", args=("lost",)))
    read = command_line("inspect", "queues", "--json", "--url", f"firebird://{pair.copy}")
    pair.promote()
    with closing(FBTasks("shop", f"firebird://{pair.copy}")) as app:
        promoted = _error(lambda: drain(app))
        # As one at the path of the primary, on another machine.
        execute(app, "UPDATE QUEUE_IDENTITY SET DATABASE_PATH = (SELECT MON$DATABASE_NAME FROM MON$DATABASE)")
    adopted = command_line("adopt", "--promoted", "--yes", "--json", "--url", f"firebird://{pair.copy}")
    with closing(FBTasks("shop", f"firebird://{pair.copy}")) as app:
        ran = standby_features.taken_over(app)
    return {"standby": standby, "read": read, "promoted": promoted, "adopted": adopted, "ran": ran}


def _error(work):
    try:
        return f"no error, but {work()}"
    except FBTasksError as error:
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    main(*sys.argv[1:])
