"""Finds the app that a command line names."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from types import ModuleType
from typing import Final

from fbtasks import FBTasks
from fbtasks.errors import ConfigurationError
from fbtasks.system.checks import did_you_mean
from fbtasks.tasks.definition import Task
from fbtasks.tasks.discovery import file_shown, import_named, is_there


def import_app(path: str) -> FBTasks:
    """Returns the app of ``module`` or ``module:name``, imported with the working folder on the path.

    Without a name, the module's ``app``, or the only FBTasks in it. Of a package without one, also of that name, it is
    that of its module ``app`` or ``celery``. Raises :class:`ConfigurationError`.
    """
    module_name, _, attribute = path.partition(":")
    _check_module_name(path, module_name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    module = import_named(module_name, "-A")
    if not attribute:
        return _app_in(module) or _app_below(module)
    meant = getattr(module, attribute, None)
    if isinstance(meant, FBTasks):
        return meant
    homes = [*_homes_below(module)]
    for home in homes:
        if isinstance(found := getattr(home, attribute, None), FBTasks):
            return found
    names = [*_apps_in(module), *(f"{home.__name__}:{name}" for home in homes for name in _apps_in(home))]
    raise ConfigurationError(_no_app(module_name, attribute, meant, names))


def _app_in(module: ModuleType) -> FBTasks | None:
    """Returns the app of a module. None: it has none. Raises :class:`ConfigurationError` when it has several."""
    apps = {id(value): value for value in vars(module).values() if isinstance(value, FBTasks)}
    preferred = getattr(module, "app", None)
    if isinstance(preferred, FBTasks):
        return preferred
    if len(apps) > 1:
        name = module.__name__
        raise ConfigurationError(
            f"{name!r} has {len(apps)} FBTasks apps: {', '.join(_apps_in(module))}. Name it as -A {name}:NAME."
        )
    return next(iter(apps.values()), None)


_HOMES: Final = ("app", "celery")
"""The modules of a package in which its app is looked for, as Celery does."""


def _app_below(package: ModuleType) -> FBTasks:
    """Returns the app of a package whose own module has none. Raises :class:`ConfigurationError`."""
    for home in _homes_below(package):
        if (app := _app_in(home)) is not None:
            return app
    raise ConfigurationError(_no_app_in(package.__name__, package))


def _homes_below(package: ModuleType) -> Iterator[ModuleType]:
    """The modules of a package in which its app may be; none of a module."""
    for home in _HOMES if hasattr(package, "__path__") else ():
        if is_there(name := f"{package.__name__}.{home}"):
            yield import_named(name, "-A")


def where_tasks_are(path: str) -> str | None:
    """Returns the module ``tasks`` of the package, or beside the module, that -A names; None when there is none."""
    module = path.partition(":")[0]
    parent = module.rpartition(".")[0]
    found = (f"{module}.tasks", f"{parent}.tasks" if parent else "tasks")
    return next(filter(is_there, found), None)


_OF_WORKERS: Final = ("threading", "socket", "select", "selectors", "queue", "time", "os", "signal", "subprocess")
"""The modules that a worker and its children work with."""


def refuse_green_threads() -> None:
    """Raises :class:`ConfigurationError` when gevent has replaced what a worker works with.

    While the client library waits for the database no greenlet runs: neither heartbeats nor signals would be answered.
    """
    monkey = sys.modules.get("gevent.monkey")
    replaced = [] if monkey is None else [name for name in _OF_WORKERS if monkey.is_module_patched(name)]
    if replaced:
        raise ConfigurationError(
            f"the app's modules have gevent replace Python's own modules ({', '.join(replaced)}), and no worker runs "
            "so: it waits for the database in threads. Call monkey.patch_all() in the program that needs it alone, as "
            "in the web server; run tasks that wait with --pool threads, or coroutine functions with --pool asyncio."
        )


def _check_module_name(path: str, module_name: str) -> None:
    if "://" in path:  # not shown: it may hold a password
        raise ConfigurationError("-A names the module of an app. A url goes to --url, or into FBTASKS_URL.")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        parts = [part for part in PurePath(module_name.removesuffix(".py")).parts if part not in (".", "/", "..")]
        rest = path[len(module_name) :]
        raise ConfigurationError(
            f"-A {path!r} is a file, and a module is wanted, as in an import: -A {'.'.join(parts)}{rest}"
        )
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigurationError(f"-A {path!r} must name a module, as in an import: -A proj or -A proj.tasks:app.")


def _apps_in(module: ModuleType) -> list[str]:
    """Returns the names of the apps in *module*."""
    return [name for name, value in vars(module).items() if isinstance(value, FBTasks)]


def _no_app(module_name: str, attribute: str, found: object, names: Sequence[str]) -> str:
    if _is_celery(found):
        return _of_celery(f"{module_name}:{attribute}", module_name)
    text = f"{module_name!r} has no FBTasks app named {attribute!r}."
    if isinstance(found, Task):
        text += " That is a task: -A names its app."
    there = f"It has: {', '.join(names)}." if names else "It has none."
    return f"{text} {there}{did_you_mean(attribute, names)}"


def _no_app_in(module_name: str, module: ModuleType) -> str:
    foreign = next((name for name, value in vars(module).items() if _is_celery(value)), None)
    if foreign is not None:
        return _of_celery(f"{module_name}:{foreign}", module_name)
    file = getattr(module, "__file__", None)  # it may be another one than was meant
    below = " and ".join(f"{module_name}.{home}" for home in _HOMES) if hasattr(module, "__path__") else ""
    if file is None and below:
        return _no_app_in_folder(module_name, file_shown(next(iter(module.__path__))), below)
    where = "" if file is None else f" ({file_shown(file)})"
    nor = below and f", nor have {below}"
    return (
        f"the module {module_name!r}{where} has no FBTasks app{nor}. Add one, as app = FBTasks('shop'), or give the "
        "module that has it to -A."
    )


def _no_app_in_folder(name: str, folder: str, below: str) -> str:
    """Returns what is wrong with a folder that is no package: mostly the package of that name is in it."""
    said = f"{name!r} is a folder without an __init__.py ({folder}), and there is no app in {below}."
    if is_there(f"{name}.{name.rpartition('.')[2]}"):
        return f"{said} The package of that name is in it: start there, cd {shlex.quote(folder)}"
    return f"{said} Start from the folder that holds the modules of the project, or give the one with the app to -A."


def _is_celery(value: object) -> bool:
    """Whether *value* is an app of Celery's, which is not imported for this."""
    return any(kind.__name__ == "Celery" and kind.__module__.startswith("celery") for kind in type(value).__mro__)


def _of_celery(where: str, module_name: str) -> str:
    return (
        f"{where!r} is an app of Celery, which runs it itself, with its broker and backend on a firebird:// URL: "
        f"celery -A {module_name} worker"
    )
