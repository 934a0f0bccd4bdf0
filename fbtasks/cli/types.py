"""Types of options."""

from __future__ import annotations

import math
from typing import Any, Final

import click

from fbtasks.choices import POOLS
from fbtasks.clock import LONGEST

_MOST: Final = LONGEST.total_seconds()


class Pool(click.Choice):  # type: ignore[type-arg]  # generic in new versions of click alone
    """One of the pools. A name that Celery has for a pool is answered with its name here."""

    def __init__(self) -> None:
        super().__init__(POOLS)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the pool of that name."""
        from fbtasks.celery_words import POOLS as WORDS

        if value in WORDS:
            self.fail(f"{value!r} is a pool of Celery's: {WORDS[value]}.", param, ctx)
        return super().convert(value, param, ctx)


class Seconds(click.FloatRange):
    """A number of seconds: finite, and not NaN."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the number."""
        number = super().convert(value, param, ctx)
        if math.isnan(number) or number > _MOST:
            self.fail(f"{value} must be a number of seconds, at most a hundred years.", param, ctx)
        return number
