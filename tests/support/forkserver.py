"""Processes that are forked from one that has imported fbtasks and the driver: imports are half of what they cost.

The server is a process that runs this file. It has no threads, no engine and no connection: what it forks is as a new
interpreter would be that has imported the same. A worker for which a test changes what is imported needs a new one.
Its first child processes are forked before it begins: support/spares.py.
"""

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import types

OF_A_TERMINAL = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""The signals that a terminal sends."""
IMPORTED = (
    "fbtasks.cli.worker",
    "fbtasks.tasks.formats",
    "fbtasks.worker.pools.child.loop_server",
    "fbtasks.worker.pools.child.process",
    "fbtasks.worker.heartbeat_process",
    "fbtasks.worker.supervisor",
    "firebird.driver",
)
"""The modules that a worker and its child processes import: the fork server has them already."""
_LARGEST = 1 << 20
"""Bytes of a message."""


class Forked:
    """A process that the server has forked: what tests use of :class:`subprocess.Popen`."""

    def __init__(self):
        self.pid = None
        self.returncode = None
        self.stdin = self.stdout = self.stderr = None
        self.started = threading.Event()
        self.ended = threading.Event()

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return self.returncode

    def send_signal(self, number):
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def communicate(self, input=None, timeout=None):
        said = {self.stdout: None, self.stderr: None}
        readers = [threading.Thread(target=_read, args=(file, said), daemon=True) for file in said if file]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError), self.stdin:
                if input:
                    self.stdin.write(input)
        self.wait(timeout)
        for reader in readers:
            reader.join()
        found = said[self.stdout], said[self.stderr]
        self._close()
        self.stdin = self.stdout = self.stderr = None  # for another call, which waits for the end alone
        return found

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._close()
        self.wait()

    def _close(self):
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                with contextlib.suppress(BrokenPipeError):
                    file.close()


def _read(file, into):
    into[file] = file.read()


class ForkServer:
    """The server, as the tests' process has it. It starts with the first worker, and ends with the tests."""

    def __init__(self):
        self._lock = threading.Lock()
        self._socket = None
        self._asked = []
        self._running = {}

    def start(self, arguments, folder, env, stdin=None, stdout=None, stderr=None, *, code=None, text=True):
        """Starts ``fbtasks`` with *arguments*, or a program of this *code*.

        Files and *text* are as those of :class:`subprocess.Popen`, but that nothing is read unless *stdin* is given.
        """
        ignored = [number for number in OF_A_TERMINAL if signal.getsignal(number) == signal.SIG_IGN]
        asked = {"arguments": arguments, "folder": str(folder), "env": env, "ignored": ignored, "code": code}
        forked = Forked()
        with contextlib.ExitStack() as stack:
            nothing = stack.enter_context(open(os.devnull))
            files = [
                nothing if stdin is None else stdin,
                1 if stdout is None else stdout,
                2 if stderr is None else stderr,
            ]
            for at, name in enumerate(("stdin", "stdout", "stderr")):
                if files[at] == subprocess.PIPE:
                    reads, writes = os.pipe()
                    ours, files[at] = (writes, reads) if name == "stdin" else (reads, writes)
                    stack.callback(os.close, files[at])
                    setattr(forked, name, open(ours, ("w" if name == "stdin" else "r") + ("" if text else "b")))
                elif not isinstance(files[at], int):
                    files[at] = files[at].fileno()
            with self._lock:
                if self._socket is None:
                    self._socket = self._connected()
                self._asked.append(forked)
                socket.send_fds(self._socket, [json.dumps(asked).encode()], files)
        assert forked.started.wait(60), "the fork server does not answer"
        return forked

    def run(self, arguments, folder, env, timeout, code=None):
        """Runs what :meth:`start` starts to its end. Returns what :func:`subprocess.run` does."""
        with _memory("stdout") as stdout, _memory("stderr") as stderr:
            forked = self.start(arguments, folder, env, None, stdout, stderr, code=code)
            try:
                forked.wait(timeout)
            finally:
                forked.kill()
            stdout.seek(0)
            stderr.seek(0)
            return subprocess.CompletedProcess(arguments, forked.returncode, stdout.read(), stderr.read())

    def _connected(self):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=env,
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        threading.Thread(target=self._listen, args=(ours,), daemon=True).start()
        atexit.register(server.wait, 10)
        atexit.register(ours.shutdown, socket.SHUT_RDWR)
        return ours

    def _listen(self, connection):
        while message := connection.recv(_LARGEST):
            pid, code = json.loads(message)
            if code is None:
                forked = self._running[pid] = self._asked.pop(0)
                forked.pid = pid
                forked.started.set()
            else:
                forked = self._running.pop(pid)
                forked.returncode = code
                forked.ended.set()


def _memory(name):
    """A file that is no file of a folder. Several processes write to it: at its end, or one writes over the other."""
    file = os.memfd_create(name)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_APPEND)
    return open(file, "r+", encoding="utf-8")


def _serve(connection):
    """Forks a worker for each request. Returns the request in its process; None in the server, at the end."""
    wakes, waker = socket.socketpair()
    wakes.setblocking(False)
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in OF_A_TERMINAL:
        signal.signal(number, signal.SIG_IGN)  # the tests end it, by closing the socket
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(wakes, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if wakes in ready:
                wakes.recv(_LARGEST)
                _report_ends(connection)
            if connection in ready:
                message, files, _, _ = socket.recv_fds(connection, _LARGEST, 3)
                if not message:
                    return None
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    for file in (wakes, waker, connection):
                        file.close()
                    return json.loads(message), files
                for file in files:
                    os.close(file)
                connection.send(json.dumps((pid, None)).encode())


def _report_ends(connection):
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            connection.send(json.dumps((pid, os.waitstatus_to_exitcode(status))).encode())


def _become(worker, files):
    """Makes this process what a new interpreter would be that was started so."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    for number in (signal.SIGCHLD, *OF_A_TERMINAL):
        signal.signal(number, signal.SIG_IGN if number in worker["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in worker["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name, number, buffering in (("stdout", 1, -1), ("stderr", 2, 1)):
        stream = open(number, "w", buffering, encoding="utf-8", closefd=False, errors=getattr(sys, name).errors)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(worker["folder"])
    os.environ.clear()
    os.environ.update(worker["env"])
    time.tzset()
    tempfile.tempdir = None
    importlib.reload(sys.modules["fbtasks.system.faults"])  # which reads the environment
    path = worker["env"].get("PYTHONPATH", "")
    sys.path[:1] = [worker["folder"], *filter(None, path.split(os.pathsep))]
    sys.argv[:] = ["fbtasks" if worker["code"] is None else "-c", *worker["arguments"]]


def _prepare():
    """Imports and reads what all workers do before they run their first task. None of it loads the engine."""
    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.suppress(ImportError):  # there is no embedded engine for every machine
        importlib.import_module("firebird.embedded.provider")
    schema = importlib.import_module("fbtasks.database.schema")
    for part in schema.ours():
        schema.version(part)
    generation = importlib.import_module("fbtasks.database.packages")
    generation.queries()
    generation.calls()
    importlib.import_module("spares")
    gc.freeze()  # no worker looks through it again, which would make a copy of it in each


def _main():
    _prepare()
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    if request is None:
        return
    asked, files = request
    _become(asked, files)
    if asked["code"] is not None:
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(asked["code"], "<string>", "exec"), vars(program))
    else:
        module = sys.modules["spares"].prepare(asked["arguments"], (signal.SIGCHLD, *OF_A_TERMINAL))
        runpy.run_module(module or "fbtasks", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
else:
    forkserver = ForkServer()
