"""A cursor that binds parameters without describing them to the library for each call.

The driver builds the description of all parameters anew whenever a statement is executed: 35 us for each of them, more
than the engine's own work for a small statement. What a statement's parameters are does not change. So the cursor asks
once where each one lies in the statement's buffer, and writes numbers, texts and times there. What it does not know, or
what does not fit, it leaves to the driver, whose errors are the same as before.
"""

from __future__ import annotations

import ctypes
import datetime
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from firebird.driver import Cursor
from firebird.driver.types import SQLDataType

_INTEGERS = {SQLDataType.SHORT: 2, SQLDataType.LONG: 4, SQLDataType.INT64: 8}
"""Bytes of each type of integers."""
_OCTETS = 1
"""The character set of bytes."""
_FIRST_DAY = datetime.date(1858, 11, 17).toordinal()
"""Day 0 of the engine."""
_NOT_NULL, _NULL = (0).to_bytes(2, "little"), (1).to_bytes(2, "little")

Encode = Callable[[object], bytes | None]
"""Returns the bytes of a value in the buffer; None for one that is the driver's to convert, or to refuse.

The engine looks at the text of a NULL, too: it has to fit.
"""

_layouts: weakref.WeakKeyDictionary[Any, list[tuple[int, int, Encode]]] = weakref.WeakKeyDictionary()
"""For each statement: of each parameter the offset of its value, that of its NULL flag, and what encodes the value."""


class BindingCursor(Cursor):  # type: ignore[misc]  # the driver's classes are not typed
    """A cursor of the driver's that binds what it can by itself."""

    def _pack_input(self, meta: Any, buffer: Any, parameters: Sequence[Any]) -> tuple[Any, Any]:
        layout = _layouts.get(self._stmt)
        if layout is None:
            layout = _layouts[self._stmt] = _layout(meta, self._encoding)
        if parameters is None or len(parameters) != len(layout):
            return super()._pack_input(meta, buffer, parameters)  # type: ignore[no-any-return]
        at = ctypes.addressof(buffer)
        for value, (offset, null_offset, encode) in zip(parameters, layout, strict=True):
            encoded = encode(value)
            if encoded is None:
                return super()._pack_input(meta, buffer, parameters)  # type: ignore[no-any-return]
            ctypes.memmove(at + null_offset, _NULL if value is None else _NOT_NULL, 2)
            ctypes.memmove(at + offset, encoded, len(encoded))
        meta.add_ref()  # who executes the statement releases it
        return meta, buffer


def cursor_of(transaction: Any) -> BindingCursor:
    """Returns a new cursor of *transaction*, as its method ``cursor`` does."""
    cursor = BindingCursor(transaction._connection(), transaction)
    transaction._cursors.append(weakref.ref(cursor, transaction._cursor_deleted))
    return cursor


def _layout(meta: Any, encoding: str) -> list[tuple[int, int, Encode]]:
    return [(meta.get_offset(i), meta.get_null_offset(i), _encoder(meta, i, encoding)) for i in range(meta.get_count())]


def _encoder(meta: Any, i: int, encoding: str) -> Encode:
    kind = meta.get_type(i)
    if kind in _INTEGERS and not meta.get_scale(i) and not meta.get_subtype(i):
        return _integers(_INTEGERS[kind])
    if kind == SQLDataType.VARYING:
        return _texts(meta.get_length(i), encoding)
    if kind == SQLDataType.TIMESTAMP:
        return _timestamp
    if kind == SQLDataType.TEXT:
        return _left_to_the_driver((b"\0" if meta.get_charset(i) == _OCTETS else b" ") * meta.get_length(i))
    return _left_to_the_driver(b"")


def _integers(size: int) -> Encode:
    def encode(value: object) -> bytes | None:
        if value is None:
            return bytes(size)
        if not isinstance(value, int):
            return None
        try:
            return value.to_bytes(size, "little", signed=True)
        except OverflowError:
            return None

    return encode


def _texts(room: int, encoding: str) -> Encode:
    def encode(value: object) -> bytes | None:
        if value is None:
            return b"\0\0"
        if isinstance(value, str):
            value = value.encode(encoding)
        elif not isinstance(value, bytes):
            return None
        return len(value).to_bytes(2, "little") + value if len(value) <= room else None

    return encode


def _timestamp(value: object) -> bytes | None:
    if value is None:
        return bytes(8)
    if not isinstance(value, datetime.datetime) or value.tzinfo is not None:
        return None
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    time = seconds * 10_000 + value.microsecond // 100
    return (value.toordinal() - _FIRST_DAY).to_bytes(4, "little", signed=True) + time.to_bytes(4, "little")


def _left_to_the_driver(null: bytes) -> Encode:
    return lambda value: null if value is None else None
