"""Who may use the dashboard, and what keeps other sites from using it through a reader's browser."""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from werkzeug.datastructures import WWWAuthenticate
from werkzeug.exceptions import Forbidden, MisdirectedRequest, Unauthorized
from werkzeug.middleware.proxy_fix import ProxyFix
from werkzeug.security import check_password_hash, generate_password_hash
from werkzeug.wrappers import Request, Response

from fbtasks import timing as clock
from fbtasks.errors import ConfigurationError

Authorize = Callable[[Request, str, str | None], bool | str]
"""Returns whether a request may do an action in a queue (None: in none or in all), or the name of its user."""
PASSWORD: Final = "FBTASKS_WEB_PASSWORD_HASH"  # noqa: S105  # the name of a variable
TOKEN: Final = "FBTASKS_WEB_TOKEN"  # noqa: S105
_HASH: Final = r"scrypt:\d+:\d+:\d+\$[^$]+\$[0-9a-f]+"
_DAY: Final = 86400
_FORWARDED: Final = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-Ip", "Via")
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # Not no-referrer: with that a browser sends "Origin: null" with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def harden(response: Response) -> Response:
    """Adds the headers that all answers have. One that does not say how long it may be kept is not kept."""
    response.headers.update(_HEADERS)
    response.headers.setdefault("Cache-Control", "no-store")
    return response


class Seal:
    """Signs texts that come back from the browser."""

    def __init__(self, secret: bytes | str | None) -> None:
        """*secret* is the same in all processes that serve a dashboard; None: there is one process."""
        self._secret = secret.encode() if isinstance(secret, str) else secret or secrets.token_bytes(32)

    def sign(self, *parts: str) -> str:
        """Returns the signature of *parts*."""
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hmac.digest(self._secret, text, "sha256").hex()[:40]

    def holds(self, signature: str, *parts: str) -> bool:
        """Whether *signature* is that of *parts*."""
        return hmac.compare_digest(signature.encode(), self.sign(*parts).encode())

    def token(self, who: str, days_ago: int = 0) -> str:
        """Returns what the forms of a user carry today."""
        return self.sign("form", who, str(int(clock.wall()) // _DAY - days_ago))

    def check_post(self, request: Request, who: str) -> None:
        """Raises :class:`Forbidden` unless the request comes from a page of the dashboard, or from no browser."""
        if request.authorization is not None and request.authorization.type == "bearer":
            return  # no browser sends one by itself
        site = request.headers.get("Sec-Fetch-Site")
        if site is not None:
            if site == "same-origin":
                return
        elif request.headers.get("Origin", "").partition("://")[2] == request.host:
            given = request.form.get("token", "")
            if any(hmac.compare_digest(given.encode(), self.token(who, days).encode()) for days in (0, 1)):
                return
        raise Forbidden(
            "The request does not come from a page of this dashboard, or that page is too old. Load it again. Where "
            "several processes serve it, give all the same secret=."
        )


class Login:
    """Lets in who has logged in, for a dashboard that is not part of another application."""

    def __init__(
        self, host: str, *, user_header: str | None = None, proxies: Sequence[str] = (), env: Any = os.environ
    ) -> None:
        """Raises :class:`ConfigurationError` for a host other than loopback without a login."""
        self._hash = env.get(PASSWORD)
        self._token = env.get(TOKEN)
        self._header = user_header
        self._proxies = [_network(each) for each in proxies]
        self._host = host
        self._lock = threading.Lock()
        self._seal, self._known = Seal(None), ""
        if self._hash and not re.fullmatch(_HASH, self._hash):
            raise ConfigurationError(
                f"{PASSWORD} must be a hash that fbtasks web --hash-password has printed, with both its $: put it in "
                "single quotes, or a shell takes them for variables."
            )
        if user_header and not proxies:
            raise ConfigurationError("--user-header needs --trust-proxy with the address of the proxy that sends it.")
        self._is_open = not (self._hash or self._token or user_header)
        if self._is_open and not _is_loopback(host):
            raise ConfigurationError(
                f"--host {host}: other machines reach it, and there is no login. Set {PASSWORD} (fbtasks web "
                f"--hash-password prints one), or {TOKEN}, or use --user-header with --trust-proxy."
            )

    def __call__(self, request: Request, *_: Any) -> str:
        """Returns the name of the user. Raises what the browser is answered instead."""
        if self._is_open:
            return self._local(request)
        remote = request.remote_addr or ""
        if self._proxies:
            if not self.is_proxy(remote):
                raise Forbidden("This dashboard answers the proxy alone that --trust-proxy names.")
            if self._header and (user := request.headers.get(self._header)):
                return user.encode("latin-1").decode("utf-8", "backslashreplace")  # WSGI has read it as Latin-1
        given = request.authorization
        if given is not None and given.type == "bearer" and self._token and given.token:
            if hmac.compare_digest(given.token.encode(), self._token.encode()):
                return "token"
        elif given is not None and given.type == "basic" and self._hash and self._is_password(given.password or ""):
            return given.username or "?"
        if self._hash:
            raise Unauthorized(www_authenticate=WWWAuthenticate("basic", {"realm": "fbtasks", "charset": "UTF-8"}))
        raise Unauthorized("This dashboard needs a login.", www_authenticate=WWWAuthenticate("bearer"))

    def _local(self, request: Request) -> str:
        if found := [name for name in _FORWARDED if name in request.headers]:
            raise Forbidden(
                f"A proxy has passed this request on ({found[0]}), and there is no login: others could reach it. Set "
                f"{PASSWORD} or {TOKEN}, and --trust-proxy."
            )
        name = urlsplit(f"//{request.host}").hostname or ""
        if name not in ("localhost", self._host) and not _is_loopback(name):
            raise MisdirectedRequest(f"This dashboard is not served as {request.host}.")
        return "local"

    def _is_password(self, password: str) -> bool:
        mark = self._seal.sign(password)
        if mark == self._known:
            return True
        with self._lock:  # one at a time: each takes 60 ms and 32 MB
            if not check_password_hash(self._hash, password):
                return False
        self._known = mark
        return True

    def is_proxy(self, address: str) -> bool:
        """Whether that is the address of a trusted proxy."""
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)

    def behind(self, application: Any) -> Any:
        """Returns *application* as it is behind the proxies: with the host, the scheme and the prefix that they say."""
        fixed = ProxyFix(application, x_for=0, x_host=1, x_proto=1, x_prefix=1)
        return lambda environ, start: (fixed if self.is_proxy(environ.get("REMOTE_ADDR", "")) else application)(
            environ, start
        )


def hash_password(password: str) -> str:
    """Returns what the environment is to have for *password*."""
    return generate_password_hash(password, "scrypt")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _network(text: str) -> Any:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ConfigurationError(f"--trust-proxy {text!r} is no network such as 10.0.0.0/8: {error}.") from None
