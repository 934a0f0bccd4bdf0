"""A TCP proxy between a client and a server that can be told to behave like a bad network."""

import socket
import struct
import threading
import time
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import pytest

_DIRECTIONS = ("to_server", "to_client")
_RESET = struct.pack("ii", 1, 0)
_CHUNK = 65536


@contextmanager
def before(url):
    """A proxy before the server of *url*, with an ``url`` of its own. Without a server the test is skipped."""
    parts = urlsplit(url)
    if not parts.hostname:
        pytest.skip("needs a server: FBTASKS_TEST_URL")
    with Proxy(parts.hostname, parts.port or 3050) as proxy:
        proxy.url = url.replace(f"@{parts.netloc.rpartition('@')[2]}/", f"@127.0.0.1:{proxy.port}/")
        yield proxy


class Link:
    """One connection of a client, and the one to the server that stands for it."""

    def __init__(self, proxy, client, server):
        self._proxy = proxy
        self._sockets = (client, server)
        self._closed = threading.Lock()
        self._pumps = [
            threading.Thread(target=self._pump, args=(client, server, "to_server"), daemon=True),
            threading.Thread(target=self._pump, args=(server, client, "to_client"), daemon=True),
        ]

    def start(self):
        for pump in self._pumps:
            pump.start()

    def _pump(self, source, target, direction):
        try:
            while data := source.recv(_CHUNK):
                self._proxy.wait_thawed()
                allowed, cut = self._proxy.count(len(data), direction)
                self._send(target, data[:allowed], direction)
                if cut:
                    self._proxy.cut()
                    return
            self._proxy.wait_thawed()
            if not self._closed.locked():  # an end that was read because of reset() is not passed on as an orderly one
                target.shutdown(socket.SHUT_WR)
        except OSError:
            self.reset()
        finally:
            self._proxy.ended(self)

    def _send(self, target, data, direction):
        """Passes *data* on, as fast as the proxy lets a connection send at the moment."""
        while data and (rate := self._proxy.rates.get(direction)):
            size = max(1, rate // 20)
            piece, data = data[:size], data[size:]
            target.sendall(piece)
            time.sleep(len(piece) / rate)
        target.sendall(data)

    def reset(self):
        """Closes both ends so that their peers read 'connection reset', not an orderly end."""
        if not self._closed.acquire(blocking=False):
            return
        for end in self._sockets:
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            with suppress(OSError):  # wakes the thread that reads from it
                end.shutdown(socket.SHUT_RD)
            with suppress(OSError):
                end.close()

    def over(self):
        """Whether both directions have ended, apart from the thread that asks."""
        return not any(pump.is_alive() for pump in self._pumps if pump is not threading.current_thread())

    def join(self):
        for pump in self._pumps:
            if pump is not threading.current_thread():
                pump.join(5)


class Proxy:
    """Forwards connections to ``target_host:target_port`` until it is told otherwise.

    Only what goes through its own port is carried: the events of Firebird use a second connection to a port of the
    server, which the proxy neither sees nor disturbs.
    """

    def __init__(self, target_host, target_port, on_cut=None):
        self._target = (target_host, target_port)
        self._on_cut = on_cut
        self._lock = threading.Lock()
        self._thawed = threading.Event()
        self._thawed.set()
        self._refusing = False
        self._closing = False
        self._links = set()
        self._budget = {}
        self.passed = {"to_server": 0, "to_client": 0}
        """Bytes forwarded so far, by direction."""
        self.rates = {}
        """Bytes a second that a connection may send, by direction, where that is limited."""
        self.cuts = 0
        """How often the connections were closed by :meth:`cut` or :meth:`cut_after`."""
        self.refused = 0
        """How many connections :meth:`refuse` has reset."""
        self._listener = self._listen(0)
        self.port = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _listen(self, port):
        return socket.create_server(("127.0.0.1", port), backlog=128)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._closing:
                client.close()
                return
            threading.Thread(target=self._begin, args=(client,), daemon=True).start()

    def _begin(self, client):
        self.wait_thawed()
        try:
            if self._refusing:
                self.refused += 1
                raise ConnectionRefusedError
            server = socket.create_connection(self._target, timeout=10)
        except OSError:
            _reset(client)
            return
        for end in (client, server):
            end.settimeout(None)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = Link(self, client, server)
        with self._lock:
            refused = self._refusing or self._closing
            if not refused:
                self._links.add(link)
        if refused:
            link.reset()
        else:
            link.start()

    def wait_thawed(self):
        """Waits while the proxy is frozen."""
        self._thawed.wait()

    def count(self, size, direction):
        """How many of *size* bytes may pass, and whether the connections are to be cut after them."""
        with self._lock:
            left = self._budget.get(direction)
            allowed = size if left is None else min(size, left)
            self.passed[direction] += allowed
            if left is None:
                return size, False
            self._budget[direction] = left - allowed
            if self._budget[direction] > 0:
                return allowed, False
            del self._budget[direction]
            return allowed, True

    def ended(self, link):
        """Forgets *link* when both of its directions have ended."""
        if link.over():
            link.reset()
            with self._lock:
                self._links.discard(link)

    @property
    def connections(self):
        """How many connections are open."""
        with self._lock:
            return len(self._links)

    def cut(self):
        """Resets all connections at once. Returns how many there were; new ones are still accepted."""
        with self._lock:
            links, self._links = list(self._links), set()
            self.cuts += 1
        if self._on_cut is not None:
            self._on_cut()
        for link in links:
            link.reset()
        return len(links)

    def refuse(self, on):
        """Resets new connections instead of carrying them; those that are open stay."""
        self._refusing = on

    def freeze(self, on):
        """Forwards nothing, in neither direction, and keeps the connections open: a network that went away."""
        if on:
            self._thawed.clear()
        else:
            self._thawed.set()

    def throttle(self, rate, *directions):
        """Lets each connection send *rate* bytes a second in *directions* (none: both), from now on; None ends that."""
        for direction in directions or _DIRECTIONS:
            if rate is None:
                self.rates.pop(direction, None)
            else:
                self.rates[direction] = rate

    def cut_after(self, nbytes, direction="to_server"):
        """Cuts all connections when *nbytes* more bytes have passed in *direction*, all connections taken together.

        With the number of bytes that a statement takes this cuts in the middle of it, or between a COMMIT and its
        answer (``to_client``).
        """
        if nbytes < 1:
            raise ValueError(f"cut_after({nbytes!r}): at least one byte has to pass.")
        with self._lock:
            self._budget[direction] = nbytes

    def disarm(self):
        """Forgets what :meth:`cut_after` was told."""
        with self._lock:
            self._budget.clear()

    def close(self):
        """Closes the port and all connections."""
        self._closing = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            links, self._links = list(self._links), set()
        for link in links:
            link.reset()
        self.freeze(False)
        deadline = time.monotonic() + 5
        self._acceptor.join(max(0.0, deadline - time.monotonic()))
        for link in links:
            link.join()


def _reset(end):
    with suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    end.close()
