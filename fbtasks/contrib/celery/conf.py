"""``app.conf``: the settings of an app, to be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import chain
from typing import Any, NoReturn

from fbtasks.config import Settings
from fbtasks.errors import ConfigurationError
from fbtasks.tasks.celery_words import instead


class Conf(Mapping[str, Any]):
    """The settings as attributes and by name, but for the signing key. They are set as arguments of ``FBTasks``."""

    def __init__(self, settings: Settings) -> None:
        vars(self).update((each.name, getattr(settings, each.name)) for each in fields(settings) if each.repr)

    def __getitem__(self, name: str) -> Any:
        return vars(self)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __getattr__(self, name: str) -> Any:
        """Raises :class:`AttributeError`, which says what to use for one of Celery's settings."""
        # Without obj Python adds no name that is close.
        raise AttributeError(f"app.conf has no attribute {name!r}{self._instead(name)}", name=name)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        self.update({name: value})

    __setitem__ = __setattr__

    def update(self, *given: Mapping[str, Any], **settings: Any) -> NoReturn:
        """Raises :class:`ConfigurationError`."""
        unknown = sorted({*chain(*given), *settings} - vars(self).keys())
        said = "".join(f" {name}{found}" for name in unknown if (found := self._instead(name)) != ".")
        raise ConfigurationError(f"app.conf can only be read: settings are arguments of FBTasks(...).{said}")

    def _instead(self, name: str) -> str:
        return instead(name, "option of FBTasks", known=self)

    def __repr__(self) -> str:
        return f"<settings of the app {self['name']!r}, to be read>"
