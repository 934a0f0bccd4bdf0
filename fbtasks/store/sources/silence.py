"""Transactions whose changes are not recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fbtasks.errors import ConfigurationError
from fbtasks.firebird.session import Transaction

ALL: Final = "*"
MOST: Final = 255
"""The most bytes of all names, as the triggers have room for them."""


def silence(transaction: Transaction, names: Iterable[str]) -> None:
    """Has the triggers of the tasks *names*, or without any of all, record nothing more in *transaction*.

    Raises :class:`ConfigurationError` when there is no room for the names.
    """
    wanted = list(names)
    before = transaction.value("silent")
    if before == ALL:
        return
    for name in wanted:
        if "," in name or name == ALL:
            raise ConfigurationError(f"the task {name!r} cannot be silenced by its name. Silence all, or rename it.")
    listed = dict.fromkeys([*(before.split(",") if before else ()), *wanted])
    text = ",".join(listed) if wanted else ALL
    if len(text.encode()) > MOST:
        raise ConfigurationError(
            f"{len(listed)} names of tasks take more than {MOST} bytes. Silence all: app.silence(connection)."
        )
    transaction.rows("silence", text)
