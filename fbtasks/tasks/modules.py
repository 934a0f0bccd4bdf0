"""Modules imported by the names that a user gave: what keeps them from being imported is told with the name."""

from __future__ import annotations

import importlib
import os
from types import ModuleType

from fbtasks.errors import ConfigurationError


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
        raise ConfigurationError(f"the module {name!r} does not import: {error}. It is named in {where}.") from error
    except Exception as error:
        said = str(error).rstrip(".")
        raise ConfigurationError(
            f"the module {name!r} does not import: {type(error).__name__}: {said}. Try: python -c 'import {name}'"
        ) from error
