"""A child process that is forked before its worker begins has what a new interpreter has that the worker starts."""

import pytest

SOURCE = """
    import os, re, signal, sys, threading
    from pathlib import Path

    def link(file):
        try:
            return re.sub(r"\\d+", "", os.readlink(file))
        except OSError:  # the one that lists them
            return ""

    @app.task
    def facts():
        status = dict(line.split(":\\t") for line in Path("/proc/self/status").read_text().splitlines())
        main = sys.modules["__main__"]
        return {
            "parent": os.getppid(),
            "own group": os.getpgid(0) == os.getpid(),
            "same session": os.getsid(0) == os.getsid(os.getppid()),
            "status": [status[name] for name in ("SigBlk", "SigIgn", "SigCgt", "ShdPnd", "Umask", "CapEff", "Seccomp")],
            "files": sorted(filter(None, map(link, Path("/proc/self/fd").iterdir()))),
            "folder": os.getcwd(),
            "path": [path for path in sys.path if not path.endswith("support")],
            "env": {name: value for name, value in os.environ.items() if name != "LC_CTYPE"},
            "main": [main.__name__, main.__spec__.name, sys.argv[0] == main.__spec__.origin],
            "arguments": [re.sub(r"\\d+", "", each) for each in sys.orig_argv[1:]],
            "flags": list(sys.flags),
            "streams": [[each.encoding, each.errors] for each in (sys.stdin, sys.stdout, sys.stderr)],
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "handlers": [str(signal.getsignal(number)).partition(" at ")[0] for number in signal.valid_signals()],
        }
"""


@pytest.mark.parametrize("pool", ["processes", "threads"])
def test_it_has_what_a_new_interpreter_has(project, pool):
    with project.producer(SOURCE) as app:
        found = {}
        for project.anew in (False, True):
            worker = project.worker("-c", "1", "--pool", pool)
            found[project.anew] = app.send_task("proj.facts").get(timeout=30)
            assert found[project.anew].pop("parent") == worker.pid
            worker.terminate()
            assert worker.wait(20) == 0
        assert found[False] == found[True]
