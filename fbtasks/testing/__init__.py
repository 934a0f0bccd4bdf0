"""Helpers for the tests of applications: another database, eager mode, draining a queue; a pytest plugin."""

from fbtasks.testing.helpers import drain, eager, on_database

__all__ = ["drain", "eager", "on_database"]
