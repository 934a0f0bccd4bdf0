"""Commands are imported when they are used."""

import subprocess
import sys

import pytest

HEAVY = {
    "fbtasks.app",
    "fbtasks.cli.render",
    "fbtasks.queue.operations.tasks",
    "firebird.driver",
    "kombu",
    "prometheus_client",
    "rich",
    "json",
    "tomllib",
}


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        (["--help"], set()),
        (["retry", "--help"], {"fbtasks.cli.tasks", "fbtasks.app", "fbtasks.queue.operations.tasks", "json"}),
        (["inspect", "workers", "--help"], {"fbtasks.cli.inspect", "fbtasks.app", "rich"}),
        (["top", "--help"], {"fbtasks.cli.top", "fbtasks.app", "rich"}),
    ],
)
def test_a_command_imports_what_it_needs(command, imported):
    source = (
        "import sys\nfrom fbtasks.cli import main\ntry:\n    main(sys.argv[1:])\nfinally:\n"
        "    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *command], capture_output=True, text=True, timeout=60, check=True
    )
    modules = set(done.stderr.split())
    commands = {name for name in modules if name.startswith("fbtasks.cli.")}
    assert imported <= modules
    if "fbtasks.app" not in imported:
        assert HEAVY & modules == set()
        assert commands - imported == {f"fbtasks.cli.{name}" for name in ("main", "commands", "groups", "output")}
    else:
        assert {"firebird.driver", "kombu", "fbtasks.worker", "prometheus_client", "tomllib"} & modules == set()
        assert ("rich" in modules) == ("rich" in imported)
