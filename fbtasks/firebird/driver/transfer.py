"""Large values on their way to the database and back, piece by piece, so that it is seen that they move."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

PIECE: Final = 65_535
"""Bytes of a segment of a BLOB; what is longer goes in several."""


class _Upload:
    """Bytes that the driver reads like a file, a segment at a time."""

    def __init__(self, data: bytes, moved: Callable[[], None]) -> None:
        self._file = io.BytesIO(data)
        self._moved = moved

    def read(self, size: int) -> bytes:
        """The next piece. The one before it has been taken by the database."""
        self._moved()
        return self._file.read(size)


def uploads(params: Sequence[object], moved: Callable[[], None]) -> Sequence[object]:
    """*params*, of which those that are long call *moved* for each piece that was written."""
    if any(isinstance(value, bytes) and len(value) > PIECE for value in params):
        return [_Upload(value, moved) if isinstance(value, bytes) and len(value) > PIECE else value for value in params]
    return params


def downloads(rows: Iterable[tuple[Any, ...]], moved: Callable[[], None]) -> list[tuple[Any, ...]]:
    """*rows* with what they only refer to, calling *moved* for each piece that was read."""
    return [
        tuple(_download(value, moved) for value in row) if any(isinstance(value, io.IOBase) for value in row) else row
        for row in rows
    ]


def _download(value: Any, moved: Callable[[], None]) -> Any:
    if not isinstance(value, io.IOBase):
        return value
    with value as reader:
        if reader.sub_type == 1:  # type: ignore[attr-defined]  # the driver's: text, whose characters have many bytes
            return reader.read()
        pieces = []
        while piece := reader.read(PIECE):
            pieces.append(piece)
            moved()
    return b"".join(pieces)
