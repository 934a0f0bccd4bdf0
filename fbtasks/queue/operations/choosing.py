"""Looks up what an operator has named, or raises an error that suggests a name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from fbtasks.errors import ConfigurationError
from fbtasks.system.checks import did_you_mean
from fbtasks.system.showing import command_line

T = TypeVar("T")


def choose(kind: str, name: str, known: Mapping[str, T]) -> T:
    """Returns what *known* has under *name*. Raises what :func:`none_such` returns when it has nothing."""
    if name not in known:
        raise none_such(kind, name, known)
    return known[name]


def none_such(kind: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """Returns the error for a *kind* of thing ("schedule") of which none has that *name*."""
    return ConfigurationError(
        f"there is no {kind} {name!r}.{did_you_mean(name, known)} They are in: "
        f"{command_line('fbtasks {} list', kind + 's')}"
    )
