"""The settings of an app, in one frozen and validated object."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta, tzinfo
from typing import Final

from fbtasks import checks
from fbtasks.errors import ConfigurationError
from fbtasks.url import DatabaseURL

LARGEST: Final = 2**31 - 1
"""The most bytes that a payload may be allowed to have."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,62}")


def as_timezone(value: tzinfo | str | None) -> tzinfo | None:
    """*value*, or the time zone of that name, such as ``Europe/Berlin``. Raises :class:`ConfigurationError`."""
    if not isinstance(value, str):
        return value
    import zoneinfo  # for those who name a zone

    try:
        return zoneinfo.ZoneInfo(value)
    except (LookupError, ValueError, OSError):
        known = zoneinfo.available_timezones()
        remedy = checks.did_you_mean(value, known) or " Give a name such as 'Europe/Berlin'."
        if not known:
            remedy = " There are no time zones on this machine: pip install tzdata"
        raise ConfigurationError(f"there is no timezone {checks.shown(value)}.{remedy}") from None


def check_queue_name(name: str) -> str:
    """*name* itself, when a queue may be called so.

    Raises :class:`ConfigurationError` otherwise: a name has 1 to 63 ASCII letters, digits and ``_ . : -``.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{checks.shown(name)} is not a queue name: use 1 to 63 letters, digits and '_', '.', ':', '-' (ASCII), "
            "beginning with a letter, a digit or '_'."
        )
    return name


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The validated settings of an app. Raises :class:`ConfigurationError` for a value that cannot be used."""

    url: DatabaseURL
    default_queue: str = "default"
    queues: frozenset[str] | None = None
    """The queues that exist, or None when any name will do."""
    serializer: str = "json"
    accept_content: frozenset[str] = frozenset({"json"})
    signing_keys: tuple[bytes, ...] = field(default=(), repr=False)
    """The first signs; signatures of all are accepted."""
    payload_limit: int = 64 * 1024 * 1024
    """Bytes that the arguments or the result of a task may take when serialised."""
    result_expires: timedelta = timedelta(days=1)
    failed_expires: timedelta = timedelta(days=30)
    unknown_task_timeout: timedelta = timedelta(days=1)
    """How long a task of a name that no worker knows stays parked before it fails."""
    timezone: tzinfo | None = None
    """What a naive eta or expires is in; None: the local time of the machine."""
    auto_migrate: bool | None = None
    """Whether the schema is brought up to date on first use; None: only for the embedded engine."""
    crash_limit: int = 3
    """Crashes after which a task is failed: its process died, and it alone can have done it."""
    pool_size: int = 5
    """Connections that the app keeps at most."""
    pool_timeout: float = 10.0
    """Seconds to wait for one of them."""

    def __post_init__(self) -> None:
        check_queue_name(self.default_queue)
        for name in self.queues or ():
            check_queue_name(name)
        if self.queues is not None and self.default_queue not in self.queues:
            raise ConfigurationError(
                f"default_queue {self.default_queue!r} is not among the declared queues "
                f"({', '.join(sorted(self.queues))}): add it, or set default_queue to one of them."
            )
        checks.number("payload_limit", self.payload_limit, 1, LARGEST, "bytes")
        checks.number("crash_limit", self.crash_limit, 1, 1_000_000)
        checks.number("pool_size", self.pool_size, 1, 10_000)
        checks.seconds("pool_timeout", self.pool_timeout, zero=False)
        for what in ("result_expires", "failed_expires", "unknown_task_timeout"):
            checks.duration(what, getattr(self, what))
        if self.timezone is not None and not isinstance(self.timezone, tzinfo):
            raise ConfigurationError(f"timezone {checks.shown(self.timezone)} must be a tzinfo, or None.")
        if self.auto_migrate is not None:
            checks.flag("auto_migrate", self.auto_migrate)

    @property
    def migrates(self) -> bool:
        """Whether this app brings the schema up to date by itself."""
        return self.url.embedded if self.auto_migrate is None else self.auto_migrate
