"""The standard descriptors of a process that was started without them, as daemons and jobs of cron are."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

_LAST: Final = 2
"""The number of the standard error."""


def fill_standard() -> None:
    """Opens the null device in the place of each standard descriptor that is closed.

    To be called before anything is opened that lasts: a file or a socket would get such a number, and what a C library
    or a program that is started prints would be written into it. Of a database file nothing would be left.
    """
    with suppress(OSError):  # no number is free
        while (file := os.open(os.devnull, os.O_RDWR)) <= _LAST:
            os.set_inheritable(file, True)
        os.close(file)
