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


def test_outcomes_of_tasks_reach_the_database_through_one_door():
    assert list(uses("tasks", "finish")) == ["queue/recording.py"]
