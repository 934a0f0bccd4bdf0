"""Serves metrics, and the probes of a worker, over HTTP."""

from __future__ import annotations

import logging
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, Final
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry, MetricsHandler

from fbtasks.errors import ConfigurationError

logger = logging.getLogger("fbtasks.metrics")
_PATIENCE: Final = 10.0
"""Seconds that a client may let its connection rest."""
_MOST: Final = 32
"""Connections at a time."""


class Server(ThreadingMixIn, TCPServer):
    """Listens from when it is made; what comes is answered by :meth:`serve_forever`, each request in a thread.

    Where there are too many connections, one that has not asked yet makes room for the next: a probe that finds no room
    would have the worker restarted.
    """

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 4 * _MOST

    def __init__(
        self,
        option: str,
        host: str,
        port: int,
        registry: CollectorRegistry,
        probes: Mapping[str, Callable[[], str]] | None = None,
    ) -> None:
        """*option* is the one that has named the port. *probes*, by their paths, return what is wrong; empty: nothing.

        Raises :class:`ConfigurationError` when nobody can listen there.
        """
        self.registry = registry
        self.probes = probes or {}
        self._lock = threading.Lock()
        self._open = 0
        self._silent: dict[Any, None] = {}
        """Connections that have asked for nothing yet, the oldest first."""
        try:
            self.address_family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            super().__init__((host, port), _Handler)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise ConfigurationError(
                f"{option} {port}: cannot listen at {host!r}: {why}. Give a port that is free (0: any), and an address "
                "of this machine."
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self.server_address[1]}/metrics"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers in a thread, and hangs up the oldest connection that is silent, where there are too many.

        Hangs up this one when all others have asked, and wait for their answers.
        """
        with self._lock:
            is_full = self._open >= _MOST
            oldest = next(iter(self._silent), None) if is_full else None
            has_room = not is_full or oldest is not None
            if has_room:
                self._silent.pop(oldest, None)
                self._silent[request] = None
                self._open += 1
        if oldest is not None:
            with suppress(OSError):  # it has ended meanwhile
                oldest.shutdown(socket.SHUT_RDWR)  # which its thread reads as the end
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, in the thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._silent.pop(request, None)
                self._open -= 1

    def asks(self, request: Any) -> None:
        """Notes that a connection has asked, and is not to be hung up."""
        with self._lock:
            self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Logs what a request has raised. A client may go away at any time."""
        if not isinstance(sys.exc_info()[1], OSError):
            logger.exception("A request for metrics has failed.")


class _Handler(MetricsHandler):
    timeout = _PATIENCE
    server: Server

    def setup(self) -> None:
        super().setup()
        self.registry = self.server.registry

    def do_GET(self) -> None:  # noqa: N802  # as http.server calls it
        self.server.asks(self.request)
        path = urlsplit(self.path).path
        if path == "/metrics":
            super().do_GET()
            return
        probe = self.server.probes.get(path)
        if probe is None:
            status, text = HTTPStatus.NOT_FOUND, " ".join(("/metrics", *self.server.probes))
        else:
            text = probe()
            status = HTTPStatus.SERVICE_UNAVAILABLE if text else HTTPStatus.OK
        body = f"{text or 'ok'}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
