"""The result backend ``firebird://`` of Celery: states, results, groups and chords in tables of Firebird."""

from fbtasks.contrib.celery.backend import FirebirdBackend
from fbtasks.contrib.celery.results import close_all

__all__ = ["FirebirdBackend", "close_all"]
