"""An app with sources, as a project on the command line has it."""

import json
import subprocess
import sys
import textwrap

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
    import pathlib, sys, time
    from fbtasks import FBTasks
    from fbtasks.firebird.translate import translate

    number, action = int(sys.argv[1]), sys.argv[2]
    app = FBTasks("writer")
    connection = app.connect()
    cursor = connection.cursor()
    if action == "insert":
        statement = cursor.prepare("INSERT INTO ORDERS (ID, STATUS) VALUES (?, 'new')")
    else:
        sql = "UPDATE ORDERS SET STATUS = 's' || GEN_ID(STEP, 1), TOTAL = GEN_ID(STEP, 0) WHERE ID = ?"
        statement = cursor.prepare(sql)
    done, failed, limit = 0, [], int(sys.argv[3])
    print("ready", flush=True)
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
        time.sleep(0.002)
    print(done, *failed[:3], sep="\\n")
    statement.free()
    connection.close()
"""


class Writers:
    """Processes that write ORDERS, each over one connection with a statement that it prepared at its start."""

    def __init__(self, project, count, action="insert", limit=0, first=1):
        (project.folder / "stop").unlink(missing_ok=True)
        (project.folder / "writer.py").write_text(textwrap.dedent(WRITER))
        self.stopper = project.folder / "stop"
        command = [sys.executable, "writer.py"]
        self.processes = [
            subprocess.Popen(
                [*command, str(number), action, str(limit)], cwd=project.folder, env=project.env,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for number in range(first, first + count)
        ]  # fmt: skip
        for process in self.processes:
            assert process.stdout.readline() == "ready\n", process.stderr.read()

    def stop(self):
        """Ends them. Returns how much each has written; none may have failed."""
        self.stopper.touch()
        found = []
        for process in self.processes:
            out, err = process.communicate(timeout=60)
            lines = out.splitlines()
            assert (process.returncode, lines[1:], err) == (0, [], ""), (process.returncode, out, err)
            found.append(int(lines[0]))
        return found

    def kill(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
