"""Makes the scheme ``firebird`` known to kombu, and nothing else.

kombu has no entry point for transports, but loads those of its serialisers as soon as Celery is imported. It does so in
the middle of its own import, so this is a package apart, which imports next to nothing.
"""

from __future__ import annotations

from typing import Any

from kombu.transport import TRANSPORT_ALIASES
from kombu.utils import json


def register() -> None:
    """Makes the scheme known."""
    TRANSPORT_ALIASES.setdefault("firebird", "fbtasks.kombu:Transport")


register()

serializer: tuple[Any, ...] = (json.dumps, json.loads, "application/x-firebird-json", "utf-8")
"""What the entry point has to be: a serialiser. This one is JSON, under another name."""
