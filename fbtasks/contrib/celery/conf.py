"""``app.conf``: the settings of an app under Celery's names, to be read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fbtasks.config import Settings
from fbtasks.errors import ConfigurationError
from fbtasks.tasks.celery_words import instead, words

_CELERYS: Final[Mapping[str, Callable[[Settings], Any]]] = {
    "broker_url": lambda settings: str(settings.url),
    "enable_utc": lambda _: True,
    "imports": lambda settings: settings.include,
    "main": lambda settings: settings.name,
    "result_backend": lambda settings: str(settings.url),
    "result_serializer": lambda settings: settings.serializer,
    "task_acks_late": lambda _: True,
    "task_always_eager": lambda settings: settings.always_eager,
    "task_cls": lambda settings: settings.task_class,
    "task_default_queue": lambda settings: settings.default_queue,
    "task_serializer": lambda settings: settings.serializer,
    "task_track_started": lambda _: True,
}
"""What Celery calls what is a setting here as well, or always so. A password is not shown."""
_OWN: Final = {
    "accept_content", "always_eager", "crash_limit", "default_queue", "failed_expires", "include", "name",
    "payload_limit", "pool_size", "pool_timeout", "queues", "result_expires", "serializer", "task_class", "timezone",
    "unknown_task_timeout", "url",
}  # fmt: skip


class Conf(Mapping[str, Any]):
    """Reads settings as attributes or by their names. Nothing can be set here: they are arguments of ``FBTasks``.

    ``broker_url`` and ``result_backend`` are the URL of the database as text, with ``***`` for its password.
    """

    __slots__ = ("_settings",)

    def __init__(self, settings: Settings) -> None:
        object.__setattr__(self, "_settings", settings)

    def __getitem__(self, name: str) -> Any:
        settings: Settings = object.__getattribute__(self, "_settings")
        if name in _CELERYS:
            return _CELERYS[name](settings)
        if name in _OWN:
            return getattr(settings, name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_CELERYS.keys() | _OWN))

    def __len__(self) -> int:
        return len(_CELERYS.keys() | _OWN)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """A setting. Raises :class:`AttributeError`, which says what to use here for one of Celery's."""
            try:
                return self[name]
            except KeyError:
                said = instead(name, "option of FBTasks")
                raise AttributeError(f"app.conf has no attribute {name!r}{said}", name=name, obj=self) from None

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse(name)

    def __setitem__(self, name: str, value: object) -> NoReturn:
        _refuse(name)

    def update(self, *given: Mapping[str, Any], **settings: Any) -> NoReturn:
        """Raises :class:`ConfigurationError`."""
        _refuse(*{name for each in given for name in each}, *settings)

    def __repr__(self) -> str:
        return f"<settings of the app {self['name']!r}, to be read>"


def _refuse(*names: str) -> NoReturn:
    of_celery = words()["option of FBTasks"]
    said = "".join(f" {name}: {of_celery[name]}." for name in sorted(names) if name in of_celery)
    raise ConfigurationError(f"app.conf can only be read: settings are arguments of FBTasks(...).{said}")
