"""Which modules hold the free-standing tasks of an app: those that it includes, and those found in packages."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable
from traceback import extract_tb
from types import FrameType, ModuleType
from typing import Final

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks
from fbtasks.system.showing import brief

Packages = Iterable[str] | Callable[[], Iterable[str]]
_LIBRARY: Final = os.path.dirname(os.path.abspath(os.__file__))
_IMPORTERS: Final = (os.path.abspath(__file__), os.path.join(_LIBRARY, "importlib", ""))
_OTHERS: Final = tuple(
    os.path.join(folder, "") for folder in (_LIBRARY, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
)


class Discovery:
    """The modules of one app."""

    def __init__(self, app: str, include: tuple[str, ...]) -> None:
        self._app = app
        self._include = include
        self._searches: list[tuple[Packages, str | None]] = []

    def search(self, packages: Packages | None, related_name: str | None) -> None:
        """Includes the module *related_name* of each of *packages*, or with None the packages themselves.

        A function is called when the modules are imported. Raises :class:`ConfigurationError` for anything else.
        """
        if packages is None:
            raise ConfigurationError(
                "autodiscover_tasks() is to be told where to look: autodiscover_tasks(['shop', 'mail']), or with "
                "Django autodiscover_tasks(lambda: settings.INSTALLED_APPS)."
            )
        if not callable(packages):
            packages = checks.names("packages", packages, "names of packages")
        if related_name is not None:
            checks.text("related_name", related_name)
        self._searches.append((packages, related_name))

    def load(self) -> None:
        """Imports all modules. Raises :class:`ConfigurationError` for one that cannot be imported."""
        for module in self._include:
            import_named(module, f"include of the app {self._app!r}")
        where = f"autodiscover_tasks of the app {self._app!r}"
        for package, related_name in self._packages():
            found = import_named(package, where)
            if related_name is None or not hasattr(found, "__path__"):  # a module that is no package holds no others
                continue
            module = f"{package}.{related_name}"
            if is_there(module):  # else one package more without tasks
                import_named(module, where)

    def takes(self, module: str) -> bool:
        """Whether the free-standing tasks of *module* are the app's."""
        homes = [each if related is None else f"{each}.{related}" for each, related in self._packages()]
        return any(f"{module}.".startswith(f"{home}.") for home in (*self._include, *homes))

    def _packages(self) -> Iterable[tuple[str, str | None]]:
        for packages, related_name in self._searches:
            found = packages() if callable(packages) else packages
            for package in checks.names("packages", found, "names of packages"):
                yield package, related_name


def caller() -> str:
    """The name of the module that calls fbtasks."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fbtasks":
        frame = frame.f_back
    return frame.f_globals.get("__name__", "") if frame is not None else ""


def is_there(module: str) -> bool:
    """Whether there is such a module. The packages that it is in are imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # what it is in is no package
        return False


def import_named(name: str, where: str) -> ModuleType:
    """The module *name*, imported. Raises :class:`ConfigurationError`; *where* says where it is named."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {name!r} in {os.getcwd()} or on the Python path. "
                f"Start from the folder that holds it, or correct {where}."
            ) from error
        raise _broken(name, where, str(error), error) from error
    except Exception as error:
        said = error.msg if isinstance(error, SyntaxError) else brief(error)
        raise _broken(name, where, f"{type(error).__name__}: {said}", error) from error


def _broken(name: str, where: str, said: str, error: Exception) -> ConfigurationError:
    """Returns the error for a module that raises *error* when it is imported."""
    place = _place(error)
    named = "" if where == "-A" else f" It is named in {where}."
    return ConfigurationError(
        f"the module {name!r} does not import: {said}{place and f' ({place})'}.{named} Try: python -c 'import {name}'"
    )


def _place(error: Exception) -> str:
    """Returns the file and the line where *error* was raised: in code of others, where the application called that."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{file_shown(error.filename)}, line {error.lineno}"
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(("<", *_IMPORTERS))]
    own = [each for each in frames if not each.filename.startswith(_OTHERS) and "-packages" not in each.filename]
    return next((f"{file_shown(frame.filename)}, line {frame.lineno}" for frame in reversed(own or frames)), "")


def file_shown(file: str) -> str:
    """*file* as it is seen from the working folder, when it is in that."""
    folder = os.path.join(os.path.realpath(os.getcwd()), "")
    return os.path.realpath(file).removeprefix(folder)
