"""The registry of what is done around a fork, in real forks of a process that uses no database."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

HEAD = """
import gc, os
from fbtasks.firebird import fork
def say(word):
    return lambda: os.write(1, f"{word}\\n".encode())
def forked(in_child=lambda: None):
    child = os.fork()
    if child == 0:
        in_child()
        os._exit(0)
    os.waitpid(child, 0)
class Part:
    def __init__(self, name):
        self.name = name
        fork.register(before=self.before, in_parent=self.after, in_child=self.inside)
    def before(self): say(f"{self.name} before")()
    def after(self): say(f"{self.name} in parent")()
    def inside(self): say(f"{self.name} in child")()
"""


def lines(source):
    done = subprocess.run([sys.executable, "-c", HEAD + source], capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines(), done.stderr


def test_all_are_called_in_the_order_in_which_they_were_registered():
    said, errors = lines("fork.register(before=say('first'), in_child=say('child'))\npart = Part('part')\nforked()")
    in_child = [line for line in said if "child" in line]
    assert [line for line in said if "before" in line or line == "first"] == ["first", "part before"]
    assert in_child == ["child", "part in child"]
    assert "part in parent" in said
    assert errors == ""


def test_one_that_fails_keeps_no_other_from_being_called():
    said, errors = lines("fork.register(before=lambda: 1 / 0)\npart = Part('part')\nforked()")
    assert {"part before", "part in child", "part in parent"} == set(said)
    assert "ZeroDivisionError" in errors


def test_an_object_that_is_gone_is_not_called_and_one_that_a_child_inherits_is_not_collected():
    said, errors = lines(
        "gone = Part('gone')\ndel gone\npart = Part('part')\n"
        "import weakref\nweakref.finalize(part, say('collected')).atexit = False\n"
        "def drop():\n    global part\n    del part\n    gc.collect()\n"
        "forked(drop)\n"
    )
    assert {"part before", "part in child", "part in parent"} == set(said)
    assert errors == ""
