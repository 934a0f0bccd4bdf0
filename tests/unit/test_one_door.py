"""What the package does in one place alone."""

import ast
import re

from support.trees import PACKAGE, nodes, trees


def uses(module, name):
    """The files of the package that use *name* of a module imported as *module*."""
    for path, node in nodes(ast.Attribute, ast.ImportFrom):
        if isinstance(node, ast.Attribute):
            if node.attr == name and isinstance(node.value, ast.Name) and node.value.id == module:
                yield path
        elif node.module == f"fbtasks.queue.{module}":
            yield from (path for alias in node.names if alias.name == name)


def test_the_time_and_pauses_are_those_of_one_module():
    """A test of an application replaces ``time.sleep`` or freezes the time: threads and waits of the package go on."""
    assert list(importing("time")) == ["timing.py"]
    assert list(waiting_by_the_clock_of_threads()) == []


def waiting_by_the_clock_of_threads():
    """The files that call ``Condition.wait_for`` with a time limit."""
    for path, call in nodes(ast.Call):
        has_limit = len(call.args) + len(call.keywords) > 1
        if getattr(call.func, "attr", "") == "wait_for" and has_limit and ast.unparse(call.func) != "clock.wait_for":
            yield path


def importing(module):
    """The files of the package that import *module*."""
    for path, node in nodes(ast.Import, ast.ImportFrom):
        named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]
        if module in named:
            yield path


def test_handlers_of_signals_are_set_in_one_module():
    """A process that a task forks is to be rid of them. The other one sets none: it restores the default."""
    assert sorted(set(uses("signal", "signal"))) == ["system/threads.py", "worker/pools/processes.py"]
    assert set(uses("signal", "set_wakeup_fd")) == {"system/threads.py"}


def test_outcomes_of_tasks_reach_the_database_through_one_door():
    assert list(uses("tasks", "finish")) == ["queue/recording.py"]


def texts(tree):
    """The texts of a module, with a NUL for each value in them, but for those that are quoted for a shell already."""
    quoted = ("command_line", "option")  # DatabaseURL.option
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"%[a-z]", "\0", node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = []
            for each in node.values:
                if isinstance(each, ast.Constant):
                    parts.append(each.value)
                else:
                    value = each.value.func if isinstance(each.value, ast.Call) else each.value
                    parts.append("" if getattr(value, "attr", getattr(value, "id", "")) in quoted else "\0")
            yield node.lineno, "".join(parts)


def unquoted(tree):
    """The lines with a command of fbtasks whose words are not quoted."""
    return [line for line, text in texts(tree) if re.search(r"(?<!this )fbtasks [a-z][^.;,()'\n]*\0", text)]


def test_words_of_commands_in_messages_are_quoted_by_one_function():
    for wrong in ('f"Run: fbtasks retry {task}"', '"see: fbtasks inspect task %s"', 'f"{a} " f"(fbtasks a -b {c.d})"'):
        assert unquoted(ast.parse(wrong)) == [1]
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text() for path in PACKAGE.rglob("*.py")}
    named = [path for path, source in sources.items() if re.search(r"(?<!from )fbtasks [a-z]", source)]
    assert {path: lines for path in named if (lines := unquoted(trees()[path]))} == {}
