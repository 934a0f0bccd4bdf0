"""What the package does in one place alone."""

import ast
from pathlib import Path

import fbtasks

PACKAGE = Path(fbtasks.__file__).parent


def uses(module, name):
    """The files of the package that use *name* of a module imported as *module*."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr == name:
                if isinstance(node.value, ast.Name) and node.value.id == module:
                    yield path.relative_to(PACKAGE).as_posix()
            elif isinstance(node, ast.ImportFrom) and node.module == f"fbtasks.queue.{module}":
                yield from (path.relative_to(PACKAGE).as_posix() for each in node.names if each.name == name)


def test_the_time_and_pauses_are_those_of_one_module():
    """A test of an application replaces ``time.sleep`` or freezes the time: threads and waits of the package go on."""
    assert list(importing("time")) == ["timing.py"]
    assert list(waiting_by_the_clock_of_threads()) == []


def waiting_by_the_clock_of_threads():
    """The files that call ``Condition.wait_for`` with a time limit."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called.endswith(".wait_for") and called != "clock.wait_for" and len(node.args) + len(node.keywords) > 1:
                yield path.relative_to(PACKAGE).as_posix()


def importing(module):
    """The files of the package that import *module*."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            named = [each.name for each in node.names] if isinstance(node, ast.Import) else []
            if module in named or (isinstance(node, ast.ImportFrom) and node.module == module):
                yield path.relative_to(PACKAGE).as_posix()


def test_handlers_of_signals_are_set_in_one_module():
    """A process that a task forks is to be rid of them. The other one sets none: it restores the default."""
    assert sorted(set(uses("signal", "signal"))) == ["system/threads.py", "worker/pools/processes.py"]
    assert set(uses("signal", "set_wakeup_fd")) == {"system/threads.py"}


def test_outcomes_of_tasks_reach_the_database_through_one_door():
    assert list(uses("tasks", "finish")) == ["queue/recording.py"]
