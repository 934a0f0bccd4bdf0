"""A feature of another distribution: it writes down what becomes of tasks that are audited."""

from pathlib import Path

import click

from fbtasks.cli.options import json_option, with_database
from fbtasks.cli.output import answer
from fbtasks.feature import Feature, Problem, Told

from .sql import one

FOLDER = Path(__file__).parent / "audit"


class Audit(Feature):
    """Audits the tasks of these names."""

    name = "audit"
    schema = FOLDER
    hooks = frozenset({"ENQUEUED", "ENDED", "FORGOTTEN"})
    commands = {"": {"audit": "Read what is audited."}, __name__: {"audit hooks": "Count what the hooks wrote."}}

    def __init__(self, *names):
        self._names = names

    def prepare(self, call, task, args, kwargs, step=None):
        """What is to be written down with a call: its queue."""
        return call.saying(self.name, call.queue.encode()) if call.name in self._names else call

    def describe(self, session, task, holds, queue):
        """Whether it is audited."""
        is_audited = task.name in self._names
        return Told(facts={"audited": ("yes" if is_audited else "", is_audited)})

    def problems(self, session, asked):
        """It audits nothing."""
        return () if self._names else [Problem("it names no task", "audit")]


@click.command()
@with_database
@json_option
def hooks(database, as_json):
    """Count what the hooks wrote."""
    with database.opened() as app:
        count = one(app, "SELECT COUNT(*) FROM AUDIT_TRAIL")
    answer({"count": count}, f"{count} written.", as_json=as_json)
