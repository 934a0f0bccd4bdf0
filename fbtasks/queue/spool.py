"""A list that may be longer than memory has room for: beyond some megabytes it is kept in a temporary file."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

T = TypeVar("T")
PART: Final = 500
"""Items that are in memory at once."""
_IN_MEMORY: Final = 4_000_000
"""Bytes that are kept without a file."""


class Spool(Generic[T]):
    """Items in the order in which they were added. They can be read any number of times, until it is closed."""

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed by close()
        self._end = self._length = 0
        try:
            self.extend(items)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        """Returns it; the end of the block closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it."""
        self.close()

    def __len__(self) -> int:
        """How many items it has."""
        return self._length

    def __iter__(self) -> Iterator[T]:
        """The items."""
        for part in self.parts():
            yield from part

    def extend(self, items: Iterable[T]) -> None:
        """Adds *items*."""
        rest = iter(items)
        while part := list(islice(rest, PART)):
            self._file.seek(self._end)
            pickle.dump(part, self._file, pickle.HIGHEST_PROTOCOL)
            self._end = self._file.tell()
            self._length += len(part)

    def parts(self) -> Iterator[list[T]]:
        """The items, some hundred in a list."""
        at, left = 0, self._length
        while left:
            self._file.seek(at)
            part: list[T] = pickle.load(self._file)[:left]  # noqa: S301  # what this process has written
            at = self._file.tell()
            left -= len(part)
            yield part

    def first(self, most: int) -> Self:
        """Leaves out all but the first *most* items; no more are added then. Returns it."""
        self._length = min(self._length, most)
        return self

    def close(self) -> None:
        """Deletes the items and the file."""
        self._file.close()
