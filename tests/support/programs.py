"""Programs of a test: Python code in a process of its own, and the command line in the test's process."""

import importlib
import io
import os
import subprocess
import sys
import textwrap
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from unittest import mock

import pytest

from fbtasks.cli import main
from fbtasks.queue.register import hosts

from .forkserver import forkserver


def python(code, *arguments, **options):
    """Runs *code* in a new interpreter, to its end; *options* are those of ``subprocess.run``."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def program(code, *arguments, env=os.environ, cwd=None):
    """Runs *code* to its end in a process that has imported fbtasks: what :func:`python` does for a third of the time.

    Not for what is decided by imports, or while a process has not used the driver yet.
    """
    code, folder = textwrap.dedent(code), cwd or os.getcwd()
    return forkserver.run([*map(str, arguments)], folder, dict(env), 60, code=code)


def started(code, *arguments, env=os.environ, cwd=None, **options):
    """Starts *code* in such a process; *options* are files, as those of ``subprocess.Popen``, and *text*."""
    code, folder = textwrap.dedent(code), cwd or os.getcwd()
    return forkserver.start([*map(str, arguments)], folder, dict(env), code=code, **options)


def alive(pid):
    """Whether a process runs; one that has ended and waits to be reaped does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return hosts.start_ticks(pid) != hosts.ENDED


def command_line(*arguments):
    """Runs ``fbtasks`` with *arguments* in this process. Returns its exit code."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments), prog_name="fbtasks")
    return left.value.code or 0


def command_line_in(folder, env, *arguments, input=""):
    """Runs ``fbtasks`` with *arguments* in this process, as one started in *folder* with *env* would run it.

    Modules of *folder* are imported anew.
    """
    stdin, out, err = _stream(input), _stream(), _stream()
    with _modules_of(folder), mock.patch.dict(os.environ, env, clear=True), mock.patch.object(sys, "stdin", stdin):
        before = os.getcwd()
        os.chdir(folder)
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = command_line(*arguments)
        finally:
            os.chdir(before)
    return subprocess.CompletedProcess(arguments, code, _written(out), _written(err))


def _stream(text=""):
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8", write_through=True)


def _written(stream):
    return stream.buffer.getvalue().decode()


@contextmanager
def _modules_of(folder):
    """In the block modules are found in *folder* first; it begins and ends with none of them imported."""

    inside = os.path.join(folder, "")

    def forget():
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None) or ""
            if file.startswith(inside) and os.path.dirname(file) == str(folder):  # of some hundred modules none or one
                del sys.modules[name]

    forget()
    importlib.invalidate_caches()
    # Compiled ones would be taken for current when a file is written twice in a second.
    with mock.patch.object(sys, "path", [str(folder), *sys.path]), mock.patch.object(sys, "dont_write_bytecode", True):
        try:
            yield
        finally:
            forget()
