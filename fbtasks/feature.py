"""Features of other distributions: what one says of itself, for ``FBTasks(features=[...])``."""

from __future__ import annotations

import re
from collections.abc import Collection
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

from fbtasks.errors import ConfigurationError
from fbtasks.system import checks

if TYPE_CHECKING:
    from fbtasks.tasks.call import Call

OURS: Final = frozenset({"celery", "limits", "progress", "queues", "schedules", "sources", "workflows"})
"""The names of the features of this distribution."""
LONGEST_EXTRA: Final = 4000
"""Bytes that a feature may have to say about a call."""
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,29}")


class Feature:
    """What an app has beside what this distribution brings. One object serves one app; all members may be left out."""

    name: str
    """Small letters, digits and ``_``; a database has one feature of a name."""
    schema: str | PathLike[str] | None = None
    """A folder with ``migrations/NNNN_NAME.sql`` and, for hooks, ``packages/*.sql``: its version is the last number."""
    hooks: Collection[str] = frozenset()
    """The hooks (``fbtasks/sql/hooks.sql``) that its package answers."""

    def prepare(self, call: Call) -> bytes | None:  # noqa: ARG002
        """Returns what the feature has to say about *call*, which is written with it, up to 4000 bytes; None: nothing.

        A task of which it says something is run by workers that have the feature, and is parked by others; its hooks
        are called for these tasks alone.
        """
        return None


def checked(what: str, value: Any) -> tuple[Feature, ...]:
    """*value* as a tuple of features. Raises :class:`ConfigurationError` for what cannot be one."""
    found = tuple(value) if isinstance(value, list | tuple) else ()
    if value != [] and value != () and not found:
        raise ConfigurationError(f"{what} {checks.shown(value)} must be a list of features: features=[Audit()].")
    for each in found:
        name = getattr(each, "name", None)
        if isinstance(each, type) or not isinstance(name, str):
            raise ConfigurationError(f"{what} has {checks.shown(each)}, which is no object with a name.")
        if not _NAME.fullmatch(name) or name in OURS or name.startswith(("fbtasks", "queue")):
            raise ConfigurationError(
                f"{what}: the name {name!r:.80} must have 1 to 30 small letters, digits and _, begin with a letter, "
                f"not with fbtasks or queue, and be none of {', '.join(sorted(OURS))}."
            )
    names = [each.name for each in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigurationError(f"{what} has two features of the name {min(twice)!r}.")
    return found
