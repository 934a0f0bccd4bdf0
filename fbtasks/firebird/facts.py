"""What a database says of itself when a connection to it was opened: all in one request."""

from __future__ import annotations

import hashlib
import re
import struct
from typing import Any, Final, NamedTuple

_LARGEST_PAGE: Final = 32768
_ROOM: Final = 2048 + _LARGEST_PAGE
_END: Final = 1
_HEADER: Final = bytes((1, 0, 0))
"""The number of the header page, behind its length. To a user who may not see pages that is said, and 1 is an end."""
_LAYOUT: Final = struct.Struct("<18xH22xH")
"""Where a header page has the version of its layout, and its flags, in the layout of Firebird 4 and 5."""
_ODS: Final = 13
_SHUT_DOWN: Final = 0x0080 | 0x1000
"""The flags of a shutdown: one of them for multi-user, the other one for full, both for single-user maintenance."""
KEY_SIZE: Final = 16


class Facts(NamedTuple):
    """What a database says of itself."""

    version: float
    """Of the engine that serves it."""
    key: bytes
    """Stands for its GUID, which a restored backup has anew."""
    transaction: int
    """The number of the transaction that began last, of all connections."""
    shut_down: bool
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
    answer, at = bytes(buffer.raw.raw), 0
    found = {int(code): b"" for code in wanted}
    while at + 3 <= len(answer) and answer[at] != _END:  # parts: a code, the length of what follows, and that
        end = at + 3 + int.from_bytes(answer[at + 1 : at + 3], "little")
        found[answer[at]] = answer[at + 3 : end]
        at = end
    version, guid, transaction, page = (found[code] for code in wanted)
    ods, flags = _LAYOUT.unpack_from(page.ljust(_LAYOUT.size, b"\0"))
    match = re.search(rb"V(\d+\.\d+)", version)
    return Facts(
        float(match[1]) if match else float(connection.info.engine_version),
        hashlib.blake2b(guid, digest_size=KEY_SIZE).digest(),
        int.from_bytes(transaction, "little"),
        ods & 0x7FFF == _ODS and flags & _SHUT_DOWN != 0,
    )
