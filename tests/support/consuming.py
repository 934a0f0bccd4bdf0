"""Queues of kombu, and a consumer that waits for what it is to receive."""

import time

import kombu


def queue(name="q", **options):
    return kombu.Queue(name, kombu.Exchange(""), routing_key=name, **options)


def drain(connection, until, seconds=20.0):
    """Receives until *until* is true."""
    limit = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < limit, "the messages did not come"
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            pass
