"""Finding the app that a command line names."""

from __future__ import annotations

import importlib
import os
import sys

from fbtasks.app import FBTasks
from fbtasks.errors import ConfigurationError


def import_app(path: str) -> FBTasks:
    """The app of ``module`` or ``module:name``, imported with the working folder on the path.

    Without a name, the module's ``app``, or the only FBTasks in it. Raises :class:`ConfigurationError`.
    """
    module_name, _, attribute = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ConfigurationError(
                f"there is no module {module_name!r} in {os.getcwd()} or on the Python path. "
                "Start from the folder that holds it, or correct -A."
            ) from error
        raise ConfigurationError(f"the module {module_name!r} does not import: {error}.") from error
    except Exception as error:
        raise ConfigurationError(
            f"the module {module_name!r} does not import: {type(error).__name__}: {error}. "
            f"Try: python -c 'import {module_name}'"
        ) from error
    if attribute:
        found = getattr(module, attribute, None)
        if isinstance(found, FBTasks):
            return found
        raise ConfigurationError(f"{module_name!r} has no FBTasks app named {attribute!r}.")
    apps = {id(value): value for value in vars(module).values() if isinstance(value, FBTasks)}
    preferred = getattr(module, "app", None)
    if isinstance(preferred, FBTasks):
        return preferred
    if len(apps) == 1:
        return next(iter(apps.values()))
    how = "no FBTasks app" if not apps else f"{len(apps)} FBTasks apps"
    raise ConfigurationError(f"{module_name!r} has {how}: name it as -A {module_name}:NAME.")
