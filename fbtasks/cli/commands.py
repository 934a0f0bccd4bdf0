"""The commands of the core: the module that holds each, and the line that ``--help`` has for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Table = Mapping[str, Mapping[str, str]]
"""Lines of help by the places of commands ("inspect queues"), by the modules of those. In its module a command is an
attribute of its last word; a group of commands has no module."""
OF_FEATURES: Final = "fbtasks.features.commands"
"""The module with those of the features of this distribution, of which ``--help`` imports none."""
COMMANDS: Final[Table] = {
    "": {
        "inspect": "Look at tasks, queues and workers.",
        "features": "See which features the database has, and drop those of other distributions.",
    },
    "fbtasks.cli.worker": {"worker": "Run the tasks of an app until stopped."},
    "fbtasks.cli.tasks": {
        "retry": "Put failed or cancelled tasks back into their queues.",
        "discard": "Delete finished tasks for good.",
        "cancel": "Cancel tasks: waiting ones at once; running ones are stopped by their worker.",
        "move": "Move the waiting tasks of a queue, or those of a name, into another queue.",
        "purge": "Delete all waiting tasks of a queue.",
        "prune": "Delete results and failures that have been kept long enough.",
    },
    "fbtasks.cli.pausing": {
        "pause": "Let no task of a queue, or of a name, begin; what runs goes on.",
        "resume": "Go on after a pause. Tasks of a name are put back into their queues.",
        "stop": "Have workers end, by their names or ids, when what they run has ended; they claim nothing more.",
    },
    "fbtasks.cli.health": {
        "health": "Check for monitoring: exit code 1 when a queue is not served or waits too long.",
        "doctor": "Check the engine, the database, the queue and its workers: exit code 1 when something is wrong.",
    },
    "fbtasks.cli.top": {"top": "Watch queues, running tasks and failures live, and act on them."},
    "fbtasks.cli.calls": {
        "call": "Enqueue a task by its name and print its id.",
        "result": "Print the result of a task as JSON.",
    },
    "fbtasks.cli.sql": {"sql": "Run SQL statements, given or from a pipe; read-only unless --write."},
    "fbtasks.cli.database": {
        "migrate": "Create or update the tables of the queue; with -A, also what the app defines beside its tasks.",
        "backup": "Copy the database into a file of this machine, while workers run.",
        "restore": "Make a database of a backup; an existing one is never overwritten.",
        "adopt": "Let workers run the tasks of a restored or moved database.",
        "uninstall": "Drop the tables and packages of the queue, with all results; the tables of the application stay.",
        "grant": "Let users of a server enqueue, work, operate or look, and no more than that.",
    },
    "fbtasks.cli.features": {
        "features list": "The features that the database has, and whether this program, or the app, has them.",
        "features drop": "Call a feature of another distribution no more; refused while tasks or workers have it.",
    },
    "fbtasks.cli.inspect": {
        "inspect failed": "Tasks that failed for good, newest first.",
        "inspect succeeded": "Tasks that returned, newest first.",
        "inspect cancelled": "Tasks that were cancelled or expired, newest first.",
        "inspect active": "Tasks that run now.",
        "inspect ready": "Tasks that wait for a worker.",
        "inspect scheduled": "Tasks that wait for their time.",
        "inspect parked": "Tasks whose name no worker knew, or is paused.",
        "inspect held": (
            "Tasks that wait for limits, or for another one of their lane; for changes in the log see sources."
        ),
        "inspect awaiting": "Steps of workflows that wait for the end of those that they follow.",
        "inspect task": "One task: arguments, times, tries, result, traceback.",
        "inspect queues": "What waits and runs in each queue, and who serves it.",
        "inspect stats": "Counters of tasks, errors, times and conflicts.",
        "inspect workers": "The workers that are registered.",
    },
}
