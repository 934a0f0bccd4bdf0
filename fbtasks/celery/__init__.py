"""The result backend ``firebird://`` of Celery: states, results, groups and chords in tables of Firebird."""

from fbtasks.celery.backend import FirebirdBackend
from fbtasks.celery.store import close_all

__all__ = ["FirebirdBackend", "close_all"]
