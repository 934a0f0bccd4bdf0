"""Names as the columns of Celery's tables keep them, and as people know them.

SQL compares texts as if the shorter one went on with spaces, and so do unique keys: ``'id1'`` and ``'id1 '`` are one.
RabbitMQ and Redis tell such names apart. So what is kept never ends in a space, and equal in SQL is equal.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from fbtasks.errors import SerializationError
from fbtasks.system import checks

LONGEST: Final = 250
"""Characters that the columns have room for."""
_END: Final = "\x03"
"""Stands behind a name that ends in a space, or in itself: ASCII's end of a text, which no name has by chance."""


def kept(name: str, what: str = "the name of a queue, an exchange or a routing key") -> str:
    """Returns *name* as it is kept; :func:`shown` has it back. Raises :class:`SerializationError` for one too long."""
    if not isinstance(name, str):
        raise SerializationError(f"{checks.shown(name)} is a {type(name).__name__}: {what} must be str.")
    text = name + _END if name.endswith((" ", _END)) else name
    if len(text) > LONGEST:
        raise SerializationError(f"{name!r:.60} has {len(name)} characters; {what} has {LONGEST} at most.")
    return text


def shown(name: str) -> str:
    """Returns a name that is kept as it was given."""
    return name[:-1] if name.endswith(_END) else name


def key(name: str) -> str:
    """Returns the key of a value, however long its *name*: that as it is kept, or its beginning and its hash."""
    if _END not in name and len(name) + name.endswith(" ") <= LONGEST:
        return kept(name)
    return name[: LONGEST - 65] + _END + sha256(name.encode()).hexdigest()
