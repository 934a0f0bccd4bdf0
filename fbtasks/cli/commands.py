"""The commands by name: the module that holds each, and the line that ``--help`` has for it."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "worker": ("cli.worker", "Run the tasks of an app until stopped."),
    "inspect": ("cli.main", "Look at tasks, queues and workers."),
    "retry": ("cli.tasks", "Put failed or cancelled tasks back into their queues."),
    "discard": ("cli.tasks", "Delete finished tasks for good."),
    "cancel": ("cli.tasks", "Cancel tasks: waiting ones at once; running ones are stopped by their worker."),
    "purge": ("cli.tasks", "Delete all waiting tasks of a queue."),
    "pause": ("cli.pausing", "Let no task of a queue, or of a name, begin; what runs goes on."),
    "resume": ("cli.pausing", "Go on after a pause. Tasks of a name are put back into their queues."),
    "prune": ("cli.tasks", "Delete results and failures that have been kept long enough."),
    "health": ("cli.health", "Check for monitoring: exit code 1 when a queue is not served or waits too long."),
    "call": ("cli.calls", "Enqueue a task by its name and print its id."),
    "result": ("cli.calls", "Print the result of a task as JSON."),
    "sql": ("cli.sql", "Run SQL statements, at a prompt or from a pipe; read-only unless --write."),
    "subscriptions": (
        "cli.main",
        "Deploy and operate what feeds tasks from the database: changes and rows of tables, and events.",
    ),
    "schedules": ("cli.main", "Operate periodic tasks: list, pause, resume, change and run them."),
    "limits": ("cli.main", "Operate the limits of tasks: list and change them, and open keys that a failure closed."),
    "migrate": (
        "cli.database",
        "Create or update the tables of the queue; with -A, also what the app defines beside its tasks.",
    ),
    "adopt": ("cli.database", "Let workers run the tasks of a restored or moved database."),
    "grant": ("cli.database", "Let users of a server enqueue, work or operate, and no more than that."),
}
"""The commands of ``fbtasks``."""

INSPECT: Final = {
    "failed": ("cli.inspect", "Tasks that failed for good, newest first."),
    "succeeded": ("cli.inspect", "Tasks that returned, newest first."),
    "cancelled": ("cli.inspect", "Tasks that were cancelled or expired, newest first."),
    "active": ("cli.inspect", "Tasks that run now."),
    "ready": ("cli.inspect", "Tasks that wait for a worker."),
    "scheduled": ("cli.inspect", "Tasks that wait for their time."),
    "parked": ("cli.inspect", "Tasks whose name no worker knew, or is paused."),
    "held": (
        "cli.inspect",
        "Tasks that wait for limits, or for another one of their lane; for changes in the log see sources.",
    ),
    "awaiting": ("cli.inspect", "Steps of workflows that wait for the end of those that they follow."),
    "workflow": ("cli.inspect", "The workflow that a task is part of, as a tree."),
    "task": ("cli.inspect", "One task: arguments, times, tries, result, traceback."),
    "queues": ("cli.inspect", "What waits and runs in each queue, and who serves it."),
    "stats": ("cli.inspect", "Counters of tasks, errors, times and conflicts."),
    "workers": ("cli.inspect", "The workers that are registered."),
    "sources": ("cli.inspect", "What feeds tasks from the database, and what waits, runs and stands still."),
}
"""The commands of ``fbtasks inspect``."""

SUBSCRIPTIONS: Final = {
    "apply": (
        "features.sources.commands",
        "Bring triggers, handlers of events and polls in line with the code of an app.",
    ),
    "diff": ("features.sources.commands", "Show what apply would do."),
    "list": ("features.sources.commands", "All subscriptions, and what is wrong with them."),
    "pause": ("features.sources.commands", "Keep what comes, and give out nothing."),
    "resume": ("features.sources.commands", "Go on after a pause."),
    "backfill": ("features.sources.commands", "Note the rows that a table has already, as if they were inserted now."),
    "drop": ("features.sources.commands", "Delete subscriptions with what they have noted."),
}
"""The commands of ``fbtasks subscriptions``."""

SCHEDULES: Final = {
    "list": ("features.schedules.commands", "All schedules: when they tick, and what keeps them from it."),
    "pause": ("features.schedules.commands", "Enqueue nothing until they are resumed."),
    "resume": ("features.schedules.commands", "Go on after a pause, or after a task could not be enqueued."),
    "set": ("features.schedules.commands", "Say when a task is called, or with what, instead of the code."),
    "run": ("features.schedules.commands", "Enqueue their tasks once, now, and print the ids."),
    "remove": ("features.schedules.commands", "Delete schedules; what they have enqueued stays."),
}
"""The commands of ``fbtasks schedules``."""

LIMITS: Final = {
    "list": ("features.limits.commands", "All limits: what each lets in, and what waits for it."),
    "set": (
        "features.limits.commands",
        "Let in more or fewer than the code says, from the next claim of each worker on.",
    ),
    "reset": ("features.limits.commands", "Go by what the code says again."),
    "resume": ("features.limits.commands", "Go on with a key that a failed task has closed; that task stays failed."),
}
"""The commands of ``fbtasks limits``."""
