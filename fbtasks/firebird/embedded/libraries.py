"""The libraries of the system that the engine needs, and which of them are missing.

The firebird-embedded package brings the engine along, and none of these. They are looked for when the engine could not
be loaded or used, and by ``python -m fbtasks.firebird.embedded.libraries``. That prints a line for each missing one:
the package on Debian and Ubuntu, the package on Fedora, and the name of the library, separated by tabs.
"""

from __future__ import annotations

import ctypes
import shlex
import sys
from typing import Final, NamedTuple

_NEWEST_ICU: Final = 79
"""The newest version that the engine of Firebird 5.0.4 looks for; it takes any from 30 on."""


class Library(NamedTuple):
    """A library, in the words for a message, and where it comes from."""

    name: str
    files: tuple[tuple[str, ...], ...]
    """The names of its files, of which all must load; the same for each version that will do."""
    debian: str
    """The package on Debian and Ubuntu, as ``apt install`` takes it."""
    fedora: str


_LIBRARIES: Final = (
    Library("libtommath.so.1", (("libtommath.so.1",),), "libtommath1", "libtommath"),
    Library("libtomcrypt.so.1", (("libtomcrypt.so.1",),), "libtomcrypt1", "libtomcrypt"),
    Library(
        f"ICU (libicuuc.so.{_NEWEST_ICU} or older)",
        tuple(
            tuple(f"libicu{part}.so.{version}" for part in ("uc", "i18n", "data"))
            for version in range(_NEWEST_ICU, 29, -1)
        ),
        # Its package has its version in its name. apt takes this for a regular expression, and knows which there is.
        "^libicu[0-9]+$",
        "libicu",
    ),
)


def missing() -> list[Library]:
    """The libraries that cannot be loaded here. Elsewhere than on Linux the engine needs none of them."""
    if sys.platform != "linux":
        return []
    return [library for library in _LIBRARIES if not any(all(map(_loads, files)) for files in library.files)]


def explain() -> str | None:
    """One line that names each missing library and how to install it; None when none is missing."""
    found = missing()
    if not found:
        return None
    return (
        f"the Firebird engine needs libraries that are not installed: {', '.join(library.name for library in found)}. "
        f"On Debian and Ubuntu: apt install {shlex.join(library.debian for library in found)}; "
        f"on Fedora: dnf install {shlex.join(library.fedora for library in found)}"
    )


def _loads(file: str) -> bool:
    try:
        ctypes.CDLL(file)
    except OSError as error:
        return file not in str(error)  # else it is another one that this one needs
    return True


if __name__ == "__main__":
    for each in missing():
        print(each.debian, each.fedora, each.name, sep="\t")
