"""The settings of an app, in one frozen and validated object."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta, tzinfo
from functools import partial
from typing import Annotated, Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.feature import Feature
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks.declare import Given, check_fields, given
from fbtasks.tasks.request import Hook
from fbtasks.url import DatabaseURL, resolve_url

LARGEST: Final = 2**31 - 1
"""The most bytes that a payload may be allowed to have."""


def _name(what: str, value: object) -> str:
    if isinstance(value, str) and "://" in value:  # not shown: it may hold a password
        raise ConfigurationError("the first argument of FBTasks is the app's name, and the url comes second.")
    if not isinstance(value, str) or not checks.is_name(value, 255):
        raise ConfigurationError(
            f"the app's {what} {checks.shown(value)} must be text of 1 to 255 printable characters, without spaces at "
            "its ends: FBTasks('shop', url)."
        )
    return value


def _version(what: str, value: object) -> str:
    if isinstance(value, str) and re.fullmatch(r"[!-~]{1,31}", value):
        return value
    raise ConfigurationError(
        f"{what} {checks.shown(value)} must be text of up to 31 ASCII characters without spaces, such as '2.3.1' or "
        "the first 12 characters of a commit."
    )


def _url(_what: str, value: Any) -> DatabaseURL:
    return value if isinstance(value, DatabaseURL) else resolve_url(value)


def _queues(what: str, value: object) -> frozenset[str]:
    return frozenset(checks.queue_name(what, name) for name in checks.names(what, value, "queue names"))


def _serializers(what: str, value: object) -> frozenset[str]:
    return frozenset(checks.names(what, value, "serializers"))


def _keys(_what: str, value: Any) -> tuple[bytes, ...]:
    """The keys as bytes. What is no key stays as it is, for the serializer to refuse."""
    keys = (value,) if not isinstance(value, list | tuple) else value or (b"",)
    return tuple(key.encode() if isinstance(key, str) else key for key in keys)


@dataclass(frozen=True)
class Settings:
    """The validated settings of an app. Raises :class:`ConfigurationError` for a value that cannot be used.

    In another process they have no hooks, no features and no class of tasks, which may be such as cannot be sent there.
    """

    name: Annotated[str, _name]
    url: Annotated[Given[DatabaseURL | str | None, DatabaseURL], _url] = given(None)
    _: KW_ONLY
    include: Annotated[Given[Iterable[str], tuple[str, ...]], partial(checks.names, example="names of modules")] = (
        given(())
    )
    default_queue: Annotated[str, checks.queue_name] = "default"
    queues: Annotated[Given[Iterable[str] | None, frozenset[str] | None], optional(_queues)] = given(None)
    """The queues that exist, or None when any name will do."""
    serializer: Annotated[str, checks.text] = "json"
    accept_content: Annotated[Given[Iterable[str] | None, frozenset[str] | None], optional(_serializers)] = given(None)
    """The serializers that may be read, or None for json and :attr:`serializer`."""
    signing_key: Annotated[
        Given[bytes | str | Sequence[bytes | str] | None, tuple[bytes, ...] | None], optional(_keys)
    ] = given(None, repr=False)
    """The first signs; signatures of all are accepted."""
    payload_limit: Annotated[int, partial(checks.number, least=1, most=LARGEST, unit="bytes")] = 64 * 1024 * 1024
    """Bytes that the arguments or the result of a task may take when serialised."""
    result_expires: Annotated[timedelta, checks.duration] = timedelta(days=1)
    failed_expires: Annotated[timedelta, checks.duration] = timedelta(days=30)
    unknown_task_timeout: Annotated[timedelta, checks.duration] = timedelta(days=1)
    """How long a task of a name that no worker knows stays parked before it fails."""
    timezone: Annotated[Given[tzinfo | str | None, tzinfo | None], optional(checks.timezone)] = given(None)
    """What a naive eta or expires is in; None: the local time of the machine."""
    auto_migrate: Annotated[bool | None, optional(checks.flag)] = None
    """Whether the schema is brought up to date on first use; None: only for the embedded engine."""
    crash_limit: Annotated[int, partial(checks.number, least=1, most=1_000_000)] = 3
    """Crashes after which a task is failed: its process died, and it alone can have done it."""
    pool_size: Annotated[int, partial(checks.number, least=1, most=10_000)] = 5
    """Connections that the app keeps at most."""
    pool_timeout: Annotated[float, partial(checks.seconds, zero=False)] = 10.0
    """Seconds to wait for one of them."""
    statistics: Annotated[bool, checks.flag] = True
    """Whether workers write down, for dashboards, what became of tasks by the minute, and tries that failed."""
    version: Annotated[str | None, optional(_version)] = None
    """The version of the program that the app is of, as its workers tell; None: they tell that of fbtasks."""
    always_eager: Annotated[bool, checks.flag] = False
    keep_logs: Annotated[bool, checks.flag] = False
    """Whether what tasks log is kept with them, where they do not say it themselves."""
    on_success: Annotated[Hook | None, checks.hook] = None
    on_failure: Annotated[Hook | None, checks.hook] = None
    on_retry: Annotated[Hook | None, checks.hook] = None
    task_class: type[Any] | None = None
    """What ``app.task`` makes of a function; None: a ``Task``."""

    features: Sequence[Feature | type[Feature] | str] | None = None
    """What the app has beside the core; None: all of this distribution."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.queues is not None and self.default_queue not in self.queues:
            raise ConfigurationError(
                f"default_queue {self.default_queue!r} is not among the declared queues "
                f"({', '.join(sorted(self.queues))}): add it, or set default_queue to one of them."
            )

    def __getstate__(self) -> dict[str, Any]:
        own = {"on_success": None, "on_failure": None, "on_retry": None, "task_class": None, "features": None}
        return {**self.__dict__, **own}

    @property
    def zone_name(self) -> str:
        """The name of the zone of windows that name none: the app's own, or UTC, and never that of one machine."""
        return getattr(self.timezone, "key", None) or "UTC"

    @property
    def migrates(self) -> bool:
        """Whether this app brings the schema up to date by itself."""
        return self.url.embedded if self.auto_migrate is None else self.auto_migrate
