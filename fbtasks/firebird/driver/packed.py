"""One string in, one string out: a procedure called without the driver's conversion of values.

The driver describes the parameters of each call to the library anew, which costs more than the engine's own work for a
single small record. A string needs none of it: two bytes with its length, and the bytes.
"""

from __future__ import annotations

import ctypes
from typing import Any


class PackedCall:
    """A prepared ``EXECUTE PROCEDURE`` of one VARCHAR, or VARBINARY, that returns one."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._in = statement._in_meta.get_offset(0)
        self._in_null = statement._in_meta.get_null_offset(0)
        self._room = statement._in_meta.get_length(0)
        self._out = statement._out_meta.get_offset(0)

    def __call__(self, transaction: Any, data: bytes) -> bytes:
        """Calls the procedure with *data*, in a transaction of the driver's. Returns its result."""
        assert len(data) <= self._room
        if not transaction.is_active():
            transaction.begin()
        statement = self._statement
        given, answer = statement._in_buffer, statement._out_buffer
        at = ctypes.addressof(given)
        ctypes.memset(at + self._in_null, 0, 2)
        ctypes.memmove(at + self._in, len(data).to_bytes(2, "little") + data, 2 + len(data))
        statement._istmt.execute(transaction._tra, statement._in_meta, given, statement._out_meta, answer)
        at = ctypes.addressof(answer) + self._out
        return ctypes.string_at(at + 2, int.from_bytes(ctypes.string_at(at, 2), "little"))
