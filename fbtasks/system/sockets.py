"""Sockets of fbtasks's own: they wait as long as it takes, whatever the application has set for all new ones."""

from __future__ import annotations

import socket


def without_timeout(made: socket.socket) -> socket.socket:
    """Returns *made*, which waits without end.

    ``socket.setdefaulttimeout`` gives each new socket a timeout, and makes its descriptor one that does not wait, also
    for the other processes that have it.
    """
    if made.gettimeout() is not None:
        made.setblocking(True)
    return made


def pair(kind: socket.SocketKind = socket.SOCK_STREAM) -> tuple[socket.socket, socket.socket]:
    """Two connected sockets."""
    ours, theirs = socket.socketpair(type=kind)
    return without_timeout(ours), without_timeout(theirs)


def of_descriptor(descriptor: int) -> socket.socket:
    """The socket that *descriptor* stands for."""
    return without_timeout(socket.socket(fileno=descriptor))
