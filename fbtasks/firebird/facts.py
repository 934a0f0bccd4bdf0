"""What a database says of itself when a connection to it was opened: all in one request."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

_LARGEST_PAGE: Final = 32768
_ROOM: Final = 2048 + _LARGEST_PAGE
_END: Final = 1
_HEADER: Final = bytes((1, 0, 0))
"""The number of the header page, behind its length. To a user who may not see pages that is said, and 1 is an end."""
_ODS_AT: Final = 18
_FLAGS_AT: Final = 42
"""Where a header page has the version of its layout, and its flags, in the layout of Firebird 4 and 5."""
_ODS: Final = 13
_SHUT_DOWN: Final = 0x0080 | 0x1000
"""The flags of a shutdown: one of them for multi-user, the other one for full, both for single-user maintenance."""
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
    shut_down: bool = False
    """Whether it was shut down for maintenance, and lets in its owner and SYSDBA alone."""


def ask(connection: Any) -> Facts:
    """Asks the database of *connection*; in one round trip, instead of the two that the driver's own version takes.

    That it is shut down is read from its header page: MON$DATABASE tells as well, but to read it interrupts all others.
    """
    from firebird.driver.core import CBuffer
    from firebird.driver.types import DbInfoCode as Code

    buffer = CBuffer(_ROOM)
    wanted = (Code.FIREBIRD_VERSION, Code.DB_GUID, Code.NEXT_TRANSACTION, Code.PAGE_CONTENTS)
    connection._att.get_info(bytes(wanted) + _HEADER, buffer.raw)
    found = dict(_items(bytes(buffer.raw.raw)))
    match = _VERSION.search(found.get(Code.FIREBIRD_VERSION, b""))
    return Facts(
        float(match[1]) if match else float(connection.info.engine_version),
        hashlib.blake2b(found.get(Code.DB_GUID, b""), digest_size=KEY_SIZE).digest(),
        int.from_bytes(found.get(Code.NEXT_TRANSACTION, b""), "little"),
        _is_shut_down(found.get(Code.PAGE_CONTENTS, b"")),
    )


def _is_shut_down(header: bytes) -> bool:
    def number(at: int) -> int:
        return int.from_bytes(header[at : at + 2], "little")

    return number(_ODS_AT) & 0x7FFF == _ODS and number(_FLAGS_AT) & _SHUT_DOWN != 0


def _items(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """The parts of an answer: a code, the length of what follows, and that."""
    at = 0
    while at + 3 <= len(answer) and answer[at] != _END:
        end = at + 3 + int.from_bytes(answer[at + 1 : at + 3], "little")
        yield answer[at], answer[at + 3 : end]
        at = end
