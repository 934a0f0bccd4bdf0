"""The app as workers import it."""

from __future__ import annotations

import os

from fbtasks.bench.tasks import QUEUE_VARIABLE, make_app

app = make_app(None, os.environ[QUEUE_VARIABLE])
