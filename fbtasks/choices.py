"""Names to choose from, in the command line and elsewhere; light to import, as ``--help`` needs them."""

from __future__ import annotations

from typing import Final

POOLS: Final = ("processes", "threads", "asyncio", "solo")
ROLES: Final = {"producer": "FBTASKS_PRODUCER", "worker": "FBTASKS_WORKER", "operator": "FBTASKS_OPERATOR"}
"""The roles of the database by the names that people give."""
