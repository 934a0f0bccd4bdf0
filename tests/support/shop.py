"""An app with sources, as a project on the command line has it."""

import json

TABLE = "CREATE TABLE ORDERS (ID INTEGER NOT NULL PRIMARY KEY, STATUS VARCHAR(20), CUSTOMER INTEGER, TOTAL NUMERIC(12, 2))"
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
