"""Names the replacement for a word of Celery's: in an import, as an option, an attribute or a command.

The words are in ``celery_words.toml``, which is read when one is met that fbtasks does not have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fbtasks.system.checks import did_you_mean


@cache
def words() -> Mapping[str, Mapping[str, str]]:
    """The words by where they are used, with what to use here."""
    import tomllib  # for mistakes alone

    return tomllib.loads(Path(__file__).with_name("celery_words.toml").read_text("utf-8"))


def instead(word: str, *places: str, known: Iterable[str] = ()) -> str:
    """Returns, behind a colon, what to use for *word*, as the first of *places* that has it says.

    Else a full stop, and the words of *known* that are close to it.
    """
    for place in places:
        table = words().get(place, {})
        answer = table.get(word) or table.get(f"{word.partition('_')[0]}_*")
        if answer:
            return f": {answer}."
    return f".{did_you_mean(word, known)}"


class AnswersCelery:
    """Names, in the error for an attribute that does not exist, what to use for a word of Celery's."""

    __slots__ = ()
    _known_as: ClassVar[str]
    """What it is, as the error and the table of words have it: ``a task``."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raises :class:`AttributeError`, without a full stop: Python adds one, and a name that is close."""
            said = "" if name.startswith("__") else instead(name, self._known_as).removesuffix(".")
            raise AttributeError(f"{self._known_as} has no attribute {name!r}{said}", name=name, obj=self)
