"""The upper and lower case of ASCII letters, as the engine needs it."""

from __future__ import annotations

import ctypes
import locale
import os
from contextlib import suppress


def make_plain() -> None:
    """Sets LC_CTYPE to C.UTF-8 where the C library has another upper case of *i*: in Turkish locales, say.

    The client library and the engine compare names by it: of their configuration, and of what procedures name.
    """
    if os.name == "posix" and ctypes.CDLL(None).toupper(ord("i")) != ord("I"):
        for name in ("C.UTF-8", "C"):
            with suppress(locale.Error):  # not each system has the first one
                locale.setlocale(locale.LC_CTYPE, name)
                return
