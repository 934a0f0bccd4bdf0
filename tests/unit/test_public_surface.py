"""Names, signatures, commands and options that applications use: a change of one is seen in a file beside this."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import click
from support.golden import kept

from fbtasks.cli import main

GOLDEN = Path(__file__).with_name("golden")
MODULES = (
    "fbtasks",
    "fbtasks.celery",
    "fbtasks.errors",
    "fbtasks.feature",
    "fbtasks.kombu",
    "fbtasks.sheet",
    "fbtasks.testing",
)


def public_names(module):
    """Returns what a module offers: ``__all__``, or what is defined in it."""
    defined = [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]
    return sorted(getattr(module, "__all__", defined))


def signature(function):
    """Returns the signature as it is written: annotations are text."""
    return without_addresses(str(inspect.signature(function)).replace("'", ""))


def without_addresses(text):
    """Returns the representation of an object as it is in each run."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def is_ours(kind, name):
    """Returns True when a class of this package gives *kind* its member *name*."""
    return any(name in vars(base) for base in kind.__mro__ if base.__module__.startswith("fbtasks"))


def lines_of_class(path, kind):
    """Yields a line for the class, and one for each public member, inherited ones included."""
    bases = ", ".join(
        base.__name__ for base in kind.__mro__[1:] if base.__module__ == "builtins" and base is not object
    )
    yield f"class {path}({bases})"
    for name in sorted(dir(kind)):
        if (name.startswith("_") and name not in ("__init__", "__call__")) or not is_ours(kind, name):
            continue
        member = inspect.getattr_static(kind, name)
        if isinstance(member, property):
            yield f"{path}.{name}: {inspect.get_annotations(member.fget).get('return', '')}"
        elif isinstance(member, classmethod | staticmethod):
            yield f"{path}.{name}{signature(member.__func__)} {type(member).__name__}"
        elif callable(member):
            yield f"{path}.{name}{signature(member)}"
    annotations = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("fbtasks"):
            annotations |= inspect.get_annotations(base)
    for name, annotation in sorted(annotations.items()):
        if not name.startswith("_"):
            yield without_addresses(f"{path}.{name}: {annotation}")


def test_signatures_stay():
    lines = []
    for module in map(import_module, MODULES):
        for name in public_names(module):
            thing, path = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isclass(thing):
                lines += lines_of_class(path, thing)
            elif callable(thing):
                lines.append(f"{path}{signature(thing)}")
            else:
                lines.append(path)
    assert lines == kept(GOLDEN / "signatures.txt", lines)


def lines_of_command(command, path):
    """Yields what a command takes, and the help of each, then the same of the commands in it."""
    yield f"{path}: {' '.join((command.help or '').split())}"
    for parameter in command.params:
        words = [*parameter.opts, *parameter.secondary_opts, getattr(parameter.type, "name", "")]
        choices = getattr(parameter.type, "choices", ())
        marks = [mark for mark in ("required", "multiple", "is_flag") if getattr(parameter, mark, False)]
        default = "" if callable(parameter.default) or "Sentinel" in repr(parameter.default) else parameter.default
        yield f"{path} {' '.join(words)} {list(choices)} {marks} {parameter.nargs} {default!r}: " + " ".join(
            (getattr(parameter, "help", "") or "").split()
        )
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from lines_of_command(command.get_command(context, name), f"{path} {name}")


def test_commands_and_their_options_stay():
    lines = list(lines_of_command(main, "fbtasks"))
    assert lines == kept(GOLDEN / "commands.txt", lines)
