"""The syntax trees of the package's modules, parsed once for all tests of a process."""

import ast
from functools import cache
from pathlib import Path

import fbtasks

PACKAGE = Path(fbtasks.__file__).parent


@cache
def trees():
    """Returns the tree of each module by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text("utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@cache
def nodes(*kinds):
    """Returns all nodes of those kinds, each with the path of its module."""
    return [(path, node) for path, tree in trees().items() for node in ast.walk(tree) if isinstance(node, kinds)]
