"""Pickles and copies of apps and tasks: by the names that they have where their modules are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from pickle import PicklingError
from typing import Any, Final, Self

_PROGRAM: Final = ("__main__", "__mp_main__")
"""The names of the module that was started, the second in the children of multiprocessing."""


class ByName:
    """An app or a task. A copy of it is itself, and its pickle is the name that it has in every process."""

    __slots__ = ()

    def __copy__(self) -> Self:
        """Returns itself."""
        return self

    def __deepcopy__(self, _: Any) -> Self:
        """Returns itself."""
        return self


def home_of(module: str) -> str:
    """The name by which other processes import *module*; a script is known there by its file's name."""
    if module not in _PROGRAM:
        return module
    main = sys.modules[module]
    spec = getattr(main, "__spec__", None)
    return str(spec.name) if spec is not None else Path(getattr(main, "__file__", None) or "__main__").stem


def at(home: str, name: str) -> Any:
    """Returns the value of *name*, which may have dots, in the module *home*, imported unless it was started."""
    module = sys.modules["__main__"] if home_of("__main__") == home else import_module(home)
    return attrgetter(name)(module)


def is_at(value: object, module: str, name: str) -> bool:
    """Returns True when *name*, which may have dots, is *value* in *module*."""
    try:
        return attrgetter(name)(sys.modules.get(module)) is value
    except AttributeError:
        return False


def places_of(app: object, module: str) -> Iterator[tuple[str, str]]:
    """The modules and names that *app* has: in *module*, which has made it, before all others; ``app`` before others.

    Modules that were started come last: where they are not started they are imported only from their own folder.
    """
    others = sorted((place for place in list(sys.modules) if place != module), key=_PROGRAM.__contains__)
    for place in (module, *others):
        held = getattr(sys.modules.get(place), "__dict__", {})
        for name in sorted((name for name, value in list(held.items()) if value is app), key="app".__ne__):
            yield place, name


def pickled_app(app: Any, module: str) -> tuple[Any, ...]:
    """The pickle of *app*, which *module* has made. Raises :class:`PicklingError` when no module has it."""
    for place, name in places_of(app, module):
        return at, (home_of(place), name)
    raise PicklingError(
        f"the app {app.name!r} is pickled by its name, and has none in any module: write app = FBTasks({app.name!r}) "
        "in a module that the other process can import."
    )


def path_of(app: object, module: str) -> str | None:
    """The module, and the name, of *app* behind ``-A``; *module* has made it. None: none is found from this folder."""
    for place, name in places_of(app, module):
        home = home_of(place)
        file = getattr(sys.modules[place], "__file__", None) or ""
        started_elsewhere = place in _PROGRAM and "." not in home and os.path.dirname(file) != os.getcwd()
        if not started_elsewhere:
            return home if name == "app" else f"{home}:{name}"
    return None
