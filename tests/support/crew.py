"""Workers that several tests of a module share: to start one costs more than most tests do with it.

Each is given what is sent to a queue of its own, so that a test can say which worker, of which pool, runs its tasks.
"""

import os
from contextlib import ExitStack, contextmanager

from .sql import execute, one


class Crews:
    """The crew that the tests of a module share. Of what a test leaves behind the next one sees nothing."""

    def __init__(self, make_project, source, *statements, clear=()):
        self._make_project = make_project
        self._source = source
        self._statements = statements
        self._clear = clear
        self._stack = ExitStack()
        self._crew = None

    @contextmanager
    def lent(self):
        """A crew with nothing to do. When the test leaves it otherwise, the next one gets another crew."""
        crew = self._crew or self._start()
        crew.clear(self._clear)
        try:
            yield crew
        finally:
            if not crew.is_idle():
                self._end()

    def close(self):
        """Ends the workers. Asserts that all of them end well, whatever they have run."""
        try:
            if self._crew:
                self._crew.stop()
        finally:
            self._end()

    def _start(self):
        project = self._stack.enter_context(self._make_project())
        producer = self._stack.enter_context(project.producer(self._source, *self._statements))
        self._crew = Crew(project, producer)
        return self._crew

    def _end(self):
        self._crew = None
        self._stack.close()


class Crew:
    """Workers of one project, and their producer."""

    def __init__(self, project, producer):
        self.project = project
        self.producer = producer
        self._workers = {}

    def worker(self, *arguments):
        """The worker with these arguments."""
        if arguments not in self._workers:
            name = f"crew{len(self._workers)}"
            process = self.project.worker(*arguments, "-n", name, "-Q", name)
            self._workers[arguments] = Worker(self.producer, name, process, self.project.workers[-1][1])
        return self._workers[arguments]

    def lines(self):
        """What the tasks of this test have written into the file ``ledger``."""
        return self.project.lines()

    def clear(self, tables):
        """Forgets what tests did before."""
        for path in self.project.folder.iterdir():
            if path.is_file() and path.suffix not in (".py", ".log"):
                path.unlink()
        for table in tables:
            execute(self.producer, f"DELETE FROM {table}")
        for worker in self._workers.values():
            worker.skip()

    def is_idle(self):
        """Whether all workers live and there is no task."""
        living = all(worker.process.poll() is None for worker in self._workers.values())
        return living and one(self.producer, "SELECT COUNT(*) FROM QUEUE_TASK") == 0

    def stop(self):
        processes = [worker.process for worker in self._workers.values()]
        for process in processes:
            process.terminate()
        assert [process.wait(30) for process in processes] == [0] * len(processes), self.project.logs()


class Worker:
    """One that runs what is sent to its queue."""

    def __init__(self, producer, queue, process, log):
        self._producer = producer
        self._log = log
        self._skipped = 0
        self.queue = queue
        self.process = process

    def send(self, name, args=(), **options):
        return self._producer.send_task(f"proj.{name}", args, queue=self.queue, **options)

    def send_together(self, *calls):
        """Sends several, each a name and its arguments, in one transaction: the worker finds all of them at once."""
        return self._results(self._producer.enqueuer.enqueue([self._call(name, args) for name, *args in calls]))

    def send_as(self, changed, name, *args):
        """Sends one whose row is *changed* (the SET of an UPDATE) before the worker can see it."""
        enqueuer = self._producer.enqueuer
        with self._producer.connect() as connection:
            (result,) = self._results(enqueuer.enqueue([self._call(name, args)], enqueuer.guest(connection)))
            connection.execute_immediate(f"UPDATE QUEUE_TASK SET {changed} WHERE ID = {result.id}")
            connection.commit()
        return result

    def _call(self, name, args):
        return self._producer.enqueuer.make_call(f"proj.{name}", args, {}, queue=self.queue)

    def _results(self, enqueued):
        return [self._producer.AsyncResult(str(each.id)) for each in enqueued]

    def log(self):
        """Its log since the test began."""
        return os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, self._skipped).decode()

    def skip(self):
        self._skipped = os.fstat(self._log.fileno()).st_size
