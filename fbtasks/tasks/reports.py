"""What a task says of itself while it runs, and who takes it."""

from __future__ import annotations


class Reports:
    """Takes what tasks say, each by the number of its run. This one drops it."""

    def beat(self, number: int) -> None:
        """The run *number* is at work."""

    def progress(self, number: int, state: str, meta: bytes) -> None:
        """The run *number* has come so far: a word for it, and what there is to say, in JSON."""


SILENT = Reports()
