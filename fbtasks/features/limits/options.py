"""The options of ``@app.task`` that limits add."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from fbtasks.errors import ConfigurationError
from fbtasks.features.limits import definition as limiting
from fbtasks.features.limits.definition import Key, Ordered, Unique
from fbtasks.system import checks
from fbtasks.system.checks import optional
from fbtasks.tasks.declare import Given, given
from fbtasks.tasks.options import CommonOptions

BATCH_WAIT: Final = 1.0
"""Seconds that a call waits for its batch to be full, where nothing else is said."""
_batch = optional(partial(checks.number, least=1, most=limiting.MOST_IN_BATCH, unit="calls"))


@dataclass(frozen=True, kw_only=True)
class LimitedTask(CommonOptions):
    """The options of every task, whether it is called or fed by a source."""

    limits: Annotated[
        Given[Mapping[str, Key] | str | None, Mapping[str, Key] | None], optional(limiting.limit_keys)
    ] = given(None)
    ordered: Annotated[Given[Key | bool | Ordered, Ordered | None], optional(limiting.ordered)] = given(None)
    unique: Annotated[Given[bool | Unique | None, Unique | None], optional(limiting.unique)] = given(None)


@dataclass(frozen=True, kw_only=True)
class BatchedTask(LimitedTask):
    """The options of a task that is called."""

    batch: Annotated[int | None, _batch] = None
    wait: Annotated[float | None, optional(checks.seconds)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch is not None:
            self._check_batch()
        elif self.wait is not None:
            raise ConfigurationError(
                f"wait={self.wait!r} is how long a call waits for its batch to be full: give batch= as well. To have "
                "each call begin later, give it countdown=."
            )

    @property
    def batching(self) -> tuple[int, float] | None:
        """How many calls are run together at most, and how many seconds one waits for that; None: each by itself."""
        return None if self.batch is None else (self.batch, BATCH_WAIT if self.wait is None else self.wait)

    def _check_batch(self) -> None:
        """Raises :class:`ConfigurationError` for what makes no sense with ``batch``."""
        size = f"batch={self.batch}"
        if self.ordered is not None:
            raise ConfigurationError(
                f"{size} runs calls together, and ordered= has one run at a time: leave out one. Within a batch, calls "
                "of one priority come in the order of enqueueing."
            )
        if self.limits is not None:
            raise ConfigurationError(
                f"{size} lets in calls together, and limits={[*self.limits]} one by one, so that no batch would be "
                "full: leave out one. How many batches run at once is limited by a queue with a worker of its own: "
                "fbtasks worker -Q NAME -c 2."
            )
        if self.transactional:
            raise ConfigurationError(
                f"{size} gives each call an end of its own, and transactional=True is one transaction, which cannot "
                "undo what was done for one of them alone: leave out one. The function can use a connection of "
                "app.connect()."
            )
