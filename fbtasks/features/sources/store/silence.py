"""Transactions whose changes are not recorded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fbtasks.errors import ConfigurationError
from fbtasks.features.sources.definition import SILENT_BYTES
from fbtasks.firebird.session import Transaction

ALL: Final = "*"


def silence(transaction: Transaction, names: Iterable[str]) -> None:
    """Stops the triggers of the tasks *names*, or without any of all, from recording more in *transaction*.

    Raises :class:`ConfigurationError` when there is no room for the names.
    """
    wanted = list(names)
    before = (transaction.value("silent") or b"").decode()  # bytes: the connection may be of any character set
    if before == ALL:
        return
    text = ",".join([*([before] if before else ()), *wanted]) if wanted else ALL
    if len(text.encode()) > SILENT_BYTES:
        raise ConfigurationError(
            f"the names of the silenced tasks take more than {SILENT_BYTES} bytes. Silence all: "
            "app.silence(connection)."
        )
    transaction.rows("silence", text.encode())
