"""The proxy itself, in front of a server that sends back what it reads."""

import socket
import socketserver
import threading
import time
from contextlib import closing

import pytest

from support.proxy import Proxy


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while data := self.request.recv(65536):
                self.request.sendall(data)
        except ConnectionError:
            pass


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 50


@pytest.fixture
def proxy():
    with Server(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        with Proxy(*server.server_address) as proxy:
            yield proxy
        server.shutdown()
        thread.join()


@pytest.fixture
def client(proxy):
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as client:
        assert echo(client, b"hello") == b"hello"
        yield client


def read(client, size):
    found = b""
    while len(found) < size and (data := client.recv(65536)):
        found += data
    return found


def echo(client, data):
    client.sendall(data)
    return read(client, len(data))


def test_it_forwards_both_ways_in_order(client, proxy):
    data = bytes(range(256)) * 4000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert read(client, len(data)) == data
    sender.join()
    assert proxy.connections == 1
    assert proxy.passed == {"to_server": len(data) + 5, "to_client": len(data) + 5}


def test_an_orderly_end_is_passed_on(client, proxy, wait_for):
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert read(client, 100) == b"last"
    wait_for(lambda: proxy.connections == 0, 5)


def test_a_cut_resets_what_is_open_and_lets_new_ones_in(client, proxy):
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    assert proxy.connections == 0
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as another:
        assert echo(another, b"again") == b"again"
    assert proxy.cuts == 1


def test_it_refuses_new_connections_and_keeps_old_ones(client, proxy):
    proxy.refuse(True)
    with (
        pytest.raises(OSError),  # noqa: PT011  # while it connects already, when this thread is slow
        closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as another,
    ):
        another.sendall(b"x")
        assert another.recv(10) == b""
        raise ConnectionResetError
    assert echo(client, b"still") == b"still"
    proxy.refuse(False)
    with closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as another:
        assert echo(another, b"back") == b"back"


def test_frozen_it_forwards_nothing_and_keeps_all(client, proxy):
    proxy.freeze(True)
    client.sendall(b"late")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(10)
    proxy.freeze(False)
    client.settimeout(5)
    assert read(client, 4) == b"late"


@pytest.mark.parametrize(("direction", "arrives"), [("to_server", 3), ("to_client", 3)])
def test_it_cuts_after_so_many_bytes(client, proxy, direction, arrives):
    cut = threading.Event()
    proxy._on_cut = cut.set
    proxy.cut_after(3, direction)
    found = b""
    with pytest.raises(ConnectionResetError):
        client.sendall(b"0123456789")
        while data := client.recv(1):
            found += data
        raise ConnectionResetError
    assert b"012".startswith(found)
    assert cut.wait(5)
    assert proxy.passed[direction] == 5 + arrives


def test_a_cut_that_was_taken_back_does_not_come(client, proxy):
    proxy.cut_after(3)
    proxy.disarm()
    assert echo(client, b"0123456789") == b"0123456789"
    with pytest.raises(ValueError, match="at least one byte"):
        proxy.cut_after(0)


def test_a_frozen_proxy_can_be_cut_and_closed(client, proxy):
    proxy.freeze(True)
    client.sendall(b"never")
    proxy.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(10)


def test_a_server_that_is_away_looks_like_a_reset():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # kept, so that no other program listens there meanwhile
        with (
            Proxy("127.0.0.1", unused.getsockname()[1]) as proxy,
            pytest.raises(ConnectionResetError),  # while it connects already, when this thread is slow
            closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5)) as client,
        ):
            client.sendall(b"x")
            client.recv(10)
            raise ConnectionResetError


def test_a_throttled_link_is_slow_and_loses_nothing(client, proxy):
    data = bytes(range(256)) * 40
    proxy.throttle(20_000)
    began = time.monotonic()
    assert echo(client, data) == data
    assert time.monotonic() - began >= 0.5, "10,240 bytes at 20,000 a second"
    proxy.throttle(1)
    client.sendall(data)
    proxy.throttle(None)
    assert read(client, len(data)) == data
