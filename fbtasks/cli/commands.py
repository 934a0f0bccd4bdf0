"""The commands by name: the module of this package that holds each, and the line that ``--help`` has for it."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "worker": ("worker", "Run the tasks of an app until stopped."),
    "inspect": ("main", "Look at tasks, queues and workers."),
    "retry": ("tasks", "Put failed or cancelled tasks back into their queues."),
    "discard": ("tasks", "Delete finished tasks for good."),
    "cancel": ("tasks", "Cancel tasks: waiting ones at once; running ones are stopped by their worker."),
    "purge": ("tasks", "Delete all waiting tasks of a queue."),
    "pause": ("pausing", "Let no task of a queue, or of a name, begin; what runs goes on."),
    "resume": ("pausing", "Go on after a pause. Tasks of a name are put back into their queues."),
    "prune": ("tasks", "Delete results and failures that have been kept long enough."),
    "health": ("health", "Check for monitoring: exit code 1 when a queue is not served or waits too long."),
    "call": ("calls", "Enqueue a task by its name and print its id."),
    "result": ("calls", "Print the result of a task as JSON."),
    "sql": ("sql", "Run SQL statements, at a prompt or from a pipe; read-only unless --write."),
    "subscriptions": (
        "main",
        "Deploy and operate what feeds tasks from the database: changes and rows of tables, and events.",
    ),
    "schedules": ("main", "Operate periodic tasks: list, pause, resume, change and run them."),
    "limits": ("main", "Operate the limits of tasks: list and change them, and open keys that a failure closed."),
    "migrate": (
        "database",
        "Create or update the tables of the queue; with -A, also what the app defines beside its tasks.",
    ),
    "adopt": ("database", "Let workers run the tasks of a restored or moved database."),
    "grant": ("database", "Let users of a server enqueue, work or operate, and no more than that."),
}
"""The commands of ``fbtasks``."""

INSPECT: Final = {
    "failed": ("inspect", "Tasks that failed for good, newest first."),
    "succeeded": ("inspect", "Tasks that returned, newest first."),
    "cancelled": ("inspect", "Tasks that were cancelled or expired, newest first."),
    "active": ("inspect", "Tasks that run now."),
    "ready": ("inspect", "Tasks that wait for a worker."),
    "scheduled": ("inspect", "Tasks that wait for their time."),
    "parked": ("inspect", "Tasks whose name no worker knew, or is paused."),
    "held": (
        "inspect",
        "Tasks that wait for limits, or for another one of their lane; for changes in the log see sources.",
    ),
    "awaiting": ("inspect", "Steps of workflows that wait for the end of those that they follow."),
    "workflow": ("inspect", "The workflow that a task is part of, as a tree."),
    "task": ("inspect", "One task: arguments, times, tries, result, traceback."),
    "queues": ("inspect", "What waits and runs in each queue, and who serves it."),
    "stats": ("inspect", "Counters of tasks, errors, times and conflicts."),
    "workers": ("inspect", "The workers that are registered."),
    "sources": ("inspect", "What feeds tasks from the database, and what waits, runs and stands still."),
}
"""The commands of ``fbtasks inspect``."""

SUBSCRIPTIONS: Final = {
    "apply": ("subscriptions", "Bring triggers, handlers of events and polls in line with the code of an app."),
    "diff": ("subscriptions", "Show what apply would do."),
    "list": ("subscriptions", "All subscriptions, and what is wrong with them."),
    "pause": ("subscriptions", "Keep what comes, and give out nothing."),
    "resume": ("subscriptions", "Go on after a pause."),
    "backfill": ("subscriptions", "Note the rows that a table has already, as if they were inserted now."),
    "drop": ("subscriptions", "Delete subscriptions with what they have noted."),
}
"""The commands of ``fbtasks subscriptions``."""

SCHEDULES: Final = {
    "list": ("schedules", "All schedules: when they tick, and what keeps them from it."),
    "pause": ("schedules", "Enqueue nothing until they are resumed."),
    "resume": ("schedules", "Go on after a pause, or after a task could not be enqueued."),
    "set": ("schedules", "Say when a task is called, or with what, instead of the code."),
    "run": ("schedules", "Enqueue their tasks once, now, and print the ids."),
    "remove": ("schedules", "Delete schedules; what they have enqueued stays."),
}
"""The commands of ``fbtasks schedules``."""

LIMITS: Final = {
    "list": ("limits", "All limits: what each lets in, and what waits for it."),
    "set": ("limits", "Let in more or fewer than the code says, from the next claim of each worker on."),
    "reset": ("limits", "Go by what the code says again."),
    "resume": ("limits", "Go on with a key that a failed task has closed; that task stays failed."),
}
"""The commands of ``fbtasks limits``."""
