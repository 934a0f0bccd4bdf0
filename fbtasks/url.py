"""The URL that names a database: a file for the embedded engine, or a path or alias on a server."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from fbtasks.errors import ConfigurationError

URL_VARIABLE: Final = "FBTASKS_URL"
DEFAULT_FILE: Final = "fbtasks.fdb"
URL_OPTIONS: Final = frozenset({"charset", "role", "auth_plugins"})
_OF_A_LOGIN: Final = ("role", "auth_plugins")
_URL: Final = re.compile(r"\A([a-z][a-z+]{0,30}[0-9]?://)([^/?#]*)(.*)\Z", re.DOTALL)
"""With a scheme as those of databases are: a password that happens to stand before ``://`` is hardly one."""
_ADDRESS: Final = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]*)?")
_LOGIN_IN_PATH: Final = re.compile(r"/+(?![A-Za-z]:[/\\])[^/@]*:.*@", re.DOTALL)
_ESCAPES: Final = "inside a user name, a password or a path write @ as %40, : as %3A, / as %2F, ? as %3F and # as %23"
_FORMS: Final = (
    "firebird:///absolute/path/queue.fdb for the embedded engine, or "
    "firebird://user:password@host:3050//path/on/server.fdb (or .../alias) for a server"
)


def show_refused(text: str) -> str:
    """Of a URL that is not well formed its scheme and host: anything else may be a part of a password."""
    match = _URL.match(text)
    if match is None:
        return "..."
    scheme, authority, rest = match.groups()
    login, _, address = authority.rpartition("@")
    host = _ADDRESS.fullmatch(address)
    if host is None or "@" in rest:
        return f"{scheme}..."
    return f"{scheme}{host[1]}" + ("..." if login or rest or host[2] else "")


@dataclass(frozen=True, slots=True)
class DatabaseURL:
    """Where the database is: a file for the embedded engine, or a path or alias on a server.

    ``str()`` gives the URL with the password as ``***``; the password itself is in no representation.
    """

    database: str
    """Absolute path of the file, or the path or alias as the server knows it."""
    host: str | None = None
    """The server, or None for the embedded engine."""
    port: int = 3050
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def embedded(self) -> bool:
        """Whether the engine runs inside this process."""
        return self.host is None

    @property
    def charset(self) -> str:
        """The character set of the connections that the application works with."""
        return self.options.get("charset", "UTF8")

    @property
    def dsn(self) -> str:
        """The connection string of the client library."""
        if self.host is None:
            return self.database
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"inet://{host}:{self.port}/{self.database}"

    @property
    def rooted(self) -> DatabaseURL | None:
        """The URL with its path from the root of the server's file system; None unless it is a relative path.

        A word without a slash may be an alias of the server's. What begins with a drive is a path on Windows.
        """
        if self.host is None or "/" not in self.database or re.match(r"[/.]|[A-Za-z]:", self.database):
            return None
        return replace(self, database=f"/{self.database}")

    def __str__(self) -> str:
        return self._text("***")

    def reveal(self) -> str:
        """The URL with its password, for the environment of a process that needs it; never to be shown."""
        return self._text(quote(self.password or "", safe=""))

    def _text(self, password: str) -> str:
        query = "&".join(f"{k}={quote(v)}" for k, v in self.options.items())
        suffix = f"?{query}" if query else ""
        if self.host is None:
            slash = "" if self.database.startswith("/") else "/"  # before the drive of a Windows path
            return f"firebird://{slash}{quote(self.database)}{suffix}"
        login = ""
        if self.user is not None:
            login = quote(self.user, safe="") + (f":{password}" if self.password is not None else "") + "@"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"firebird://{login}{host}:{self.port}/{quote(self.database)}{suffix}"

    @classmethod
    def parse(cls, text: str) -> DatabaseURL:
        """The database that the URL *text* names.

        Raises :class:`ConfigurationError` when it is not a URL of one of the two forms. The message shows its scheme
        and its host at most.
        """
        shown = show_refused(text)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:  # not shown: it quotes what it takes for the port
            reason = _ESCAPES if "@" in text else "its host or port cannot be read"
            raise ConfigurationError(f"{shown!r} is not a database URL ({reason}). Use {_FORMS}.") from None
        if parts.scheme != "firebird":
            raise ConfigurationError(f"{shown!r} does not begin with 'firebird://'. Use {_FORMS}.")
        path = parts.path if parts.netloc or _LOGIN_IN_PATH.match(parts.path) else ""
        if "@" in path + parts.query + parts.fragment:  # a password was cut in two, or has a slash too many before it
            raise ConfigurationError(f"{shown!r} is not a database URL ({_ESCAPES}). Use {_FORMS}.")
        if parts.fragment:
            raise ConfigurationError(f"{shown!r} has a '#': write it as %23.")
        options = cls._options(parts.query, shown, text)
        path = unquote(parts.path)
        if not parts.hostname:
            cls._refuse_login(parts.netloc, options, shown)
            return cls(database=cls._file(path, shown), options=options)
        database = path.removeprefix("/")
        if not database:
            raise ConfigurationError(f"{shown!r} names a server and no database on it. Use {_FORMS}.")
        return cls(
            database=database,
            host=parts.hostname,
            port=port or 3050,
            user=None if parts.username is None else unquote(parts.username),
            password=None if parts.password is None else unquote(parts.password),
            options=options,
        )

    @staticmethod
    def _options(query: str, shown: str, text: str) -> dict[str, str]:
        try:
            options = dict(parse_qsl(query, strict_parsing=bool(query)))
        except ValueError:
            raise ConfigurationError(f"{shown!r}: the part after '?' is not of the form name=value.") from None
        for name in options.keys() - URL_OPTIONS:
            known = ", ".join(sorted(URL_OPTIONS))
            # Behind a login, or where it does not look like an option, it may be a part of the password.
            _, separator, rest = text.partition("://")
            told = separator and not {"@", ":"} & set(rest) and re.fullmatch("[a-z_]+", name)
            what = "unknown option" + (f" {name!r}" if told else "")
            raise ConfigurationError(f"{shown!r}: {what}. Known options: {known}.")
        return options

    @staticmethod
    def _refuse_login(netloc: str, options: Mapping[str, str], shown: str) -> None:
        """Raises :class:`ConfigurationError` for what has an effect on a server alone."""
        given = [f"{name}=" for name in _OF_A_LOGIN if name in options]
        if netloc:
            given.insert(0, "a user" if "@" in netloc else "a port")
        if given:
            raise ConfigurationError(
                f"{shown!r} has {' and '.join(given)}, and names no server. The embedded engine asks for no login: who "
                f"may use the file may do everything in it. Leave that out, or name the server. Use {_FORMS}."
            )

    @staticmethod
    def _file(path: str, shown: str) -> str:
        if re.match(r"/[A-Za-z]:[/\\]", path):  # a Windows path behind the URL's own slash
            return path[1:]
        if not path.startswith("/") or path.endswith("/"):
            raise ConfigurationError(f"{shown!r} names no absolute path of a file. Use {_FORMS}.")
        return path


def resolve_url(url: str | None) -> DatabaseURL:
    """The database of *url*, else of the environment's FBTASKS_URL, else ``fbtasks.fdb`` in this folder."""
    if url is not None and not isinstance(url, str):  # not shown: it may hold a password
        raise ConfigurationError(f"the url must be text, not a {type(url).__name__}. Use {_FORMS}.")
    text = url or os.environ.get(URL_VARIABLE)
    if text:
        return DatabaseURL.parse(text)
    return DatabaseURL(database=str(Path.cwd() / DEFAULT_FILE))
