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


def connected(proxy):
    return closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=5))


def test_it_forwards_both_ways_in_order_and_as_slowly_as_it_is_told(client, proxy, wait_for):
    data = bytes(range(256)) * 4000
    sender = threading.Thread(target=client.sendall, args=(data,))
    sender.start()
    assert read(client, len(data)) == data
    sender.join()
    assert proxy.passed == {"to_server": len(data) + 5, "to_client": len(data) + 5}
    proxy.throttle(20_000)
    began = time.monotonic()
    assert echo(client, data[:10_240]) == data[:10_240]
    assert time.monotonic() - began >= 0.5, "10,240 bytes at 20,000 a second"
    proxy.throttle(None)
    client.sendall(b"last")
    client.shutdown(socket.SHUT_WR)
    assert read(client, 100) == b"last"
    wait_for(lambda: proxy.connections == 0, 5)


def test_frozen_it_forwards_nothing_and_refusing_it_keeps_what_is_open(client, proxy):
    proxy.freeze(True)
    client.sendall(b"late")
    client.settimeout(0.2)
    with pytest.raises(TimeoutError):
        client.recv(10)
    proxy.freeze(False)
    client.settimeout(5)
    assert read(client, 4) == b"late"
    proxy.refuse(True)
    with pytest.raises(OSError), connected(proxy) as another:  # noqa: PT011  # while it connects, or later
        another.sendall(b"x")
        assert another.recv(10) == b""
        raise ConnectionResetError
    assert echo(client, b"still") == b"still"
    proxy.refuse(False)
    proxy.freeze(True)
    client.sendall(b"never")
    assert proxy.cut() == 1
    with pytest.raises(ConnectionResetError):
        client.recv(10)
    proxy.freeze(False)
    with connected(proxy) as another:
        assert echo(another, b"again") == b"again"
    assert proxy.cuts == 1


@pytest.mark.parametrize("direction", ["to_server", "to_client"])
def test_it_cuts_after_so_many_bytes(client, proxy, direction):
    proxy.cut_after(3)
    proxy.disarm()
    assert echo(client, b"0123456789") == b"0123456789"
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
    assert proxy.passed[direction] == 15 + 3
