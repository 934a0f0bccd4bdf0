"""What a database says of itself when a connection to it was opened: all in one request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_ROOM: Final = 2048
_END: Final = 1
_VERSION: Final = re.compile(rb"V(\d+\.\d+)")
KEY_SIZE: Final = 16


class Facts(NamedTuple):
    """What a database says of itself."""

    version: float
    """Of the engine that serves it."""
    key: bytes
    """Stands for its GUID, which a restored backup has anew."""
    transaction: int
    """The number of the transaction that began last, of all connections."""


def ask(connection: Any) -> Facts:
    """Asks the database of *connection*; in one round trip, instead of the two that the driver's own version takes."""
    from firebird.driver.core import CBuffer
    from firebird.driver.types import DbInfoCode as Code

    buffer = CBuffer(_ROOM)
    wanted = (Code.FIREBIRD_VERSION, Code.DB_GUID, Code.NEXT_TRANSACTION)
    connection._att.get_info(bytes(wanted), buffer.raw)
    found = dict(_items(bytes(buffer.raw.raw)))
    match = _VERSION.search(found.get(Code.FIREBIRD_VERSION, b""))
    return Facts(
        float(match[1]) if match else float(connection.info.engine_version),
        hashlib.blake2b(found.get(Code.DB_GUID, b""), digest_size=KEY_SIZE).digest(),
        int.from_bytes(found.get(Code.NEXT_TRANSACTION, b""), "little"),
    )


def _items(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """The parts of an answer: a code, the length of what follows, and that."""
    at = 0
    while at + 3 <= len(answer) and answer[at] != _END:
        end = at + 3 + int.from_bytes(answer[at + 1 : at + 3], "little")
        yield answer[at], answer[at + 3 : end]
        at = end
