"""The URL of a database as a ``kombu.Connection`` keeps it, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final
from urllib.parse import quote

from fbtasks.errors import ConfigurationError
from fbtasks.url import HIDDEN, DatabaseURL, show_refused

DEFAULT_PORT: Final = 3050


def url_of(client: Any, text: str | None = None) -> DatabaseURL:
    """Returns the database of a ``kombu.Connection``, as it was made or as it is after a failover."""
    text = text or client.hostname
    if text and "://" in text:
        url = DatabaseURL.parse(text)
        if url.password is None and url.user is not None and client.password:
            return replace(url, password=_password(client))
        return url
    database, _, query = (client.virtual_host or "").partition("?")
    options = f"?{query}" if query else ""
    if not text:
        return DatabaseURL.parse(f"firebird:///{quote(database.lstrip('/'))}{options}")
    login = ""
    if client.userid:
        password = _password(client)
        login = quote(client.userid, safe="") + ("" if password is None else ":" + quote(password, safe="")) + "@"
    host = f"[{text}]" if ":" in text else text
    url = DatabaseURL.parse(f"firebird://{login}{host}:{client.port or DEFAULT_PORT}/{quote(database)}{options}")
    return _with_password(url, client.alt or ()) if url.password == HIDDEN else url


def _with_password(url: DatabaseURL, alternates: Iterable[str]) -> DatabaseURL:
    """Returns the one of *alternates* that is shown as *url*: ``Connection.switch`` gets what ``alt`` shows."""
    for alternate in alternates:
        if isinstance(alternate, Alternate) and alternate == str(url):
            return DatabaseURL.parse(alternate.whole)
    return url


def _password(client: Any) -> Any:
    return client.password() if callable(client.password) else client.password


def adapt(client: Any) -> None:
    """Keeps the passwords of a connection's URLs where kombu keeps passwords, and lets its alternates keep their query.

    What ``celery inspect stats`` and ``Connection.info()`` show has the URL as the name of the host, and the port of
    the first URL as those of the others.
    """
    if not client.hostname:
        client.port = None  # left over from the URL before, which was that of a server
    elif "://" in client.hostname:
        with suppress(ConfigurationError):  # told when it connects
            url = DatabaseURL.parse(client.hostname)
            if client.port is None and not url.embedded:
                client.port = url.port
            if url.password is not None:
                client.hostname = str(replace(url, password=None))
                client.password = url.password
    if client.alt:
        client.alt = [each if isinstance(each, Alternate) else Alternate(each) for each in client.alt]
    if client.cycle is not None and not isinstance(client.cycle, _Cycle):
        client.cycle = _Cycle(client.cycle)


class Alternate(str):
    """A URL of a failover list, as it is shown: without its password."""

    whole: str

    def __new__(cls, whole: str) -> Alternate:
        """Takes the URL *whole* for ``Connection.info()``, of which kombu also makes copies of connections."""
        shown = show_refused(whole)
        with suppress(ConfigurationError):
            shown = str(DatabaseURL.parse(whole))
        made = super().__new__(cls, shown)
        made.whole = whole
        return made

    def __reduce__(self) -> tuple[type[Alternate], tuple[str]]:
        return Alternate, (self.whole,)


class _Cycle:
    """The URLs that a failover switches to, in the order of kombu's strategy.

    kombu takes each apart itself, and does not know our options: written as a part of the path they come through.
    """

    def __init__(self, urls: Iterator[str]) -> None:
        self._urls = urls

    def __iter__(self) -> _Cycle:
        return self

    def __next__(self) -> str:
        url = next(self._urls)
        return (url.whole if isinstance(url, Alternate) else url).replace("?", "%3F")
