"""Workers of which a test needs the row alone: they send no heartbeat."""

from fbtasks.queue.register import processes

FACTS = {"name": "w@host", "host": "host", "pid": 1, "pid_start": 1, "lease": 60.0}
OF_WORKERS = {"queues": ["default"], "pool": "threads", "concurrency": 8, "version": "1", "tasks": []}


def register(app, kind="worker", **facts):
    """Registers a process with *facts*, and others that matter to no test. Returns its number."""
    given = {**FACTS, **(OF_WORKERS if kind == "worker" else {}), **facts}
    with app.database.session() as session:
        return session.run(lambda t: processes.register(t, kind, **given))
