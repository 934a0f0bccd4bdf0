"""The main function of a child process: takes tasks, runs them, says what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fbtasks.errors import FBTasksError
from fbtasks.firebird.embedded import mutex_repair
from fbtasks.run.importing import import_app, refuse_green_threads
from fbtasks.system.threads import Background
from fbtasks.tasks import formats  # noqa: F401  # now, and not when the first task is to run
from fbtasks.worker.logs import LogOptions, set_up
from fbtasks.worker.pools.child.lifeline import die_with_parent
from fbtasks.worker.pools.child.link import Link, ending
from fbtasks.worker.pools.child.servers import ProcessServer, Server, ThreadServer
from fbtasks.worker.pools.processes import SCARCE
from fbtasks.worker.pools.wire import Ready

if TYPE_CHECKING:
    from fbtasks.app import FBTasks


def _server_of(mode: str) -> Callable[[FBTasks, Link, int], Server]:
    if mode == "asyncio":
        from fbtasks.worker.pools.child.loop_server import (
            LoopServer,  # children without an event loop do not pay for it
        )

        return LoopServer
    return ProcessServer if mode == "processes" else ThreadServer


def _is_shortage(error: BaseException | None) -> bool:
    """Whether *error* comes of a shortage of the machine, which may be over in a moment."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in SCARCE):
            return True
        error = error.__cause__ or error.__context__
    return False


def main(arguments: list[str]) -> int:
    """Runs the child, which ends when its sockets do."""
    parent, *files, mode, app_path, number, slots, log = arguments
    die_with_parent(int(parent))
    mutex_repair.exit_when_engine_hangs()
    pipe, tasks, status = map(int, files)
    link = Link(pipe, tasks, status, int(slots))
    try:
        app = import_app(app_path)
        app.database.known.keep(lambda: link.status.database)
        app.database.take_note()  # the worker has said it
        app.add_hooks()
        refuse_green_threads()
        set_up(LogOptions.of(log))
    except FBTasksError as error:
        link.say(Ready(str(error), _is_shortage(error)))
        return 1
    server = _server_of(mode)(app, link, int(number))
    try:
        Background(target=link.watch, args=(server.heed,), name="fbtasks-watch").start()
        link.say(Ready())
        with ending():
            server.serve()
    except BrokenPipeError:  # the worker has gone, and this process goes with it
        return 1
    finally:
        server.close()
        app.close()
    return 0
