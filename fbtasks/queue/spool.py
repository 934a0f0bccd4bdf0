"""A list that may be longer than memory has room for: beyond some megabytes it is kept in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")
_IN_MEMORY: Final = 4_000_000
"""Bytes that are kept without a file."""


class Spool(Generic[T]):
    """Items in their order. They can be read any number of times, one time after the other, until it is closed."""

    def __init__(self, items: Iterable[T]) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed by __exit__
        self._length = 0
        try:
            for item in items:
                pickle.dump(item, self._file, pickle.HIGHEST_PROTOCOL)
                self._length += 1
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        """Returns it; the end of the block deletes the items and the file."""
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        """How many items it has."""
        return self._length

    def __iter__(self) -> Iterator[T]:
        """The items."""
        self._file.seek(0)
        for _ in range(self._length):
            yield pickle.load(self._file)  # noqa: S301  # what this process has written
