"""Commands and options of the features of this distribution: ``--help`` reads them here, and imports no feature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from click import IntRange

from fbtasks.cli.commands import Table

WORKER_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "--metrics-host": {"metavar": "ADDRESS", "help": "Where to serve them; default: 127.0.0.1."},
    "--metrics-port": {
        "metavar": "PORT",
        "type": IntRange(0, 65_535),
        "help": "Serve metrics and probes over HTTP at this port; 0: at any that is free.",
    },
}
"""Options of ``fbtasks worker`` that are for a feature (``worker.options.of_features``): what click is told of each.

The first word of each is the name of its feature.
"""
COMMANDS: Final[Table] = {
    "": {
        "limits": "Operate the limits of tasks: list and change them, and open keys that a failure closed.",
        "schedules": "Operate periodic tasks: list, pause, resume, change and run them.",
        "subscriptions": (
            "Deploy and operate what feeds tasks from the database: changes and rows of tables, and events."
        ),
    },
    "fbtasks.features.limits.commands": {
        "limits list": "All limits: what each lets in, and what waits for it.",
        "limits set": "Let in more or fewer than the code says, from the next claim of each worker on.",
        "limits reset": "Go by what the code says again.",
        "limits resume": "Go on with a key that a failed task has closed; that task stays failed.",
    },
    "fbtasks.features.logs.commands": {
        "inspect logs": "What a task has logged, by try.",
    },
    "fbtasks.features.stacks.commands": {
        "inspect stack": "Where a running task is: its stack in Python.",
    },
    "fbtasks.features.metrics.commands": {
        "metrics": "Serve the metrics of the database to Prometheus.",
    },
    "fbtasks.features.workflows.commands": {
        "inspect workflow": "The workflow of a task or a group, as a tree.",
    },
    "fbtasks.features.schedules.commands": {
        "schedules list": "All schedules: when they tick, and what keeps them from it.",
        "schedules pause": "Enqueue nothing until they are resumed.",
        "schedules resume": "Go on after a pause, or after a task could not be enqueued.",
        "schedules set": "Say when a task is called, or with what, instead of the code.",
        "schedules run": "Enqueue their tasks once, now, and print the ids.",
        "schedules remove": "Delete schedules; what they have enqueued stays.",
    },
    "fbtasks.features.web.commands": {
        "web": "Serve the dashboard: what the queue holds and has done, in a browser.",
    },
    "fbtasks.features.sources.commands": {
        "inspect sources": "What feeds tasks from the database, and what waits, runs and stands still.",
        "subscriptions apply": "Bring triggers, handlers of events and polls in line with the code of an app.",
        "subscriptions diff": "Show what apply would do.",
        "subscriptions list": "All subscriptions, and what is wrong with them.",
        "subscriptions pause": "Keep what comes, and give out nothing.",
        "subscriptions resume": "Go on after a pause.",
        "subscriptions backfill": "Note the rows that a table has already, as if they were inserted now.",
        "subscriptions drop": "Delete subscriptions with what they have noted.",
    },
}
