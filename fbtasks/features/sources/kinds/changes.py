"""Changes of tables, as handlers see them, and as the log holds them: one JSON object each.

The triggers of :mod:`fbtasks.features.sources.store.triggers` write these members; docs/reference/payloads.md describes
them. A member that a change has no use for is left out, and one that is not known is passed over: rows that older and
newer definitions wrote are read alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, Final, Literal

from fbtasks.errors import SerializationError
from fbtasks.system.showing import brief

Op = Literal["insert", "update", "delete"]
_OPS: Final[dict[str, Op]] = {"I": "insert", "U": "update", "D": "delete"}
_NONE: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a row, or several of one key that were made into one.

    A test makes one with what its handler looks at: ``Change(op="update", new={"STATUS": "paid"})``.
    """

    op: Op = "insert"
    key: Mapping[str, Any] = field(default_factory=dict)
    """The key's columns and their values, under which this change is handled."""
    old: Mapping[str, Any] | None = None
    """The columns before the change; None for an insert."""
    new: Mapping[str, Any] | None = None
    """The columns after the change; None for a delete."""
    user: str = ""
    """The database's user who made it."""
    time: datetime = field(default_factory=lambda: datetime.now(UTC))
    """When the statement that made it began: UTC, in milliseconds."""
    transaction: int = 0
    """The number of the transaction that made it."""
    id: int = 0
    """The number of the change: of two changes of a row, the later one's is higher."""
    count: int = 1
    """How many changes it was made of."""
    moved: Literal["out", "in"] | None = None
    """For an update that changed the key, which is handled twice: "out" under the old key, "in" under the new one."""
    error: str | None = None
    """Why it could not be recorded: then *old* and *new* are None, *key* may be empty, and no handler is called."""


def read(members: Any) -> Change:
    """Returns the change of a JSON object that was read. Raises :class:`SerializationError` when it is none."""
    try:
        op = _OPS[members["o"]]
        error = members.get("e")
        moved = members.get("m")
        after = members.get("k", _NONE)
        before = members.get("q", after)
        return Change(
            op,
            before if moved == "out" else after,
            None if op == "insert" or error is not None else {**before, **members.get("p", _NONE)},
            None if op == "delete" or error is not None else {**after, **members.get("n", _NONE)},
            members["u"],
            datetime.fromisoformat(members["t"]).replace(tzinfo=UTC),
            members["x"],
            members["i"],
            moved=moved,
            error=error,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SerializationError(f"a recorded change cannot be read: {brief(error)} in {members!r:.200}.") from error
