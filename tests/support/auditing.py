"""A feature of another distribution: it writes down what becomes of tasks that are audited."""

from pathlib import Path

from fbtasks.feature import Feature

FOLDER = Path(__file__).parent / "audit"


class Audit(Feature):
    """Audits the tasks of these names."""

    name = "audit"
    schema = FOLDER
    hooks = frozenset({"ENQUEUED", "ENDED", "FORGOTTEN"})

    def __init__(self, *names):
        self._names = names

    def prepare(self, call, task, args, kwargs, step=None):
        """What is to be written down with a call: its queue."""
        return call.saying(self.name, call.queue.encode()) if call.name in self._names else call
