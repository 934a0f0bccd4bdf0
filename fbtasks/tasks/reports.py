"""What a task says of itself while it runs, and who takes it."""

from __future__ import annotations


class Reports:
    """Takes what tasks say, each by the number of its run. This one drops it."""

    def beat(self, number: int) -> None:
        """The run *number* is at work."""

    def say(self, number: int, feature: str, data: bytes) -> None:
        """The run *number* tells *feature*, in its worker, *data*. Of what it says within a second the last counts."""


SILENT = Reports()
