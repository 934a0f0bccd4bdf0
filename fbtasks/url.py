"""The URL that names a database: a file for the embedded engine, or a path or alias on a server."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from fbtasks.errors import ConfigurationError

URL_VARIABLE: Final = "FBTASKS_URL"
DEFAULT_FILE: Final = "fbtasks.fdb"
URL_OPTIONS: Final = frozenset({"charset", "role", "auth_plugins"})
_OF_A_LOGIN: Final = ("role", "auth_plugins")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_HOST_PORT: Final = re.compile(r"(\[[^\]]*\]|[^:]*):?(.*)", re.DOTALL)
_LOGIN_IN_PATH: Final = re.compile(r"/+(?![A-Za-z]:[/\\])[^/@]*:.*@", re.DOTALL)
_PATH: Final = re.compile(r"[/.~].*|[A-Za-z]:[/\\].*|[^:/?#]*\.(?:fdb|gdb)", re.IGNORECASE)
"""The path of a file, as other programs take it."""
_ON_A_SERVER: Final = re.compile(r"(.+@)?([A-Za-z0-9._-]{2,}|\[[0-9A-Fa-f:.]+\])(?:/([0-9]+))?:([^@?#]+)", re.DOTALL)
"""A server and its database as isql takes them: ``host/port:path``, after a login if there is one."""
_ESCAPES: Final = "inside a user name, a password or a path write @ as %40, : as %3A, / as %2F, ? as %3F and # as %23"
_FORMS: Final = (
    "firebird:///absolute/path/queue.fdb for the embedded engine, or "
    "firebird://user:password@host:3050//path/on/server.fdb (or .../alias) for a server"
)
HIDDEN: Final = "***"
"""Stands for a password where a URL is shown."""
_LONGEST: Final = 300
"""Characters of a URL that an error shows."""


def show_refused(text: str) -> str:
    """Returns a URL that is not well formed, without what may be its password or a part of that."""
    scheme = _SCHEME.match(text)
    begin = 0 if scheme is None else scheme.end()
    first, last = text.find(":", begin), text.rfind("@")
    if scheme is not None and scheme[0].lower() != "firebird://" and not 0 <= first < last:
        first = text.find(":")  # what looks like a scheme may be a user
    if 0 <= first < last:  # whatever is between them: a password may hold any character
        text = f"{text[: first + 1]}{HIDDEN}{text[last:]}"
    elif scheme is not None and last < 0:
        authority = re.split("[/?#]", text[begin:], maxsplit=1)[0]
        host, port = _HOST_PORT.fullmatch(authority).groups()  # type: ignore[union-attr]  # it takes anything
        if port and not port.isdecimal():  # a password, and the host was forgotten
            text = f"{text[:begin]}{host}:{HIDDEN}"
    path, mark, query = text.partition("?")
    if mark:
        query = re.sub(r"([^=&]*)=[^&]*", lambda m: m[0] if m[1] in URL_OPTIONS else f"{m[1]}={HIDDEN}", query)
    return f"{path}{mark}{query}"[:_LONGEST]


def _meant(text: str) -> str:
    """Returns the question whether another spelling of *text* was meant; empty when that cannot be told."""
    if _PATH.fullmatch(text) and "@" not in text and "\0" not in text:
        path = text if re.match(r"[A-Za-z]:", text) else os.path.abspath(os.path.expanduser(text))
        return f" Did you mean {DatabaseURL(path)}?"
    server = _ON_A_SERVER.fullmatch(text)
    if server is None or "://" in text:
        return ""
    login, host, port, path = server.groups()
    user = "" if login is None else login.partition(":")[0] + (f":{HIDDEN}" if ":" in login else "")
    at = "" if login is None else "@"
    address = f"{user.removesuffix('@')}{at}{host}" + (f":{port}" if port else "")
    return f" Did you mean firebird://{address}/{quote(path)}?"


@dataclass(frozen=True, slots=True)
class DatabaseURL:
    """Where the database is: a file for the embedded engine, or a path or alias on a server.

    ``str()`` gives the URL with the password as ``***``; the password itself is in no representation.
    """

    may_open: ClassVar[Callable[[DatabaseURL], None] | None] = None
    """Raises for a database that this process is not to open: see ``testing/plugin.py``."""

    database: str
    """Absolute path of the file, or the path or alias as the server knows it."""
    host: str | None = None
    """The server, or None for the embedded engine."""
    port: int = 3050
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict)
    note: str = field(default="", repr=False, compare=False)
    """Where another database was named as well: which of them is used."""
    is_default: bool = field(default=False, repr=False, compare=False)
    """Whether nothing names a database."""

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
        return self._text(HIDDEN)

    @property
    def option(self) -> str:
        """What names it behind a command in a message: ``--url``, or that it is the same when it has a password."""
        return ", with the same URL" if self.password else f" --url {shlex.quote(str(self))}"

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

        Raises :class:`ConfigurationError` when it is not a URL of one of the two forms. The message shows *text*
        without its password.
        """
        if not text.strip():
            raise ConfigurationError(f"the url is empty. Use {_FORMS}.")
        shown = show_refused(text)
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError:  # not shown: it quotes what it takes for the port
            reason = _ESCAPES if "@" in text else "its host or port cannot be read"
            raise ConfigurationError(f"{shown!r} is not a database URL ({reason}). Use {_FORMS}.") from None
        if parts.scheme != "firebird":
            said = _meant(text) or f" Use {_FORMS}."
            raise ConfigurationError(f"{shown!r} does not begin with 'firebird://'.{said}")
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


_of_option: str | None = None
"""That of ``--url``."""


@contextmanager
def named_by_option(text: str | None) -> Iterator[None]:
    """For the block the database of all apps that are made is the one that ``--url`` names; with None nothing changes.

    A block that is inside another one ends with what was said before.
    """
    global _of_option  # a process has one command line
    before, _of_option = _of_option, _of_option if text is None else text
    try:
        yield
    finally:
        _of_option = before


def is_named_by_option() -> bool:
    """Whether ``--url`` names the database of all apps."""
    return _of_option is not None


def resolve_url(given: str | None) -> DatabaseURL:
    """The database of the first that names one: ``--url``, the environment's FBTASKS_URL, *given* by the code.

    Else ``fbtasks.fdb`` in this folder. Raises :class:`ConfigurationError` for what is no URL, with where it stands.
    """
    if given is not None and not isinstance(given, str):  # not shown: it may hold a password
        raise ConfigurationError(f"the url must be text, not a {type(given).__name__}. Use {_FORMS}.")
    places = {"--url": _of_option, URL_VARIABLE: os.environ.get(URL_VARIABLE), "the code": given}
    named = [(place, text) for place, text in places.items() if text is not None]
    if not named:
        return DatabaseURL(database=str(Path.cwd() / DEFAULT_FILE), is_default=True)
    (place, text), *others = named
    try:
        found = DatabaseURL.parse(text)
    except ConfigurationError as error:
        said = str(error)
        raise ConfigurationError(said if place == "the code" else f"{place}: {said}") from None
    unused = [f"{where} names {said}" for where, other in others if (said := _shown(other)) != str(found)]
    if not unused:
        return found
    what = "that is" if len(unused) == 1 else "these are"
    return replace(found, note=f"the database is {found}, as {place} says; {' and '.join(unused)}, and {what} not used")


def _shown(text: str) -> str:
    try:
        return str(DatabaseURL.parse(text))
    except ConfigurationError:
        return repr(show_refused(text))
