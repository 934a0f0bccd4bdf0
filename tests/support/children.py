"""The children of a worker, driven by the test itself."""

import sys
from contextlib import closing, contextmanager

from fbtasks.run.importing import import_app
from fbtasks.worker.pools.children import ChildExecutor


@contextmanager
def child_executor(project, monkeypatch, source, pool, places=1):
    """An executor whose children are starting, for the app of *source*, which is this process's own as well."""
    project.write(source)
    monkeypatch.chdir(project.folder)
    monkeypatch.syspath_prepend(project.folder)
    for name, value in project.env.items():
        monkeypatch.setenv(name, value)
    with closing(import_app("proj")) as app:
        app.migrate()
        executor = ChildExecutor(pool, "proj", app, places, "INFO")
        try:
            executor.start()
            executor.serve(1)
            yield executor
        finally:
            executor.stop(lambda: True)
            del sys.modules["proj"]
