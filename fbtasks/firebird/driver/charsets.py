"""Character sets of the engine, as Python names them."""

from __future__ import annotations

from typing import Final

_CODECS: Final = {"TIS620": "tis_620", "CP943C": "cp932", "CYRL": "cp866"}
"""Those that the driver does not know."""


def encoded(text: str, charset: str) -> bytes | None:
    """Returns *text* as the engine writes it in *charset*; None when that does not have all its letters.

    Raises :class:`LookupError` for a character set that Python does not know.
    """
    from firebird.driver.core import CHARSET_MAP

    try:
        return text.encode(_CODECS.get(charset) or CHARSET_MAP.get(charset) or charset)
    except UnicodeEncodeError:
        return None
