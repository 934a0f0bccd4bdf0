"""Child processes of a worker that are forked before it begins, and wait until it starts them.

A worker starts each child as a new interpreter, which spends more than half of its time on imports. A worker of the
fork server has those behind it, and neither engine nor threads yet: what it forks then is as a new interpreter would be
that has imported the same. When it is started it gets all that a new process inherits. Children that replace others are
new interpreters, as they are in any worker.
"""

import contextlib
import fcntl
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import types

from fbtasks.worker.pools import processes

_LARGEST = 1 << 20
"""Bytes of a message."""


def prepare(arguments, ignorable):
    """Forks as many as the worker with these *arguments* has, and has it take them before it starts others.

    Returns what this process is to run: None for the worker itself, a module for a child. *ignorable* are the signals
    that a worker may ignore.
    """
    spares = []
    for _ in range(_number(arguments)):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # what is sent to the worker's group does not reach it
            for each in (ours, *(spare.socket for spare in spares)):
                each.close()
            return _wait(theirs)
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        theirs.close()
        spares.append(_Spare(pid, ours))

    def start(command, *, pass_fds, cwd, **options):
        if not spares:
            return subprocess.Popen(command, pass_fds=pass_fds, cwd=cwd, **options)
        spare = spares.pop(0)
        spare.start(command, pass_fds, cwd, [n for n in ignorable if signal.getsignal(n) == signal.SIG_IGN])
        return spare

    processes.subprocess = types.SimpleNamespace(**vars(subprocess) | {"Popen": start})
    return None


def _number(arguments):
    """How many child processes a worker has from the start; other commands have none."""
    if arguments[0] != "worker":
        return 0
    pool, concurrency = "processes", os.cpu_count() or 1
    for name, value in itertools.pairwise(arguments):
        if name in ("-P", "--pool"):
            pool = value
        elif name in ("-c", "--concurrency"):
            concurrency = int(value)
    return concurrency if pool == "processes" else 1


class _Spare:
    """One, as its worker has it: what :class:`fbtasks.worker.pools.processes.Process` uses of

    :class:`subprocess.Popen`.
    """

    def __init__(self, pid, socket):
        self.pid = pid
        self.socket = socket

    def start(self, command, files, folder, ignored):
        """Has it do what a new interpreter does with *command*. It gets *files* under their own numbers."""
        message = {
            "command": command,
            "files": files,
            "folder": folder or os.getcwd(),
            "env": dict(os.environ),
            "ignored": ignored,
            "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "umask": _umask(),
            "files_at_most": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        socket.send_fds(self.socket, [json.dumps(message).encode()], [1, 2, *files])
        self.socket.close()

    def wait(self):
        with contextlib.suppress(ChildProcessError):  # the application has reaped it
            os.waitpid(self.pid, 0)


def _umask():
    with open("/proc/self/status", encoding="utf-8") as lines:
        return int(next(line for line in lines if line.startswith("Umask:")).split()[1], 8)


def _wait(connection):
    """Waits until it is started. Returns the module to run; ends when the worker has ended before."""
    message, files, _, _ = socket.recv_fds(connection, _LARGEST, 16)
    if not message:
        os._exit(0)
    connection.close()
    asked = json.loads(message)
    numbers = (1, 2, *asked["files"])
    files = [_moved(file, max(numbers) + 1) for file in files]
    for file, number in zip(files, numbers, strict=True):
        os.dup2(file, number)
        os.close(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, asked["blocked"])
    resource.setrlimit(resource.RLIMIT_NOFILE, asked["files_at_most"])
    os.umask(asked["umask"])
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.path[0] = asked["folder"]
    sys.orig_argv[:] = command = asked["command"]
    module, *sys.argv[1:] = command[command.index("-m") + 1 :]
    if module != sys.modules[module].__package__:
        del sys.modules[module]  # a new interpreter has it as __main__ alone
    return module


def _moved(file, lowest):
    """The number, *lowest* or higher, that stands for *file* now."""
    try:
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, lowest)
    finally:
        os.close(file)
