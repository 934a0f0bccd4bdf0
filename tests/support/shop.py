"""An app with sources, as a project on the command line has it."""

import json
import os
import signal
import subprocess
from contextlib import suppress

from .programs import started

TABLE = (
    "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(20), CUSTOMER INTEGER, TOTAL NUMERIC(12, 2))"
)
PAID = """
    @app.on_change("orders", insert=True, update=("STATUS",), columns=("TOTAL",), name="paid")
    def paid(change):
        pass
"""


def deployed(project, command, *arguments, check=True, app="proj"):
    """Runs ``fbtasks subscriptions COMMAND``; its answer, and the exit code with the standard error."""
    named = ["-A", app] if app else []
    done = project.run("subscriptions", command, *arguments, *named, "--json", check=check)
    return json.loads(done.stdout) if done.stdout.strip() else None, (done.returncode, done.stderr)


def actions(answer):
    return {step["name"]: step["action"] for step in answer["steps"]}


def listed(project):
    """The subscriptions by their ids."""
    return {row["id"]: row for row in json.loads(project.run("subscriptions", "list", "--json").stdout)}


WRITER = """
    import json, os, pathlib, sys, time
    from fbtasks import FBTasks
    from fbtasks.firebird.driver.translate import translate

    def write(number, action, limit):
        app = FBTasks("writer")
        connection = app.connect()
        cursor = connection.cursor()
        if action == "insert":
            statement = cursor.prepare("INSERT INTO ORDERS (ID, STATUS) VALUES (?, 'new')")
        else:
            sql = "UPDATE ORDERS SET STATUS = 's' || GEN_ID(STEP, 1), TOTAL = GEN_ID(STEP, 0) WHERE ID = ?"
            statement = cursor.prepare(sql)
        done, failed = 0, []
        say({"pid": os.getpid()})
        while not pathlib.Path("stop").exists():
            key = number * 1_000_000 + done if action == "insert" else (done * 7 + number) % limit
            try:
                cursor.execute(statement, (key,))
                connection.commit()
            except Exception as error:
                connection.rollback()
                if "update conflicts" not in str(error) and "deadlock" not in str(error):
                    failed.append(str(error))
            done += 1
            time.sleep(0.005)
        say({"done": done, "failed": failed[:3]})
        statement.free()
        connection.close()
        app.close()

    def say(what):
        os.write(1, json.dumps(what).encode() + b"\\n")

    os.setsid()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for number in range(first, first + count):
        if not os.fork():
            write(number, sys.argv[3], int(sys.argv[4]))
            sys.exit()
    for _ in range(count):  # reaped at once, in any order: the engine takes a zombie for alive
        assert os.wait()[1] == 0
"""


class Writers:
    """Processes that write ORDERS, each over one connection with a statement that it prepared at its start.

    They are forked from one that has imported all and opened no connection.
    """

    def __init__(self, project, count, action="insert", limit=0, first=1):
        self._stopper = project.folder / "stop"
        self._stopper.unlink(missing_ok=True)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._parent = started(WRITER, first, count, action, limit, cwd=project.folder, env=project.env, **pipes)
        said = [self._parent.stdout.readline() for _ in range(count)]
        assert all(said), self._parent.stderr.read()
        self.pids = [json.loads(line)["pid"] for line in said]

    def stop(self):
        """Ends them. Returns how much they have written together; none may have failed."""
        self._stopper.touch()
        out, err = self._parent.communicate(timeout=60)
        found = [json.loads(line) for line in out.splitlines()]
        assert (self._parent.returncode, len(found), err) == (0, len(self.pids), ""), (out, err)
        assert [each["failed"] for each in found] == [[]] * len(found)
        return sum(each["done"] for each in found)

    def kill(self):
        """Ends them, where they have not ended."""
        with suppress(ProcessLookupError):
            os.killpg(self._parent.pid, signal.SIGKILL)
        self._parent.communicate()
