"""Programs of a test: Python code in a process of its own, and the command line in the test's process."""

import subprocess
import sys

import pytest

from fbtasks.cli import main


def python(code, *arguments, **options):
    """Runs *code* in a process of its own, to its end; *options* are those of ``subprocess.run``."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=60, **options
    )


def command_line(*arguments):
    """Runs ``fbtasks`` with *arguments* in this process. Returns its exit code."""
    with pytest.raises(SystemExit) as left:
        main(list(arguments), prog_name="fbtasks")
    return left.value.code or 0
