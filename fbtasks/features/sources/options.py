"""All that ``on_change``, ``on_event`` and ``poll_table`` take: options of the source, of the delivery and of tasks.

A record of these classes is never made: signatures and type checkers have them from here.
"""

from dataclasses import dataclass
from typing import Annotated

from fbtasks.features.sources.definition import ChangeSource
from fbtasks.features.sources.kinds.polled import PollSource
from fbtasks.features.sources.subscription import Delivery, EventSource, event_name
from fbtasks.system import checks
from fbtasks.tasks.options import CommonOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class FedTaskOptions(CommonOptions):
    """The options of a task that a source feeds: no caller waits for what it returns."""

    ignore_result: Annotated[bool, checks.flag] = True


@dataclass(frozen=True)
class OnChange(FedTaskOptions, Delivery, ChangeSource):
    """The arguments of ``app.on_change()``."""

    table: Annotated[str, checks.text]


@dataclass(frozen=True)
class OnEvent(FedTaskOptions, Delivery, EventSource):
    """The arguments of ``app.on_event()``."""

    event: Annotated[str, event_name]


@dataclass(frozen=True)
class PollTable(FedTaskOptions, PollSource):
    """The arguments of ``app.poll_table()``."""

    table: Annotated[str, checks.text]
